//! Rows of part A that are no leaks.

use super::{Case, none};
use crate::expect::{BOUNDED, GROWING, ORPHANED, PLATEAU, STEADY};
use crate::load::{Load, Shape};
use crate::stage::Stage;
use crate::workload::{Burst, Cache, Concurrency, Grower, Keys, Life, Pool, Queue, Sizes, Traffic};
use crate::world::Kind;

pub(super) const CASES: [Case; 16] = [
    none("A2", "a cache fills in a straight line, then holds at its cap", a2),
    none("A2 beyond", "the same, with a cap beyond the test", a2_beyond),
    none("A3 recurring", "a cache without eviction of fifty recurring keys", a3),
    none("A4 bounded", "a deferred queue with a bound", a4),
    none("A15", "a caching allocator: ever rarer steps, never a free", a15),
    none("A15 load", "the same, one more step when the load changes", a15_load),
    none("A18 once", "mappings opened once at start", a18),
    none("A23", "an arena that doubles, then holds", a23),
    none("A24", "a cache bounded by entries, more shapes than these", a24),
    none("A25", "a pinned pool of powers of two, steps with concurrency", a25),
    none("A31", "an agent attaches and detaches again and again", a31),
    none("A35", "the next payload is loaded before the last is freed, heavy tails", a35),
    none("A38", "the parent is killed, the worker keeps its memory", a38),
    none("A40", "first requests allocate less and less, then all is balanced", a40),
    none("A41", "a pool in the runtime: live returns to zero", a41),
    none("A42", "memory follows the number of requests in flight", a42),
];

/// A cache that is full after so many seconds, if it is.
fn filling(stage: &mut Stage, fill: f64) {
    let process = stage.service();
    let site = stage.any_site(process);
    let rate = stage.random().log_between(0.2, 4.0);
    let bytes = stage.random().log_between(0.2e6, 17e6);
    let sizes = stage.sizes(site, bytes / rate);
    let load = Load { noise: stage.random().between(0.0, 0.4), ..Load::constant() };
    let mut cache = Cache::new(site, rate, sizes, Keys::Unique, load);
    // Measured by entries, so that it is full when it should be, whatever the sizes.
    cache.limit = (u64::MAX, (rate * fill).max(8.0) as usize);
    stage.play(cache);
    let finals = if fill as u64 > stage.seconds { GROWING } else { PLATEAU };
    stage.label(site, finals);
    stage.others(process);
}

fn a2(stage: &mut Stage) {
    stage.minutes(25.0, 60.0);
    let fill = stage.random().between(120.0, 420.0);
    filling(stage, fill);
}

fn a2_beyond(stage: &mut Stage) {
    stage.minutes(4.0, 7.7);
    filling(stage, 1e6);
}

