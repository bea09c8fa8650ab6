//! Rows of part A that are leaks.

use super::{Case, leak};
use crate::expect::{LEAK, LEFT, Target};
use crate::load::Load;
use crate::stage::Stage;
use crate::workload::{Burst, Cache, Generations, Grower, Keys, Life, Queue, Sizes, Traffic};
use crate::world::Kind;

pub(super) const CASES: [Case; 16] = [
    leak("A1", "a little lost per call under balanced traffic, with a pause", a1),
    leak("A3 unique", "a cache without eviction, keys new each time from some moment on", a3),
    leak("A4 unbounded", "a deferred queue that gets more in than out", a4),
    leak("A6", "messages stay in the kernel, their process ends", a6),
    leak("A9", "a list that grows by realloc, a ninth more each time", a9),
    leak("A10", "one block realloc'd ever larger", a10),
    leak("A17", "handles of device memory never released", a17),
    leak("A18 per peer", "mappings opened for each peer and never closed", a18),
    leak("A19", "a leak per call in a stripped library", a19),
    leak("A21", "descriptors lost on shape changes only", a21),
    leak("A23 lost", "one handle of a thousand lost", a23),
    leak("A26", "each adapter that is unloaded leaves something", a26),
    leak("A29", "descriptors leak: kernel memory, in a system call", a29),
    leak("A36", "a string per request never freed", a36),
    leak("A37", "leaks, dies, is started again", a37),
    leak("A43", "a pool carved from mappings, elements never come back", a43),
];

/// Bytes a second that a leak loses: it is to be seen within minutes.
fn rate(stage: &mut Stage) -> f64 {
    stage.random().log_between(20e3, 2e6)
}

fn a1(stage: &mut Stage) {
    let seconds = stage.minutes(25.0, 60.0);
    let process = stage.service();
    let heavy = stage.any_site(process);
    let traffic = stage.balanced(heavy);
    let load = traffic.load.clone().with_pause(stage.random(), seconds);
    stage.play(Traffic { load: load.clone(), ..traffic });
    let site = stage.any_site(process);
    let each = stage.random().log_between(0.5, 8.0);
    let around = rate(stage) / each;
    let sizes = stage.sizes(site, around);
    // Some of these sites give most of it back.
    let lost = stage.random().pick(&[1.0, 1.0, 0.5, 0.2], 1.0);
    let life = Life::Exponential(stage.random().log_between(0.1, 10.0));
    stage.play(Traffic { site, rate: each / lost, sizes, life, lost, lost_from: 0, load });
    stage.label(site, LEAK);
    stage.others(process);
}

