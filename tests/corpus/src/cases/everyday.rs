//! More that is no leak: days and nights, restarts, batches, buffers.

use super::{Case, none};
use crate::expect::{BOUNDED, PLATEAU, Target};
use crate::load::{Load, Shape};
use crate::stage::Stage;
use crate::workload::{Burst, Cache, Generations, Grower, Keys, Life, Sizes, Traffic};
use crate::world::Kind;

pub(super) const CASES: [Case; 10] = [
    none("N daily", "a daily rhythm over days", daily),
    none("N daily cache", "a cache that follows a daily rhythm", daily_cache),
    none("N nightly", "a batch job at night", nightly),
    none("N hourly", "a job of minutes, every half hour", hourly),
    none(
        "N restarts",
        "a program that is restarted again and again, and warms up each time",
        restarts,
    ),
    none("N workers", "short-lived workers, one after another", workers),
    none("N table", "a hash table that doubles until it holds all there is", table),
    none("N sockets", "kernel memory of connections, on and off", sockets),
    none("N idle", "works for minutes, then rests for ever", idle),
    none("N retention", "what happened is kept for some minutes", retention),
];

fn rhythm(stage: &mut Stage) -> Load {
    stage.seconds = (stage.random().between(1.5, 3.0) * 86_400.0) as u64;
    let shape = Shape::Daily {
        period: 86_400.0,
        depth: stage.random().between(0.5, 0.98),
        phase: stage.random().unit(),
    };
    Load { noise: 0.3, ..Load::of(shape) }
}

fn daily(stage: &mut Stage) {
    let load = rhythm(stage);
    let process = stage.service();
    let site = stage.any_site(process);
    let rate = stage.random().log_between(0.1, 0.4);
    let life = Life::Exponential(stage.random().log_between(10.0, 300.0));
    let around = stage.random().log_between(0.3e6, 8e6);
    let sizes = stage.sizes(site, around);
    stage.play(Traffic { site, rate, sizes, life, lost: 0.0, lost_from: 0, load });
    stage.label(site, BOUNDED);
}

fn daily_cache(stage: &mut Stage) {
    let load = rhythm(stage);
    let process = stage.service();
    let site = stage.any_site(process);
    let rate = stage.random().log_between(0.1, 0.4);
    let around = stage.random().log_between(0.3e6, 4e6);
    let sizes = stage.sizes(site, around);
    let mut cache = Cache::new(site, rate, sizes, Keys::Unique, load);
    cache.residence = Some(stage.random().log_between(120.0, 460.0));
    stage.play(cache);
    stage.label(site, BOUNDED);
}

fn nightly(stage: &mut Stage) {
    let load = rhythm(stage);
    let process = stage.service();
    let site = stage.any_site(process);
    let rate = stage.random().log_between(0.05, 0.2);
    let around = stage.random().log_between(0.2e6, 2e6);
    let sizes = stage.sizes(site, around);
    let life = Life::Exponential(stage.random().log_between(1.0, 60.0));
    stage.play(Traffic { site, rate, sizes, life, lost: 0.0, lost_from: 0, load });
    let night = stage.random().between(0.2, 0.8) * 86_400.0;
    let count = stage.random().whole(30, 400);
    let hold = Life::Exponential(stage.random().log_between(60.0, 600.0));
    let burst = Burst::new(site, (86_400.0, 86_401.0), count, sizes, hold);
    stage.play(Burst { first: night as u64, ..burst });
    stage.label(site, BOUNDED);
}

