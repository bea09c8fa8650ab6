//! How much of what is live became old while growth was watched, where only live bytes by age
//! class are known: kernel memory.
//!
//! What was there when watching began gets old too, and is no growth. So what counts of an age
//! is what is that old beyond what was when the beginning itself became that old: until then
//! everything of that age is from before. What is freed of it later makes the answer too small,
//! never too large.

use memtrace_common::AGE_CLASSES;

use crate::ledger::{FreedAges, LiveAges};

/// Windows after which what was last told is no answer any more: a scan comes once a window.
const STALE: u64 = 3;

/// Old bytes of one subject.
#[derive(Debug, Default)]
pub(super) struct Old {
    /// When watching began, monotonic ns.
    since_ns: u64,
    /// Boxed: of most subjects nothing is ever told.
    told: Option<Box<Told>>,
}

/// What was told of a subject.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// Bytes of each class or older that are from before, and for which classes that is known.
    before: [u64; AGE_CLASSES],
    known: [bool; AGE_CLASSES],
    /// The last time; `None` where that is too long ago.
    now: Option<LiveAges>,
}

impl Old {
    /// Begins to watch: what is live now is from before.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.since_ns = now_ns;
        if let Some(told) = &mut self.told {
            **told = Told { now: told.now, ..Told::default() };
            if let Some(ages) = told.now {
                told.take(&ages, now_ns, u64::MAX);
            }
        }
    }

    /// Looks at what was last told.
    pub(super) fn look(&mut self, now_ns: u64, window_ns: u64, told: Option<LiveAges>) {
        let stale_ns = window_ns.saturating_mul(STALE);
        let now = told.filter(|ages| now_ns.saturating_sub(ages.time_ns) <= stale_ns);
        if now == self.told.as_ref().and_then(|told| told.now) {
            return;
        }
        let told = self.told.get_or_insert_default();
        told.now = now;
        if let Some(ages) = now {
            told.take(&ages, self.since_ns, window_ns);
        }
    }

    /// Bytes allocated since watching began, and no longer than `reach` windows ago, that are
    /// live and at least `age` windows old; `None` where that cannot be told.
    pub(super) fn more(&self, age: u32, reach: u32) -> Option<u64> {
        let Told { before, now, .. } = self.told.as_deref()?;
        let ages = now.as_ref()?;
        // Class n begins at 2^(n − 1) windows.
        let class = age.max(1).next_power_of_two().ilog2() as usize + 1;
        let more = at_least(ages, class).saturating_sub(*before.get(class)?);
        let within = ages.bytes.iter().enumerate().skip(class);
        let within = within.filter(|(class, _)| FreedAges::begins(*class) < reach);
        Some(more.min(within.map(|(_, bytes)| bytes).sum()))
    }
}

impl Told {
    fn take(&mut self, ages: &LiveAges, since_ns: u64, window_ns: u64) {
        let since = ages.time_ns.saturating_sub(since_ns);
        let places = self.before.iter_mut().zip(&mut self.known);
        for (class, (before, known)) in places.enumerate() {
            // A scan comes a little after its window's end, so half a window more.
            let until = u64::from(FreedAges::begins(class))
                .saturating_mul(window_ns)
                .saturating_add(window_ns / 2);
            if !*known || since < until {
                *before = at_least(ages, class);
                *known = true;
            }
        }
    }
}

/// Bytes of this class and of older ones.
fn at_least(ages: &LiveAges, class: usize) -> u64 {
    ages.bytes.iter().skip(class).fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 10;

    /// Told at the end of a window, of what was allocated (window, bytes).
    fn told(window: u64, live: &[(u64, u64)]) -> LiveAges {
        let mut ages = LiveAges { time_ns: window * WINDOW, bytes: [0; AGE_CLASSES] };
        for (born, bytes) in live {
            let class =
                window.saturating_sub(*born).checked_ilog2().map_or(0, |log| log as usize + 1);
            ages.bytes[class.min(AGE_CLASSES - 1)] += bytes;
        }
        ages
    }

    fn watched(windows: u64, live: impl Fn(u64) -> Vec<(u64, u64)>) -> Old {
        let mut old = Old::default();
        for window in 1..=windows {
            old.look(window * WINDOW, WINDOW, Some(told(window, &live(window))));
            if window == 6 {
                old.begin(window * WINDOW);
            }
        }
        old
    }

    #[test]
    fn what_was_there_before_does_not_count_when_it_gets_old() {
        // 1,000 bytes from before, and in flight what lives for less than two windows.
        let old = watched(40, |now| vec![(5, 1_000), (now, 50), (now - 1, 50)]);
        for age in [2, 4, 8, 16] {
            assert_eq!(old.more(age, 100), Some(0), "{age}");
        }
    }

    #[test]
    fn what_is_kept_counts_once_it_is_old() {
        // 10 bytes a window are kept from the beginning on.
        let old = watched(30, |now| (1..=now).map(|born| (born, 10)).collect());
        // Born in windows 7 to 28: at least 2 old.
        assert_eq!(old.more(2, 100), Some(220));
        assert_eq!(old.more(4, 100), Some(200));
        // Classes that begin within the reach: 2 and 4 windows old, below 8.
        assert_eq!(old.more(2, 8), Some(60));
        // More than 64 windows old nothing can be told.
        assert_eq!(old.more(65, 100), None);
    }

    #[test]
    fn what_was_told_long_ago_says_nothing() {
        let mut old = watched(30, |now| (1..=now).map(|born| (born, 10)).collect());
        let last = told(30, &[(1, 10)]);
        old.look(33 * WINDOW, WINDOW, Some(last));
        assert!(old.more(2, 100).is_some());
        old.look(34 * WINDOW, WINDOW, Some(last));
        assert_eq!(old.more(2, 100), None);
        // Told for the first time when the beginning was old: all of it is from before.
        let mut late = Old::default();
        late.begin(0);
        late.look(30 * WINDOW, WINDOW, Some(told(30, &[(3, 500)])));
        assert_eq!(late.more(2, 100), Some(0));
    }
}
