//! What became of what was allocated when: objects by the time of their allocation, in spans that
//! get wider as they get older.
//!
//! A leak keeps a constant share of every cohort for ever, a cache loses them all after its
//! residence time, load loses them at once. Bounded memory, whatever the rate; never a part of
//! the books' equation.

/// Spans of one width before two of them are joined.
const OF_ONE_WIDTH: usize = 4;
/// Spans get no wider than 2^this windows: what is older is one cohort.
const WIDEST: u32 = 9;

/// Objects that were allocated in one span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cohort {
    /// First window of the span; windows are counted from the clock's zero.
    pub start: u32,
    /// Windows in the span.
    pub width: u32,
    /// Objects allocated.
    pub allocated: u32,
    /// Of these: still live.
    pub live: u32,
    /// Bytes still live.
    pub live_bytes: u64,
}

/// The cohorts of one site, oldest first. Windows without allocations have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cohorts {
    spans: Vec<Cohort>,
}

impl Cohorts {
    /// An object came in `window`. Windows come in order, but for records that are late: these
    /// go to the cohort that was there.
    pub(crate) fn allocated(&mut self, window: u32, bytes: u64) {
        let newest = self.spans.last().map(|cohort| cohort.start + (cohort.width - 1));
        if newest.is_none_or(|newest| newest < window) {
            let cohort = Cohort { start: window, width: 1, allocated: 0, live: 0, live_bytes: 0 };
            if self.spans.len() == self.spans.capacity() {
                // Most sites are used once.
                let more = if self.spans.is_empty() { 1 } else { OF_ONE_WIDTH };
                self.spans.reserve_exact(more);
            }
            self.spans.push(cohort);
            self.join(window);
        }
        if let Some(cohort) = self.of(window) {
            cohort.allocated = cohort.allocated.saturating_add(1);
            cohort.live = cohort.live.saturating_add(1);
            cohort.live_bytes = cohort.live_bytes.saturating_add(bytes);
        }
    }

    /// An object that came in `window` is gone.
    pub(crate) fn freed(&mut self, window: u32, bytes: u64) {
        if let Some(cohort) = self.of(window) {
            cohort.live = cohort.live.saturating_sub(1);
            cohort.live_bytes = cohort.live_bytes.saturating_sub(bytes);
        }
    }

    /// Cohorts, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Cohort> {
        self.spans.iter()
    }

    /// The cohort of a window, or the one that is nearest before it.
    fn of(&mut self, window: u32) -> Option<&mut Cohort> {
        let after = self.spans.partition_point(|cohort| cohort.start <= window);
        self.spans.get_mut(after.saturating_sub(1))
    }

    /// Joins the two oldest of each width of which there are too many. A span is as wide as a
    /// power of two, and begins at a multiple of it.
    fn join(&mut self, now: u32) {
        let mut width = 1_u32;
        let mut end = self.spans.len();
        while width < 1 << WIDEST {
            let narrow = |cohort: &Cohort| cohort.width > width;
            let begin = self.spans.iter().rposition(narrow).map_or(0, |before| before + 1);
            if end.saturating_sub(begin) <= OF_ONE_WIDTH {
                return;
            }
            self.join_pair(begin, width * 2);
            end = self.spans.iter().rposition(|cohort| cohort.width > width).map_or(0, |at| at + 1);
            width *= 2;
        }
        // What is older than everything that is told apart is one cohort.
        while let (Some(first), Some(second)) = (self.spans.first(), self.spans.get(1))
            && now.saturating_sub(second.start) > 4 << WIDEST
        {
            let width = second.start + second.width - first.start;
            self.join_pair(0, width);
        }
    }

    /// Widens the span at `at` to `width`, and takes the next one in if it lies within.
    fn join_pair(&mut self, at: usize, width: u32) {
        let Some(first) = self.spans.get(at).copied() else { return };
        let start = if width.is_power_of_two() { first.start & !(width - 1) } else { first.start };
        let mut joined = Cohort { start, width, ..first };
        if let Some(second) = self.spans.get(at + 1).copied()
            && second.start < start.saturating_add(width)
        {
            joined.allocated = joined.allocated.saturating_add(second.allocated);
            joined.live = joined.live.saturating_add(second.live);
            joined.live_bytes = joined.live_bytes.saturating_add(second.live_bytes);
            self.spans.remove(at + 1);
        }
        if let Some(cohort) = self.spans.get_mut(at) {
            *cohort = joined;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_life_fits_into_few_spans_and_nothing_is_lost() {
        let mut cohorts = Cohorts::default();
        for window in 1_000..60_000 {
            for _ in 0..3 {
                cohorts.allocated(window, 10);
            }
            // One of three lives on.
            cohorts.freed(window, 10);
            if window >= 1_005 {
                cohorts.freed(window - 5, 10);
            }
        }
        let spans: Vec<Cohort> = cohorts.iter().copied().collect();
        assert!(spans.len() <= 64, "{}", spans.len());
        assert_eq!(spans.iter().map(|span| u64::from(span.allocated)).sum::<u64>(), 59_000 * 3);
        let live: u64 = spans.iter().map(|span| u64::from(span.live)).sum();
        assert_eq!(live, 59_005, "{spans:?}");
        assert_eq!(spans.iter().map(|span| span.live_bytes).sum::<u64>(), 590_050);
        for pair in spans.windows(2) {
            assert!(pair[0].start + pair[0].width <= pair[1].start, "{pair:?}");
            assert!(pair[0].width >= pair[1].width, "{pair:?}");
        }
        assert_eq!(spans.last().map(|span| (span.start, span.width)), Some((59_999, 1)));
    }

    #[test]
    fn rare_allocations_are_kept_apart_as_long_as_they_are_few() {
        let mut cohorts = Cohorts::default();
        for window in [10, 500, 501, 90_000] {
            cohorts.allocated(window, 1);
        }
        cohorts.freed(501, 1);
        let live: Vec<(u32, u32)> = cohorts.iter().map(|span| (span.start, span.live)).collect();
        assert_eq!(live, [(10, 1), (500, 1), (501, 0), (90_000, 1)]);
    }
}
