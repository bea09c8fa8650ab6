//! Leaks that every operator meets, whoever's bug report it was.

use super::{Case, leak};
use crate::expect::{LEAK, Target};
use crate::load::{Load, Shape};
use crate::stage::Stage;
use crate::workload::{Burst, Cache, Generations, Keys, Life, Sizes, Traffic};
use crate::world::Kind;

pub(super) const CASES: [Case; 8] = [
    leak("P small share", "a small share of heavy traffic is lost", small_share),
    leak("P under load", "loses only while there is load, in bursts", under_load),
    leak("P pause", "loses, pauses for minutes, loses again", pause),
    leak("P steps", "loses in steps of 30 to 60 seconds", steps),
    leak("P daily", "loses beside a daily rhythm", daily),
    leak("P late", "begins to lose after a quiet time", late),
    leak("P eviction", "a cache whose eviction forgets some entries", eviction),
    leak("P restarts", "loses slowly, is restarted every few minutes", restarts),
];

/// Traffic of which so many objects a second are lost, well above what traffic does by chance.
fn traffic(stage: &mut Stage, load: Load) -> Traffic {
    let process = stage.service();
    let site = stage.any_site(process);
    let lost_rate = stage.random().log_between(0.3, 1.5);
    let rate = stage.random().between(10.0, 30.0);
    let bytes = stage.random().log_between(30e3, 2e6);
    let sizes = stage.sizes(site, bytes / lost_rate);
    let life = Life::Exponential(stage.random().log_between(0.05, 3.0));
    let lost = lost_rate / rate;
    stage.label(site, LEAK);
    stage.others(process);
    Traffic { site, rate, sizes, life, lost, lost_from: 0, load }
}

fn small_share(stage: &mut Stage) {
    let seconds = stage.minutes(25.0, 50.0);
    let load = Load::any(stage.random(), seconds);
    let traffic = traffic(stage, load);
    stage.play(traffic);
}

fn under_load(stage: &mut Stage) {
    stage.minutes(30.0, 60.0);
    let on = stage.random().between(20.0, 120.0);
    let off = stage.random().between(20.0, 120.0);
    let traffic = traffic(stage, Load::of(Shape::OnOff { on, off }));
    stage.play(traffic);
}

fn pause(stage: &mut Stage) {
    let seconds = stage.minutes(40.0, 70.0);
    let load = Load::constant().with_pause(stage.random(), seconds);
    let traffic = traffic(stage, load);
    stage.play(traffic);
}

fn steps(stage: &mut Stage) {
    stage.minutes(30.0, 60.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let count = stage.random().whole(3, 30);
    let around = stage.random().log_between(2e6, 60e6) / count as f64;
    let sizes = stage.sizes(site, around);
    let life = Life::Exponential(stage.random().log_between(0.1, 5.0));
    let lost = if stage.random().chance(0.5) { count } else { count / 3 + 1 };
    stage.play(Burst { lost, ..Burst::new(site, (30.0, 60.0), count, sizes, life) });
    stage.label(site, LEAK);
    stage.others(process);
}

fn daily(stage: &mut Stage) {
    stage.seconds = (stage.random().between(1.0, 2.0) * 86_400.0) as u64;
    let shape = Shape::Daily {
        period: 86_400.0,
        depth: stage.random().between(0.5, 0.95),
        phase: stage.random().unit(),
    };
    let load = Load { noise: 0.3, ..Load::of(shape) };
    let process = stage.service();
    let site = stage.any_site(process);
    let rate = stage.random().log_between(0.1, 0.4);
    let around = stage.random().log_between(0.3e6, 4e6);
    let sizes = stage.sizes(site, around);
    let life = Life::Exponential(stage.random().log_between(5.0, 120.0));
    let lost = stage.random().log_between(0.1, 0.5);
    stage.play(Traffic { site, rate, sizes, life, lost, lost_from: 0, load: load.clone() });
    stage.label(site, LEAK);
    let other = stage.any_site(process);
    let sizes = stage.sizes(other, around);
    let rate = rate * 0.5;
    stage.play(Traffic { site: other, rate, sizes, life, lost: 0.0, lost_from: 0, load });
}

fn late(stage: &mut Stage) {
    let seconds = stage.minutes(45.0, 80.0);
    let load = Load::any(stage.random(), seconds);
    let traffic = traffic(stage, load);
    let lost_from = stage.random().whole(600, 1_200);
    stage.play(Traffic { lost_from, ..traffic });
}

fn eviction(stage: &mut Stage) {
    stage.minutes(35.0, 60.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let rate = stage.random().log_between(1.0, 6.0);
    let fill = stage.random().between(30.0, 300.0);
    let around = stage.random().log_between(60e3, 1e6);
    let sizes = stage.sizes(site, around);
    let load = Load { noise: 0.3, ..Load::constant() };
    let mut cache = Cache::new(site, rate, sizes, Keys::Unique, load);
    cache.limit = (u64::MAX, (rate * fill) as usize);
    cache.forgets = stage.random().between(0.2, 0.8);
    stage.play(cache);
    stage.label(site, LEAK);
    stage.others(process);
}

fn restarts(stage: &mut Stage) {
    stage.minutes(40.0, 70.0);
    let cgroup = stage.random().whole(100, 9_000);
    let kind = stage.random().pick(&[Kind::PINNED, Kind::DEVICE], Kind::PINNED);
    let lost = stage.random().between(0.1, 0.5);
    let rate = stage.random().between(3.0, 8.0);
    let around = stage.random().log_between(50e3, 1e6) / (rate * lost);
    let sizes = Sizes::Log((around / 2.0) as u64, (around * 2.0) as u64);
    let mut generations = Generations::new(&mut stage.world, ("worker", cgroup), kind, sizes);
    generations.rate = rate;
    generations.lost = lost;
    generations.life = Life::Exponential(stage.random().log_between(0.1, 4.0));
    generations.ends = (u64::MAX, stage.random().whole(90, 280));
    if let Some(process) = generations.process {
        stage.label_of(Target::Service(process, kind.domain()), LEAK);
    }
    stage.play(generations);
}