fn hourly(stage: &mut Stage) {
    stage.minutes(120.0, 240.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let every = stage.random().between(1_200.0, 2_400.0);
    let count = stage.random().whole(20, 300);
    let around = stage.random().log_between(0.1e6, 4e6);
    let sizes = stage.sizes(site, around);
    let life = Life::Exponential(stage.random().log_between(30.0, 240.0));
    let first = stage.random().whole(60, 600);
    stage.play(Burst { first, ..Burst::new(site, (every, every * 1.2), count, sizes, life) });
    stage.label(site, BOUNDED);
    stage.others(process);
}

fn generations(stage: &mut Stage, ends: (u64, u64), lives: (f64, f64)) {
    let cgroup = stage.random().whole(100, 9_000);
    let kind = stage.random().pick(&[Kind::PINNED, Kind::DEVICE, Kind::Kernel], Kind::PINNED);
    let rate = stage.random().log_between(1.0, 8.0);
    let around = stage.random().log_between(0.2e6, 4e6) / rate;
    let sizes = Sizes::Log((around / 2.0) as u64, (around * 2.0) as u64);
    let mut generations = Generations::new(&mut stage.world, ("job", cgroup), kind, sizes);
    generations.rate = rate;
    generations.life = Life::Exponential(stage.random().log_between(lives.0, lives.1));
    generations.ends = (u64::MAX, stage.random().whole(ends.0, ends.1));
    generations.gap = stage.random().whole(1, 20);
    if let Some(process) = generations.process {
        stage.label_of(Target::Service(process, kind.domain()), BOUNDED);
    }
    stage.play(generations);
}

fn restarts(stage: &mut Stage) {
    stage.minutes(40.0, 80.0);
    generations(stage, (120, 400), (1.0, 30.0));
}

fn workers(stage: &mut Stage) {
    stage.minutes(30.0, 50.0);
    generations(stage, (5, 40), (0.5, 5.0));
}

fn table(stage: &mut Stage) {
    stage.minutes(30.0, 60.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let bound = stage.random().log_between(16e6, 512e6);
    let fill = stage.random().between(150.0, 420.0);
    let load = Load { noise: 0.2, ..Load::constant() };
    stage.play(Grower::new(site, 1 << 18, bound / fill, (2.0, 0), bound as u64, load));
    stage.label(site, PLATEAU);
    stage.others(process);
}

fn sockets(stage: &mut Stage) {
    let seconds = stage.minutes(30.0, 80.0);
    let process = stage.service();
    let site = stage.site(process, Kind::Kernel);
    let rate = stage.random().log_between(2.0, 20.0);
    let around = stage.random().log_between(20e3, 400e3);
    let sizes = stage.sizes(site, around);
    let life = Life::LogNormal(stage.random().log_between(0.5, 60.0), 0.8);
    let on = stage.random().between(30.0, 300.0);
    let off = stage.random().between(30.0, 300.0);
    let load = if stage.random().chance(0.5) {
        Load::of(Shape::OnOff { on, off })
    } else {
        Load::any(stage.random(), seconds)
    };
    stage.play(Traffic { site, rate, sizes, life, lost: 0.0, lost_from: 0, load });
    stage.label(site, BOUNDED);
    stage.others(process);
}

fn idle(stage: &mut Stage) {
    let seconds = stage.minutes(30.0, 80.0);
    let process = stage.service();
    let rests = stage.random().whole(240, seconds / 3);
    let site = stage.any_site(process);
    let traffic = stage.balanced(site);
    let load = traffic.load.clone().until(rests);
    stage.play(Traffic { load, ..traffic });
    stage.label(site, BOUNDED);
    // What it kept when it went to rest.
    let cached = stage.any_site(process);
    let fill = stage.random().between(60.0, 300.0);
    let rate = stage.random().log_between(0.3, 4.0);
    let around = stage.random().log_between(50e3, 1e6);
    let sizes = stage.sizes(cached, around);
    let mut cache = Cache::new(cached, rate, sizes, Keys::Unique, Load::constant().until(rests));
    cache.limit = (u64::MAX, (rate * fill).min(rate * rests as f64 * 0.9).max(4.0) as usize);
    stage.play(cache);
    stage.label(cached, BOUNDED);
}

fn retention(stage: &mut Stage) {
    stage.minutes(50.0, 100.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let life = Life::Fixed(stage.random().log_between(60.0, 450.0));
    let rate = stage.random().log_between(0.5, 5.0);
    let around = stage.random().log_between(30e3, 1e6);
    let sizes = stage.sizes(site, around);
    let load = Load { noise: 0.3, ..Load::constant() };
    stage.play(Traffic { site, rate, sizes, life, lost: 0.0, lost_from: 0, load });
    stage.label(site, BOUNDED);
    stage.others(process);
}
