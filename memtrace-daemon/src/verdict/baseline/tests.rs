//! Each rule on a line, a level and a saw-tooth.

use memtrace_common::{Amount, Domain};

use super::{Outstanding, Quartile, Regression};
use crate::ledger::{FoldedKey, FreedAges, RowKey, RowSample};
use crate::snapshot::Verdict;
use crate::verdict::{Rule, Subject, Surroundings};

const KEY: RowKey = RowKey::Call { space: 1, function: 0x100, stack: 7 };

fn run(rule: &mut dyn Rule, seconds: u64, level: impl Fn(u64) -> u64) -> Verdict {
    for second in 0..seconds {
        let bytes = level(second);
        let sample = RowSample {
            key: KEY,
            domain: Domain::Cuda,
            owner: 1,
            service: FoldedKey::default(),
            owner_ended_ns: None,
            low_bytes: bytes,
            live: Amount { count: 1, bytes },
            allocated: Amount { count: 1, bytes },
            freed: Amount::default(),
            ages: FreedAges::default(),
            cohorts: None,
            live_ages: None,
            first_ns: 0,
            frozen: false,
        };
        rule.observe(second * 1_000_000_000, Surroundings::default(), &mut |each| each(&sample));
    }
    let mut verdict = Verdict::Warming;
    rule.said(&mut |subject, said| {
        if subject == Subject::Row(KEY) {
            verdict = said;
        }
    });
    verdict
}

const MIB: u64 = 1 << 20;

#[test]
fn outstanding_takes_every_large_level_for_a_leak() {
    assert_eq!(run(&mut Outstanding::default(), 1_800, |_| 64 * MIB), Verdict::Leak);
    assert_eq!(run(&mut Outstanding::default(), 300, |_| 64 * MIB), Verdict::Warming);
    let saw_tooth = |second| (second % 120) * MIB;
    assert_eq!(run(&mut Outstanding::default(), 1_800, saw_tooth), Verdict::Steady);
}

#[test]
fn the_quartile_rule_wants_steps() {
    let grows = |second: u64| (64 * MIB) << (second / 600);
    assert_eq!(run(&mut Quartile::default(), 3_600, grows), Verdict::Leak);
    assert_eq!(run(&mut Quartile::default(), 3_600, |_| 64 * MIB), Verdict::Steady);
}

#[test]
fn regression_sees_a_line_and_no_level() {
    let line = |second| 64 * MIB + second * 50_000;
    assert_eq!(run(&mut Regression::default(), 1_800, line), Verdict::Leak);
    assert_eq!(run(&mut Regression::default(), 1_800, |_| 64 * MIB), Verdict::Steady);
    let noise = |second| 64 * MIB + (second * 7_919 % 101) * 10_000;
    assert_eq!(run(&mut Regression::default(), 1_800, noise), Verdict::Steady);
}
