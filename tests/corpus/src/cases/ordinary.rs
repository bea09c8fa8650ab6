//! What every operator meets and is no leak: caches, collectors, queues, load.

use super::{Case, none};
use crate::expect::{BOUNDED, PLATEAU, STEADY};
use crate::load::{Load, Shape};
use crate::stage::Stage;
use crate::workload::{Burst, Cache, Concurrency, Keys, Life, Traffic};
use crate::world::Kind;

pub(super) const CASES: [Case; 10] = [
    none("N balanced", "balanced traffic under any load", balanced),
    none("N collector", "a garbage collector's saw-tooth, up to five minutes", collector),
    none("N expiry", "a cache whose entries expire after minutes", expiry),
    none("N cache and traffic", "a cache and short-lived traffic at one site", cache_and_traffic),
    none("N skewed cache", "a cache of skewed keys that fills ever more slowly", skewed),
    none("N ramp", "load rises, latency stays", ramp),
    none("N closed loop", "more clients, step by step", closed_loop),
    none("N sessions", "sessions of minutes come and go", sessions),
    none("N weights", "weights are loaded for minutes, then nothing", weights),
    none("N long tail", "log-normal lifetimes with a long tail", long_tail),
];

fn balanced(stage: &mut Stage) {
    stage.minutes(25.0, 90.0);
    let process = stage.service();
    for _ in 0..stage.random().whole(1, 4) {
        let site = stage.any_site(process);
        let traffic = stage.balanced(site);
        stage.play(traffic);
        stage.label(site, BOUNDED);
    }
}

/// Traffic at one site, with what lives how long.
fn traffic(stage: &mut Stage, life: Life, load: Load, live: (f64, f64)) {
    let process = stage.service();
    let site = stage.any_site(process);
    let rate = stage.random().log_between(0.5, 8.0);
    let around = stage.random().log_between(live.0, live.1) / rate;
    let sizes = stage.sizes(site, around);
    stage.play(Traffic { site, rate, sizes, life, lost: 0.0, lost_from: 0, load });
    stage.label(site, BOUNDED);
    stage.others(process);
}

fn collector(stage: &mut Stage) {
    let seconds = stage.minutes(40.0, 90.0);
    let life = Life::Collected(stage.random().log_between(15.0, 300.0));
    let load = Load::any(stage.random(), seconds);
    traffic(stage, life, load, (50e3, 4e6));
}

fn expiry(stage: &mut Stage) {
    stage.minutes(40.0, 90.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let rate = stage.random().log_between(0.3, 5.0);
    let around = stage.random().log_between(50e3, 2e6);
    let sizes = stage.sizes(site, around);
    let load = Load { noise: 0.3, ..Load::constant() };
    let mut cache = Cache::new(site, rate, sizes, Keys::Unique, load);
    cache.residence = Some(stage.random().log_between(30.0, 420.0));
    stage.play(cache);
    stage.label(site, BOUNDED);
    stage.others(process);
}

fn cache_and_traffic(stage: &mut Stage) {
    stage.minutes(30.0, 80.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let rate = stage.random().log_between(0.5, 4.0);
    // Full before 5 minutes: beside traffic that frees, nothing tells it from a leak before.
    let fill = stage.random().between(60.0, 180.0);
    let around = stage.random().log_between(50e3, 2e6);
    let sizes = stage.sizes(site, around);
    let load = Load { noise: 0.3, ..Load::constant() };
    let keys = Keys::Recurring((rate * fill * 2.0) as u64);
    let mut cache = Cache::new(site, rate, sizes, keys, load);
    cache.limit = (u64::MAX, (rate * fill) as usize);
    cache.least_recent = true;
    stage.play(cache);
    let traffic = stage.balanced(site);
    stage.play(traffic);
    stage.label(site, BOUNDED);
    stage.others(process);
}

fn skewed(stage: &mut Stage) {
    stage.minutes(60.0, 120.0);
    let process = stage.service();
    let site = stage.any_site(process);
    let keys = stage.random().log_between(40.0, 400.0);
    // All but the rarest keys have come within minutes.
    let rate = keys / stage.random().between(60.0, 200.0);
    let around = stage.random().log_between(100e3, 2e6);
    let sizes = stage.sizes(site, around);
    let load = Load { noise: 0.3, ..Load::constant() };
    stage.play(Cache::new(site, rate, sizes, Keys::Skewed(keys as u64), load));
    stage.label(site, BOUNDED);
    stage.others(process);
}

fn ramp(stage: &mut Stage) {
    let seconds = stage.minutes(40.0, 90.0) as f64;
    let shape = Shape::Ramp {
        from: stage.random().between(0.05, 0.4),
        to: stage.random().between(0.8, 2.0),
        over: seconds * stage.random().between(0.4, 0.9),
    };
    let life = Life::Exponential(stage.random().log_between(0.5, 40.0));
    traffic(stage, life, Load { noise: 0.2, ..Load::of(shape) }, (1e6, 20e6));
}

fn closed_loop(stage: &mut Stage) {
    let seconds = stage.minutes(40.0, 90.0) as f64;
    let process = stage.service();
    let site = stage.any_site(process);
    let around = stage.random().log_between(0.3e6, 8e6);
    let sizes = stage.sizes(site, around);
    let most = stage.random().between(8.0, 60.0);
    let stairs = stage.random().whole(3, 8);
    let length = seconds * 0.75 / stairs as f64;
    let stair = |number: u64| (length, (most * number as f64 / stairs as f64).max(1.0));
    let level = Shape::Steps((1..=stairs).map(stair).collect());
    let takes = stage.random().log_between(1.0, 40.0);
    stage.play(Concurrency { site, level, takes, sizes, flying: Vec::new() });
    stage.label(site, BOUNDED);
    stage.others(process);
}

fn sessions(stage: &mut Stage) {
    stage.minutes(50.0, 100.0);
    let life = Life::Exponential(stage.random().log_between(60.0, 300.0));
    let load = Load { noise: 0.3, ..Load::constant() };
    traffic(stage, life, load, (50e3, 1e6));
}

fn weights(stage: &mut Stage) {
    stage.minutes(20.0, 60.0);
    let process = stage.service();
    let site = stage.site(process, Kind::DEVICE);
    let over = stage.random().between(60.0, 300.0);
    let count = stage.random().whole(30, 300);
    let around = stage.random().log_between(1e6, 200e6);
    let sizes = stage.sizes(site, around);
    let load = Load::constant().until(over as u64);
    let (life, rate) = (Life::Ever, count as f64 / over);
    stage.play(Traffic { site, rate, sizes, life, lost: 0.0, lost_from: 0, load });
    // Over so long a time most of it comes after the first minute.
    stage.label(site, if over > 150.0 { PLATEAU } else { BOUNDED });
    // A short one beside it, all within start-up.
    let first = stage.site(process, Kind::PINNED);
    let sizes = stage.sizes(first, around / 8.0);
    stage.play(Burst { bursts: 1, over: 0.9, ..Burst::new(first, (1.0, 1.0), 8, sizes, life) });
    stage.label(first, STEADY);
}

fn long_tail(stage: &mut Stage) {
    let seconds = stage.minutes(50.0, 100.0);
    let median = stage.random().log_between(0.5, 10.0);
    let life = Life::LogNormal(median, stage.random().between(0.8, 1.4));
    let load = Load::any(stage.random(), seconds);
    traffic(stage, life, load, (0.1e6, 5e6));
}
