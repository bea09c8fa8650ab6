//! What must hold of memtrace's verdicts, whatever the numbers.

use memtrace_common::{LossCause, LossCounter};
use memtrace_corpus::judge::{core, setting};
use memtrace_corpus::load::Load;
use memtrace_corpus::random::Random;
use memtrace_corpus::stage::{Stage, Watcher};
use memtrace_corpus::workload::{Life, Queue, Sizes, Traffic};
use memtrace_corpus::world::{Kind, SiteId, World};
use memtrace_daemon::engine::Core;
use memtrace_daemon::record::{Observation, Record};
use memtrace_daemon::snapshot::Verdict;
use memtrace_daemon::verdict::{Subject, VerdictConfig};
use proptest::prelude::*;

/// The core, and what it said of one site at each look.
struct Listener {
    core: Core,
    site: SiteId,
    said: Vec<Verdict>,
    /// Of all events, how many are said to be lost.
    lost: f64,
    events: u64,
}

impl Watcher for Listener {
    fn record(&mut self, record: &Record) {
        let _ = self.core.apply(record);
        self.events += u64::from(matches!(record, Record::Allocation(_)));
        if let (Record::Tick { now_ns }, true) = (record, self.lost > 0.0) {
            let mut counters = vec![LossCounter::default(); LossCause::ALL.len()];
            if let Some(counter) = counters.get_mut(LossCause::MissedReturn as usize) {
                counter.count = (self.events as f64 * self.lost) as u64;
            }
            let observation = Observation::Loss(counters);
            let _ = self.core.apply(&Record::Observation { now_ns: *now_ns, observation });
        }
    }

    fn look(&mut self, world: &World) {
        let Some(row) = world.look(self.site).map(|site| site.row) else { return };
        let mut verdict = Verdict::Steady;
        self.core.said(&mut |subject, said| {
            if subject == Subject::Row(row) {
                verdict = said;
            }
        });
        self.said.push(verdict);
    }
}

fn listen(stage: Stage, site: SiteId, lost: f64) -> (Vec<Verdict>, Option<f64>) {
    let core = core(VerdictConfig::default(), &[]);
    let mut listener = Listener { core, site, said: Vec::new(), lost, events: 0 };
    let world = stage.run(&mut listener);
    let snapshot = listener.core.snapshot(world.now_ns(), &setting());
    let id = world.look(site).map(|site| site.id);
    let rows = snapshot.processes.iter().flat_map(|process| &process.sites);
    let confidence = rows.filter(|row| row.id == id).find_map(|row| row.confidence);
    (listener.said, confidence)
}

/// The words, in their order.
fn words(mut said: Vec<Verdict>) -> Vec<Verdict> {
    said.dedup();
    said
}

/// Traffic at one site of which a share is lost, at sizes times a factor.
fn leaking(seed: u64, lost: f64, factor: f64, load: Load, seconds: u64) -> (Stage, SiteId) {
    living(seed, (lost, Life::Exponential(2.0)), factor, load, seconds)
}

