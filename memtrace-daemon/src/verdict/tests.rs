//! One test a shape of memory over time (shared cases, part A, in small).

use memtrace_common::{Amount, Domain};

use super::*;
use crate::ledger::{FoldedKey, FreedAges};

const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

const KERNEL: RowKey =
    RowKey::Account { serial: 1, context_and_function: 0, call_site: 0x100, detail: 0 };
const CALL: RowKey = RowKey::Call { space: 1, function: 16, stack: 7 };

/// One site, fed second by second.
struct Site {
    verdicts: Verdicts,
    key: RowKey,
    now_ns: u64,
    allocated: Amount,
    freed: Amount,
    surroundings: Surroundings,
    said: Vec<Verdict>,
}

impl Site {
    fn new(key: RowKey) -> Self {
        Self {
            verdicts: Verdicts::new(VerdictConfig::default()),
            key,
            now_ns: 0,
            allocated: Amount::default(),
            freed: Amount::default(),
            surroundings: Surroundings::default(),
            said: Vec::new(),
        }
    }

    fn live(&self) -> u64 {
        self.allocated.bytes - self.freed.bytes
    }

    /// A second in which `allocate` bytes come and `free` bytes go.
    fn second(&mut self, allocate: u64, free: u64) -> Verdict {
        self.now_ns += SECOND;
        let low_bytes = self.live().saturating_sub(free);
        for (amount, bytes) in [(&mut self.allocated, allocate), (&mut self.freed, free)] {
            amount.count += u64::from(bytes > 0);
            amount.bytes += bytes;
        }
        let sample = RowSample {
            key: self.key,
            low_bytes: low_bytes.min(self.live()),
            domain: Domain::Cuda,
            owner: 1,
            service: FoldedKey::default(),
            owner_ended_ns: None,
            live: self.allocated.saturating_sub(self.freed),
            allocated: self.allocated,
            freed: self.freed,
            ages: FreedAges::of([self.freed.count, 0, 0, 0, 0, 0, 0, 0]),
            cohorts: None,
            live_ages: None,
            first_ns: SECOND,
            frozen: false,
        };
        self.surroundings.kernel_growth_bytes = self.live();
        self.verdicts.observe(self.now_ns, self.surroundings, &mut |each| each(&sample));
        let verdict = self.judgement().verdict;
        if self.said.last() != Some(&verdict) {
            self.said.push(verdict);
        }
        verdict
    }

    fn judgement(&self) -> Judgement {
        let facts = RowFacts {
            now_ns: self.now_ns,
            live_bytes: self.live(),
            allocated: self.allocated,
            freed: self.freed,
            first_ns: SECOND,
            ..RowFacts::default()
        };
        self.verdicts.judge(&self.key, &facts)
    }
}

#[test]
fn a_rising_floor_is_growing_and_then_a_leak_and_says_what_would_tell() {
    let mut site = Site::new(CALL);
    for _ in 0..150 {
        site.second(MIB, 0);
    }
    let early = site.judgement();
    assert_eq!(early.verdict, Verdict::Growing);
    assert_eq!(
        early.decided_by,
        [
            "floor rose in 8 of 8 windows of 10 s",
            "6 min 40 s more of this tell",
            "it grew in 8 steps; 12 tell first uses from a leak",
            "no frees seen yet: a cache that fills looks the same"
        ]
    );
    let growth = early.growth_bytes_per_second.unwrap();
    assert!((growth / MIB as f64 - 1.0).abs() < 0.02, "{growth}");
    for _ in 0..400 {
        site.second(MIB, 0);
    }
    assert_eq!(site.said, [Verdict::Warming, Verdict::Growing, Verdict::Leak]);
    let late = site.judgement();
    assert!(late.confidence > early.confidence);
    assert_eq!(late.evidence.freed_share, Some(0.0));
}

#[test]
fn a_leak_that_rests_with_its_process_is_still_a_leak() {
    let mut site = Site::new(CALL);
    for _ in 0..600 {
        site.second(MIB, 0);
    }
    for _ in 0..1_200 {
        assert_eq!(site.second(0, 0), Verdict::Leak);
    }
    // But a site that goes on working without growing does not leak any more.
    for _ in 0..600 {
        site.second(MIB, MIB);
    }
    assert_eq!(site.judgement().verdict, Verdict::Plateau);
}

#[test]
fn a_cache_that_fills_is_a_plateau_in_the_end() {
    let mut site = Site::new(CALL);
    for _ in 0..150 {
        site.second(2 * MIB, 0);
    }
    for _ in 0..600 {
        site.second(2 * MIB, 2 * MIB);
    }
    assert_eq!(site.said, [Verdict::Warming, Verdict::Growing, Verdict::Plateau]);
}

