//! How long what is allocated lives: the time by which nearly all was freed that was freed at
//! all, and how much of what was allocated so long ago is still there.

use memtrace_common::AGE_CLASSES;

use crate::ledger::{Cohorts, FreedAges};
use crate::snapshot::Survival;

/// Frees that are older than the residence time may undo this share of the growth at most.
const OLDER: f64 = 0.1;

/// Base windows by which nearly all was freed that ever was; 1 where nothing was. `ages` are
/// frees by age while watched, `growth` is by how many objects live memory grew.
pub(super) fn residence(ages: &FreedAges, growth: u64) -> u32 {
    let total: u64 = ages.frees.iter().sum();
    let allowed = (growth as f64 * OLDER).max(total as f64 * 0.001);
    let mut older = 0_u64;
    for (class, frees) in ages.frees.iter().enumerate().rev() {
        older += frees;
        if older as f64 > allowed {
            return ages.until(class);
        }
    }
    1
}

/// Bytes still live of what was allocated within the last `reach` windows, but at least `age`
/// windows ago. Of a span that is only in part so old that part counts as far as as much is left
/// of it as of older ones: of what leaves in the order in which it came nothing may be.
pub(super) fn old_bytes(cohorts: &Cohorts, now: u32, age: u32, reach: u32) -> u64 {
    let (from, until) = (now.saturating_sub(reach), now.saturating_sub(age));
    let (mut bytes, mut allocated, mut live) = (0_u64, 0.0, 0.0);
    for cohort in cohorts.iter() {
        let end = cohort.start.saturating_add(cohort.width);
        if end <= until {
            allocated += f64::from(cohort.allocated);
            live += f64::from(cohort.live);
        }
        if cohort.start < from {
            continue;
        }
        if end <= until {
            bytes = bytes.saturating_add(cohort.live_bytes);
        } else if cohort.start < until && live > 0.0 {
            let part = f64::from(until - cohort.start) / f64::from(cohort.width.max(1));
            let left = f64::from(cohort.allocated) * part * live / allocated;
            let share = (left / f64::from(cohort.live.max(1))).min(part);
            bytes = bytes.saturating_add((cohort.live_bytes as f64 * share) as u64);
        }
    }
    bytes
}

/// Of what was allocated at least 1, 2, 4, 8, … windows ago, how much is still live.
pub(super) fn survival(cohorts: &Cohorts, now: u32, window_seconds: f64) -> Vec<Survival> {
    let mut rows = Vec::new();
    for power in 0..16 {
        let until = now.saturating_sub(1 << power);
        let old =
            cohorts.iter().filter(|cohort| cohort.start.saturating_add(cohort.width) <= until);
        let (allocated, live) = old.fold((0_u64, 0_u64), |(allocated, live), cohort| {
            (allocated + u64::from(cohort.allocated), live + u64::from(cohort.live))
        });
        if allocated == 0 {
            break;
        }
        let age = window_seconds * f64::from(1_u32 << power);
        rows.push(row(age, allocated, live as f64 / allocated as f64));
    }
    rows
}

/// The same where only the ages of frees are known: an estimate after Kaplan and Meier, that
/// takes what is live to be as old as allocations were steady.
pub(super) fn survival_by_ages(
    ages: &[u64; AGE_CLASSES],
    allocated_before: impl Fn(u32) -> u64,
    window_seconds: f64,
) -> Vec<Survival> {
    let mut rows = Vec::new();
    let all = allocated_before(0).max(1) as f64;
    let (mut share, mut freed_younger) = (1.0, 0_u64);
    for (class, frees) in ages.iter().enumerate().take(AGE_CLASSES - 1) {
        let age = 1_u32 << class;
        let allocated = allocated_before(age);
        // Of what was allocated until then as large a part has been freed younger as of all.
        let part = allocated as f64 / all;
        let at_risk = part * (all - freed_younger as f64);
        if at_risk < 1.0 {
            break;
        }
        share *= 1.0 - (*frees as f64 * part / at_risk).min(1.0);
        freed_younger += frees;
        rows.push(row(window_seconds * f64::from(age), allocated, share));
    }
    rows
}

fn row(age_seconds: f64, allocated: u64, share: f64) -> Survival {
    Survival { age_seconds: age_seconds as f32, allocated, share: share as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_frees_count_where_they_could_undo_the_growth() {
        let by_class = |frees, growth| residence(&FreedAges::of(frees), growth);
        assert_eq!(by_class([0; AGE_CLASSES], 100), 1);
        // Heavy traffic that lives for less than a window.
        assert_eq!(by_class([100_000, 0, 0, 0, 0, 0, 0, 0], 50), 1);
        // A collector that frees everything after up to 16 windows.
        assert_eq!(by_class([10, 20, 40, 80, 160, 0, 0, 0], 300), 16);
        // Five old frees are nothing beside 300 objects of growth, and much beside 10.
        assert_eq!(by_class([1_000, 0, 0, 0, 0, 5, 0, 0], 300), 1);
        assert_eq!(by_class([1_000, 0, 0, 0, 0, 5, 0, 0], 10), 32);
    }

    /// 40 windows of 8 objects of 10 bytes each; of each `left` are live once they are 10 windows old.
    fn spans(left: u64) -> Cohorts {
        let mut cohorts = Cohorts::default();
        for window in 1_000..1_040 {
            for _ in 0..8 {
                cohorts.allocated(window, 10);
            }
            for _ in (left..8).filter(|_| window >= 1_010) {
                cohorts.freed(window - 10, 10);
            }
        }
        cohorts
    }

    #[test]
    fn of_a_span_that_is_in_part_old_as_much_counts_as_is_left_of_older_ones() {
        // At least 11 windows old, and at most 25: 14 windows of which two objects each are left.
        // The span that begins before the reach does not count.
        let kept = old_bytes(&spans(2), 1_040, 11, 25);
        assert!((200..=280).contains(&kept), "{kept}");
        // Nothing is left of what is older: what the span has is what is young in it.
        assert_eq!(old_bytes(&spans(0), 1_040, 11, 25), 0);
    }

    #[test]
    fn a_constant_share_survives_a_leak() {
        // A tenth of 1,000 a window is never freed; the rest lives for less than a window.
        let rows = survival_by_ages(
            &[90_000, 0, 0, 0, 0, 0, 0, 0],
            |age| 100_000 - 1_000 * u64::from(age),
            10.0,
        );
        let last = rows.last().unwrap();
        assert!(rows.len() == 7 && (last.share - 0.09).abs() < 0.02, "{rows:?}");
    }
}