/// The same, where what is not lost lives for so long.
fn living(
    seed: u64,
    (lost, life): (f64, Life),
    factor: f64,
    load: Load,
    seconds: u64,
) -> (Stage, SiteId) {
    let mut stage = Stage::new(Random::new(seed, "property"));
    stage.seconds = seconds;
    let process = stage.service();
    let site = stage.world.site(process, Kind::PINNED, 1);
    let sizes = Sizes::Log(400_000, 1_600_000).scaled(factor);
    stage.play(Traffic { site, rate: 3.0, sizes, life, lost, lost_from: 0, load });
    (stage, site)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn scaling_all_sizes_changes_no_verdict(
        seed in 0..1_000_u64, lost in prop_oneof![Just(0.0), Just(0.3), Just(1.0)], factor in 4.0..32.0_f64,
    ) {
        // The first minutes apart: until both are above what is judged at all.
        let said = |factor| {
            let (stage, site) = leaking(seed, lost, factor, Load::constant(), 1_500);
            listen(stage, site, 0.0).0
        };
        let (small, large) = (said(4.0), said(4.0 * factor));
        prop_assert_eq!(&small[30..], &large[30..]);
    }

    #[test]
    fn an_idle_phase_makes_no_leak_milder(
        seed in 0..1_000_u64, lost in prop_oneof![Just(0.4), Just(1.0)], rests in 1_000..1_400_u64,
        // For good, or until work goes on.
        idle in prop_oneof![Just(u64::MAX), 300..800_u64],
    ) {
        let load = Load { pauses: vec![(rests, rests.saturating_add(idle))], ..Load::constant() };
        let (stage, site) = leaking(seed, lost, 2.0, load, 2_400);
        let (said, _) = listen(stage, site, 0.0);
        let first = said.iter().position(|verdict| *verdict == Verdict::Leak);
        prop_assert!(first.is_some(), "never called a leak");
        let after = &said[first.unwrap_or(0)..];
        prop_assert!(after.iter().all(|verdict| *verdict == Verdict::Leak), "{:?}", after);
    }

    #[test]
    fn a_balanced_site_beside_changes_nothing(
        seed in 0..1_000_u64, lost in prop_oneof![Just(0.0), Just(0.3), Just(1.0)],
    ) {
        let alone = leaking(seed, lost, 2.0, Load::constant(), 1_500);
        let (mut stage, site) = leaking(seed, lost, 2.0, Load::constant(), 1_500);
        let process = stage.service();
        let other = stage.world.site(process, Kind::DEVICE, 1);
        let balanced = stage.balanced(other);
        stage.play(balanced);
        prop_assert_eq!(listen(alone.0, alone.1, 0.0).0, listen(stage, site, 0.0).0);
    }

    #[test]
    fn a_bounded_queue_is_no_leak(
        seed in 0..1_000_u64, rate in 1.0..6.0_f64, residence in 20.0..400.0_f64,
    ) {
        let mut stage = Stage::new(Random::new(seed, "queue"));
        stage.seconds = residence as u64 * 4 + 900;
        let process = stage.service();
        let site = stage.world.site(process, Kind::MANAGED, 1);
        stage.play(Queue {
            site,
            rate,
            drain: 0.0,
            bound: (rate * residence) as usize,
            sizes: Sizes::Log(100_000, 3_000_000),
            load: Load { noise: 0.4, ..Load::constant() },
            waiting: std::collections::VecDeque::new(),
            bytes: (0, 0),
        });
        let (said, _) = listen(stage, site, 0.0);
        // Full after one residence time, evicting for two more.
        let after = &said[(residence * 3.3 / 10.0) as usize..];
        prop_assert!(!after.contains(&Verdict::Leak), "{:?}", after);
    }

    #[test]
    fn more_loss_makes_nobody_surer(
        seed in 0..1_000_u64, lost in prop_oneof![Just(0.0), Just(0.3), Just(1.0)], share in 0.001..0.2_f64,
    ) {
        let confidence = |share| {
            let (stage, site) = leaking(seed, lost, 2.0, Load::constant(), 1_300);
            listen(stage, site, share).1.unwrap_or(0.0)
        };
        let (none, some, more) = (confidence(0.0), confidence(share), confidence(share * 2.0));
        prop_assert!(none >= some - 1e-9 && some >= more - 1e-9, "{} {} {}", none, some, more);
    }
}

/// What a process does is its time: beside other traffic of its own a word may come a little sooner
/// or later, and is the same word.
#[test]
fn a_balanced_site_of_the_same_process_changes_no_word() {
    for (seed, lost) in (0..8).flat_map(|seed| [0.0, 0.3, 1.0].map(|lost| (seed, lost))) {
        let alone = leaking(seed, lost, 2.0, Load::constant(), 1_500);
        let (mut stage, site) = leaking(seed, lost, 2.0, Load::constant(), 1_500);
        let process = stage.world.look(site).unwrap().process;
        let other = stage.world.site(process, Kind::DEVICE, 1);
        let balanced = stage.balanced(other);
        stage.play(balanced);
        let [alone, beside] =
            [alone, (stage, site)].map(|(stage, site)| listen(stage, site, 0.0).0);
        assert_eq!(words(alone), words(beside), "seed {seed}, {lost} lost");
    }
}

/// Beside what is lost, as much is in flight: it drains in the pause, and nothing that was kept.
#[test]
fn a_pause_that_drains_what_is_in_flight_makes_no_leak_milder() {
    for seed in 0..8 {
        let load = Load { pauses: vec![(1_400, 1_900)], ..Load::constant() };
        let (stage, site) = living(seed, (0.05, Life::Fixed(30.0)), 2.0, load, 2_400);
        let (said, _) = listen(stage, site, 0.0);
        let first = said.iter().position(|verdict| *verdict == Verdict::Leak);
        let after = &said[first.expect("never called a leak")..];
        assert!(after.iter().all(|verdict| *verdict == Verdict::Leak), "seed {seed}: {after:?}");
    }
}