fn a3(stage: &mut Stage) {
    stage.minutes(40.0, 80.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let rate = stage.random().log_between(0.1, 0.5);
    let sizes = stage.sizes(site, 1e6);
    let load = Load { noise: 0.3, ..Load::constant() };
    stage.play(Cache::new(site, rate, sizes, Keys::Recurring(50), load));
    stage.label(site, PLATEAU);
    stage.others(process);
}

fn a4(stage: &mut Stage) {
    let seconds = stage.minutes(25.0, 60.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let rate = stage.random().log_between(0.5, 8.0);
    let fill = stage.random().between(10.0, 400.0);
    let around = stage.random().log_between(50e3, 2e6);
    let sizes = stage.sizes(site, around);
    let load = Load::any(stage.random(), seconds);
    let workload = Queue {
        site,
        rate,
        drain: rate * stage.random().between(0.0, 0.3),
        bound: (rate * fill).max(4.0) as usize,
        sizes,
        load,
        waiting: Default::default(),
        bytes: (0, 0),
    };
    stage.play(workload);
    stage.label(site, BOUNDED);
    stage.others(process);
}

fn pool(stage: &mut Stage, load: Load, round: u64) {
    let process = stage.service();
    let site = stage.site(process, if round == 0 { Kind::PINNED } else { Kind::DEVICE });
    let rate = stage.random().log_between(2.0, 15.0);
    let most = stage.random().log_between(4e6, 128e6);
    let sizes = Sizes::Log((most / 50.0) as u64, most as u64);
    let life = Life::Exponential(stage.random().log_between(0.2, 5.0));
    stage.play(Pool::new(site, rate, sizes, life, round, load));
    stage.label(site, BOUNDED);
    stage.others(process);
}

fn a15(stage: &mut Stage) {
    stage.minutes(40.0, 90.0);
    let load = Load { noise: stage.random().between(0.0, 0.3), ..Load::constant() };
    let round = stage.random().pick(&[2 << 20, 20 << 20], 2 << 20);
    pool(stage, load, round);
}

fn a15_load(stage: &mut Stage) {
    let seconds = stage.minutes(50.0, 90.0) as f64;
    let change = stage.random().between(0.3, 0.6) * seconds;
    let level = stage.random().between(1.5, 3.0);
    pool(stage, Load::of(Shape::Steps(vec![(change, 1.0), (seconds, level)])), 2 << 20);
}

fn a18(stage: &mut Stage) {
    stage.minutes(20.0, 50.0);
    let process = stage.service();
    let site = stage.site(process, Kind::DEVICE);
    let around = stage.random().log_between(2e6, 256e6);
    let sizes = stage.sizes(site, around);
    let over = stage.random().between(1.0, 30.0);
    let count = stage.random().whole(1, 16);
    let burst = Burst::new(site, (1.0, 1.0), count, sizes, Life::Ever);
    stage.play(Burst { bursts: 1, over, ..burst });
    stage.label(site, STEADY);
    stage.others(process);
}

fn a23(stage: &mut Stage) {
    stage.minutes(25.0, 60.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let bound = stage.random().log_between(32e6, 512e6);
    let fill = stage.random().between(150.0, 420.0);
    let load = Load { noise: 0.2, ..Load::constant() };
    // What it has grown to stays: chunks as large as all before them.
    let arena = Grower::new(site, 1 << 20, bound / fill, (2.0, 0), bound as u64, load);
    stage.play(arena.keeping());
    stage.label(site, PLATEAU);
    stage.others(process);
}

fn a24(stage: &mut Stage) {
    stage.minutes(30.0, 70.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let entries = stage.random().log_between(100.0, 1_024.0);
    let shapes = entries * stage.random().between(2.0, 4.0);
    let fill = stage.random().between(150.0, 400.0);
    let rate = entries * 1.3 / fill;
    let around = stage.random().log_between(30e3, 1e6);
    let sizes = stage.sizes(site, around);
    let load = Load { noise: 0.3, ..Load::constant() };
    let mut cache = Cache::new(site, rate, sizes, Keys::Recurring(shapes as u64), load);
    cache.limit = (u64::MAX, entries as usize);
    cache.least_recent = true;
    stage.play(cache);
    stage.label(site, PLATEAU);
    stage.others(process);
}

fn a25(stage: &mut Stage) {
    let seconds = stage.minutes(40.0, 80.0) as f64;
    let length = seconds / stage.random().between(6.0, 10.0);
    let peak = stage.random().between(2.0, 4.0);
    let levels = [1.0, peak / 2.0, peak, peak / 2.0, peak];
    let shape = Shape::Steps(levels.iter().map(|level| (length, *level)).collect());
    pool(stage, Load::of(shape), 0);
}

fn a31(stage: &mut Stage) {
    stage.minutes(25.0, 60.0);
    let process = stage.service();
    for _ in 0..stage.random().whole(1, 3) {
        let site = stage.site(process, Kind::Kernel);
        let every = stage.random().between(4.0, 30.0);
        let count = stage.random().whole(5, 100);
        let around = stage.random().log_between(20e3, 400e3);
        let sizes = stage.sizes(site, around);
        let life = Life::Fixed(every * stage.random().between(0.2, 0.9));
        stage.play(Burst::new(site, (every, every * 1.1), count, sizes, life));
        stage.label(site, BOUNDED);
    }
}

fn a35(stage: &mut Stage) {
    stage.minutes(30.0, 80.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let batch = stage.world.look(site).map_or(1, |site| site.batch()) as f64;
    let least = (stage.random().log_between(50e3, 4e6) / batch).max(16.0) as u64;
    let shape = stage.random().between(1.1, 1.8);
    let load = Load { noise: 0.3, ..Load::constant() };
    let workload = Queue {
        site,
        rate: stage.random().log_between(0.2, 5.0),
        drain: 0.0,
        bound: 1,
        sizes: Sizes::Heavy(least, shape, least.saturating_mul(2_000)),
        load,
        waiting: Default::default(),
        bytes: (0, 0),
    };
    stage.play(workload);
    stage.label(site, BOUNDED);
    stage.others(process);
}

fn a38(stage: &mut Stage) {
    let seconds = stage.minutes(20.0, 40.0);
    let parent = stage.service();
    let worker = stage.service();
    stage.world.set_parent(worker, parent);
    let site = stage.site(worker, Kind::DEVICE);
    let around = stage.random().log_between(8e6, 1e9);
    let sizes = stage.sizes(site, around);
    let burst = Burst::new(site, (1.0, 1.0), 3, sizes, Life::Ever);
    stage.play(Burst { bursts: 1, ..burst });
    let killed = stage.random().whole(120, seconds / 2);
    stage.end_at(killed, parent);
    stage.label(site, ORPHANED);
    stage.others(parent);
}

fn a40(stage: &mut Stage) {
    let seconds = stage.minutes(20.0, 50.0);
    let process = stage.service();
    let site = stage.site(process, Kind::DEVICE);
    let first = stage.random().log_between(40e6, 400e6);
    for (number, share) in [1.0, 0.4, 0.2, 0.1, 0.05].into_iter().enumerate() {
        let bytes = (first * share) as u64;
        let burst = Burst::new(site, (1.0, 1.0), 1, Sizes::Fixed(bytes), Life::Ever);
        let every = stage.random().between(2.0, 9.0);
        stage.play(Burst { bursts: 1, first: (number as f64 * every) as u64, ..burst });
    }
    let sizes = Sizes::Log(100_000, (first * 0.02) as u64);
    let workload = Traffic {
        site,
        rate: stage.random().log_between(0.3, 5.0),
        sizes,
        life: Life::Exponential(stage.random().log_between(0.1, 3.0)),
        lost: 0.0,
        lost_from: 0,
        load: Load::any(stage.random(), seconds),
    };
    stage.play(workload);
    stage.label(site, STEADY);
}

fn a41(stage: &mut Stage) {
    stage.minutes(25.0, 60.0);
    let process = stage.service();
    let site = stage.site(process, Kind::DEVICE);
    let every = stage.random().between(5.0, 60.0);
    let around = stage.random().log_between(1e6, 64e6);
    let sizes = stage.sizes(site, around);
    let life = Life::Fixed(every * stage.random().between(0.1, 0.8));
    let count = stage.random().whole(4, 60);
    stage.play(Burst::new(site, (every, every * 1.2), count, sizes, life));
    stage.label(site, BOUNDED);
    stage.others(process);
}

fn a42(stage: &mut Stage) {
    let seconds = stage.minutes(30.0, 60.0) as f64;
    let process = stage.service();
    let site = stage.any_site(process);
    let around = stage.random().log_between(0.5e6, 8e6);
    let sizes = stage.sizes(site, around);
    let most = stage.random().between(16.0, 48.0);
    let levels = [2.0, most / 4.0, most, most / 4.0, 2.0];
    let level = Shape::Steps(levels.iter().map(|level| (seconds / 5.0, *level)).collect());
    let takes = stage.random().log_between(1.0, 30.0);
    stage.play(Concurrency { site, level, takes, sizes, flying: Vec::new() });
    // It was at its highest 12 minutes before the end or earlier: that is rest, however rarely it
    // rose, and it has come back.
    stage.label(site, STEADY);
    stage.others(process);
}