fn a3(stage: &mut Stage) {
    stage.minutes(45.0, 70.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let rate = stage.random().log_between(0.1, 0.6);
    let load = Load { noise: 0.2, ..Load::constant() };
    let sizes = stage.sizes(site, 1e6);
    let mut cache = Cache::new(site, rate, sizes, Keys::Recurring(50), load);
    cache.unbounded_from = stage.random().whole(900, 1_500);
    stage.play(cache);
    stage.label(site, LEAK);
    stage.others(process);
}

fn a4(stage: &mut Stage) {
    let seconds = stage.minutes(25.0, 50.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let rate = stage.random().log_between(0.5, 6.0);
    let drain = rate * stage.random().between(0.2, 0.8);
    let lost = self::rate(stage);
    let sizes = stage.sizes(site, lost / (rate - drain));
    let load = Load { noise: stage.random().between(0.0, 0.4), ..Load::constant() };
    let waiting = Default::default();
    let bound = usize::MAX;
    stage.play(Queue { site, rate, drain, bound, sizes, load, waiting, bytes: (0, 0) });
    stage.label(site, LEAK);
    stage.others(process);
    debug_assert!(seconds > 0, "a variant lasts");
}

fn a6(stage: &mut Stage) {
    let seconds = stage.minutes(25.0, 45.0);
    let process = stage.service();
    let site = stage.site(process, Kind::Kernel);
    let each = stage.random().log_between(2.0, 20.0);
    let around = rate(stage) / each;
    let sizes = stage.sizes(site, around);
    let end = seconds - stage.random().whole(60, 420);
    let load = Load::any(stage.random(), seconds);
    let life = Life::Ever;
    stage.play(Traffic {
        site,
        rate: each,
        sizes,
        life,
        lost: 1.0,
        lost_from: 0,
        load: load.until(end),
    });
    stage.end_at(end + 2, process);
    stage.label(site, LEFT);
}

fn a9(stage: &mut Stage) {
    let seconds = stage.minutes(40.0, 80.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let bytes = rate(stage);
    let load = Load::any(stage.random(), seconds);
    let begin = stage.random().log_between(64e3, 4e6) as u64;
    stage.play(Grower::new(site, begin, bytes, (9.0 / 8.0, 0), u64::MAX, load));
    stage.label(site, LEAK);
    stage.others(process);
}

fn a10(stage: &mut Stage) {
    let seconds = stage.minutes(25.0, 50.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let step = stage.random().log_between(1e6, 16e6) as u64;
    let every = stage.random().between(5.0, 40.0);
    let load = Load { noise: 0.3, ..Load::constant() };
    stage.play(Grower::new(site, step, step as f64 / every, (1.0, step), u64::MAX, load));
    stage.label(site, LEAK);
    stage.others(process);
    debug_assert!(seconds > 0, "a variant lasts");
}

/// Objects that come every now and then and are never given back.
fn rare(stage: &mut Stage, kind: Kind, every: (f64, f64), around: f64) {
    let seconds = stage.minutes(25.0, 50.0);
    let process = stage.service();
    let site = stage.site(process, kind);
    let rate = 1.0 / stage.random().log_between(every.0, every.1);
    let sizes = stage.sizes(site, around);
    let load = Load::any(stage.random(), seconds);
    stage.play(Traffic { site, rate, sizes, life: Life::Ever, lost: 1.0, lost_from: 0, load });
    stage.label(site, LEAK);
    stage.others(process);
}

fn a17(stage: &mut Stage) {
    let around = stage.random().log_between(1e6, 8e6);
    rare(stage, Kind::DRIVER, (1.0, 15.0), around);
}

fn a18(stage: &mut Stage) {
    let around = stage.random().log_between(2e6, 64e6);
    rare(stage, Kind::DEVICE, (3.0, 20.0), around);
}

fn a19(stage: &mut Stage) {
    let around = stage.random().log_between(20e3, 400e3);
    let kind = stage.random().pick(&[Kind::PINNED, Kind::Kernel, Kind::MANAGED], Kind::PINNED);
    rare(stage, kind, (0.1, 1.0), around);
}

fn a36(stage: &mut Stage) {
    let around = stage.random().log_between(8e3, 80e3);
    rare(stage, Kind::Kernel, (0.1, 0.4), around);
}

fn a43(stage: &mut Stage) {
    rare(stage, Kind::PINNED, (4.0, 20.0), 2e6);
}

fn a21(stage: &mut Stage) {
    stage.minutes(30.0, 60.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let count = stage.random().whole(2, 20);
    let every = stage.random().log_between(10.0, 40.0);
    let around = rate(stage) * every / count as f64;
    let sizes = stage.sizes(site, around);
    let burst = Burst::new(site, (every * 0.5, every * 1.5), count, sizes, Life::Ever);
    stage.play(Burst { lost: count, ..burst });
    stage.label(site, LEAK);
    let shapes = stage.any_site(process);
    let traffic = stage.balanced(shapes);
    stage.play(traffic);
    stage.others(process);
}

fn a23(stage: &mut Stage) {
    let seconds = stage.minutes(25.0, 50.0);
    let process = stage.service();
    let site = stage.world.site(process, Kind::Kernel, 40);
    let rate = stage.random().between(10.0, 40.0);
    let around = stage.random().log_between(1e6, 12e6);
    let sizes = stage.sizes(site, around);
    let life = Life::Exponential(stage.random().log_between(0.05, 1.0));
    let load = Load::any(stage.random(), seconds);
    // A batch is lost of so many batches: what one handle of a thousand comes to over minutes.
    let lost = stage.random().log_between(0.01, 0.04);
    stage.play(Traffic { site, rate, sizes, life, lost, lost_from: 0, load });
    stage.label(site, LEAK);
    stage.others(process);
}

fn a26(stage: &mut Stage) {
    stage.minutes(25.0, 50.0);
    let process = stage.service();
    let site = stage.site(process, Kind::PINNED);
    let count = stage.random().whole(3, 12);
    let every = stage.random().between(3.0, 10.0);
    let around = stage.random().log_between(0.5e6, 3e6);
    let sizes = stage.sizes(site, around);
    let life = Life::Fixed(stage.random().between(0.2, 4.0));
    let burst = Burst::new(site, (every * 0.7, every * 1.3), count, sizes, life);
    stage.play(Burst { lost: 1, ..burst });
    stage.label(site, LEAK);
    stage.others(process);
}

fn a29(stage: &mut Stage) {
    let seconds = stage.minutes(25.0, 50.0);
    let process = stage.service();
    let site = stage.site(process, Kind::Kernel);
    let each = stage.random().log_between(1.0, 10.0);
    let lost = stage.random().pick(&[1.0, 0.5, 0.1], 1.0);
    let around = rate(stage) / each;
    let sizes = stage.sizes(site, around);
    let life = Life::Exponential(stage.random().log_between(0.05, 5.0));
    let load = Load::any(stage.random(), seconds);
    stage.play(Traffic { site, rate: each / lost, sizes, life, lost, lost_from: 0, load });
    stage.label(site, LEAK);
    stage.others(process);
}

fn a37(stage: &mut Stage) {
    stage.minutes(30.0, 60.0);
    let cgroup = stage.random().whole(100, 9_000);
    let kind = stage.random().pick(&[Kind::PINNED, Kind::DEVICE, Kind::MANAGED], Kind::PINNED);
    let bytes = stage.random().log_between(0.3e6, 3e6);
    let rate = stage.random().between(2.0, 8.0);
    let sizes = Sizes::Log((bytes / rate / 2.0) as u64, (bytes / rate * 2.0) as u64);
    let mut generations = Generations::new(&mut stage.world, ("exporter", cgroup), kind, sizes);
    generations.rate = rate;
    generations.lost = 1.0;
    let seconds = stage.random().between(45.0, 240.0);
    generations.ends = ((bytes * seconds) as u64, u64::MAX);
    generations.gap = stage.random().whole(1, 8);
    if let Some(process) = generations.process {
        stage.label_of(Target::Service(process, kind.domain()), LEAK);
    }
    stage.play(generations);
}