#[test]
fn a_pool_that_stops_asking_is_a_plateau() {
    let mut site = Site::new(CALL);
    for _ in 0..150 {
        site.second(2 * MIB, 0);
    }
    for _ in 0..300 {
        site.second(0, 0);
    }
    assert_eq!(site.judgement().verdict, Verdict::Plateau);
}

#[test]
fn load_that_comes_and_goes_is_steady() {
    let mut site = Site::new(CALL);
    for round in 0..90 {
        let bytes = [2, 8, 32, 8, 2][round % 5] * MIB;
        site.second(bytes, 0);
        for _ in 0..8 {
            site.second(MIB, MIB);
        }
        site.second(0, bytes);
    }
    assert_eq!(site.said, [Verdict::Warming, Verdict::Steady]);
}

#[test]
fn start_up_is_warming_and_then_steady() {
    let mut site = Site::new(CALL);
    for bytes in [200, 80, 40, 20, 10] {
        site.second(bytes * MIB, 0);
    }
    for _ in 0..400 {
        site.second(MIB, MIB);
    }
    assert_eq!(site.said, [Verdict::Warming, Verdict::Steady]);
}

#[test]
fn a_leak_in_rare_steps_is_found_over_the_whole_life() {
    let mut site = Site::new(CALL);
    for second in 0..14_400 {
        // A step in 5 minutes: too few for the fine windows.
        site.second(if second % 300 == 0 { 1_500_000 } else { 0 }, 0);
    }
    assert_eq!(site.judgement().verdict, Verdict::Leak);
    assert!(site.judgement().evidence.window_seconds > 10.0);
}

#[test]
fn what_is_small_has_no_history() {
    let mut site = Site::new(CALL);
    for _ in 0..1_000 {
        site.second(200, 0);
    }
    assert_eq!(site.verdicts.watched(), 0);
    assert_eq!(site.said, [Verdict::Warming, Verdict::Steady]);
    assert_eq!(site.judgement().confidence, None);
}

#[test]
fn rule_12_a_kernel_site_without_frees_that_exceeds_the_slab_is_unreliable() {
    let mut site = Site::new(KERNEL);
    site.surroundings.slab_growth_bytes = Some(MIB);
    for _ in 0..600 {
        site.second(MIB, 0);
    }
    assert_eq!(site.judgement().verdict, Verdict::Unreliable);
    assert!(site.judgement().decided_by[0].contains("kfree_rcu"));
    // The same growth that the slab shows is believed.
    let mut site = Site::new(KERNEL);
    for second in 0..600 {
        site.surroundings.slab_growth_bytes = Some(second * MIB);
        site.second(MIB, 0);
    }
    assert_eq!(site.judgement().verdict, Verdict::Leak);
}

#[test]
fn considerable_loss_while_watched_is_unreliable_and_earlier_loss_is_not() {
    let mut site = Site::new(CALL);
    site.surroundings.calls = Traffic { seen: 10, lost: 1_000 };
    for _ in 0..200 {
        site.surroundings.calls.seen += 1;
        site.second(MIB, 0);
    }
    assert_eq!(site.judgement().verdict, Verdict::Growing);
    assert_eq!(site.judgement().evidence.lost_events, 0);
    for _ in 0..20 {
        site.surroundings.calls.lost += 10;
        site.second(MIB, 0);
    }
    assert_eq!(site.judgement().verdict, Verdict::Unreliable);
    assert_eq!(site.judgement().evidence.lost_events, 200);
}

#[test]
fn kernel_memory_that_outlives_its_process_is_orphaned() {
    let verdicts = Verdicts::new(VerdictConfig::default());
    let mut facts = RowFacts {
        now_ns: 100 * SECOND,
        live_bytes: 2 * MIB,
        orphan_since_ns: Some(90 * SECOND),
        ..RowFacts::default()
    };
    assert_ne!(verdicts.judge(&KERNEL, &facts).verdict, Verdict::Orphaned, "give it time");
    facts.now_ns = 200 * SECOND;
    assert_eq!(verdicts.judge(&KERNEL, &facts).verdict, Verdict::Orphaned);
}

#[test]
fn rows_that_are_gone_are_forgotten() {
    let mut site = Site::new(CALL);
    for _ in 0..30 {
        site.second(MIB, 0);
    }
    assert_eq!(site.verdicts.watched(), 1);
    for second in 31..60 {
        site.verdicts.observe(second * SECOND, Surroundings::default(), &mut |_| {});
    }
    assert_eq!(site.verdicts.watched(), 0);
}

#[test]
fn the_configuration_refuses_what_it_does_not_know() {
    let config: VerdictConfig = toml::from_str("window_seconds = 5.0").unwrap();
    assert_eq!(config.window_ns(), 5 * SECOND);
    assert_eq!(config.leak_windows, VerdictConfig::default().leak_windows);
    assert!(toml::from_str::<VerdictConfig>("windows = 5").is_err());
}
