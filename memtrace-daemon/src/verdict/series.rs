//! A row of floors in bounded memory: the last windows, or the whole life in ever wider ones.

use std::collections::VecDeque;

/// Floors of consecutive windows, oldest first.
#[derive(Debug)]
pub(super) struct Series {
    floors: VecDeque<u64>,
    capacity: usize,
    /// When full: join neighbours (and double the width) instead of dropping the oldest.
    widening: bool,
    /// Base windows in one entry.
    pub(super) width: u32,
    pending: u64,
    pending_windows: u32,
}

/// What a series says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Trend {
    /// Entries.
    pub(super) windows: u32,
    /// Entries above the one before.
    pub(super) rising: u32,
    /// Rising entries in a row, up to the last one.
    pub(super) run: u32,
    /// First floor, bytes.
    pub(super) first: u64,
    /// Last floor, bytes.
    pub(super) last: u64,
    /// Share of the growth that is in the second half; 0 where there is no growth.
    pub(super) late_share: f64,
}

impl Series {
    pub(super) fn new(capacity: usize, widening: bool) -> Self {
        Self {
            floors: VecDeque::new(),
            capacity: capacity.max(4),
            widening,
            width: 1,
            pending: u64::MAX,
            pending_windows: 0,
        }
    }

    /// Adds the floor of one base window.
    pub(super) fn push(&mut self, floor: u64) {
        self.pending = self.pending.min(floor);
        self.pending_windows += 1;
        if self.pending_windows < self.width {
            return;
        }
        if self.floors.len() >= self.capacity {
            if self.widening {
                self.join();
            } else {
                self.floors.pop_front();
            }
        }
        if self.pending_windows >= self.width {
            self.floors.push_back(self.pending);
            self.pending = u64::MAX;
            self.pending_windows = 0;
        }
    }

    fn join(&mut self) {
        let floors = std::mem::take(&mut self.floors);
        let mut floors = floors.into_iter();
        while let Some(first) = floors.next() {
            let joined = floors.next().map(|second| first.min(second));
            // An odd one out is half of an entry that is still being filled.
            match joined {
                Some(floor) => self.floors.push_back(floor),
                None => {
                    self.pending = self.pending.min(first);
                    self.pending_windows += self.width;
                }
            }
        }
        self.width = self.width.saturating_mul(2);
    }

    /// The highest floor that is still held.
    pub(super) fn highest(&self) -> u64 {
        self.floors.iter().copied().max().unwrap_or(0)
    }

    pub(super) fn trend(&self) -> Trend {
        let mut trend = Trend {
            windows: u32::try_from(self.floors.len()).unwrap_or(u32::MAX),
            first: self.floors.front().copied().unwrap_or(0),
            last: self.floors.back().copied().unwrap_or(0),
            ..Trend::default()
        };
        for (before, after) in self.floors.iter().zip(self.floors.iter().skip(1)) {
            if after > before {
                trend.rising += 1;
                trend.run += 1;
            } else {
                trend.run = 0;
            }
        }
        let middle = self.floors.get(self.floors.len() / 2).copied().unwrap_or(0);
        let growth = trend.last.saturating_sub(trend.first);
        if growth > 0 {
            trend.late_share = trend.last.saturating_sub(middle) as f64 / growth as f64;
        }
        trend
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_widening_series_holds_the_whole_life() {
        let mut series = Series::new(4, true);
        for floor in 1..=100 {
            series.push(floor);
        }
        let trend = series.trend();
        assert_eq!(trend.first, 1, "the beginning is kept");
        assert!(trend.windows <= 4 && series.width >= 25);
        assert_eq!(trend.rising, trend.windows - 1);
    }

    #[test]
    fn a_sliding_series_holds_the_last_windows() {
        let mut series = Series::new(4, false);
        for floor in [9, 9, 1, 2, 3, 3, 4] {
            series.push(floor);
        }
        let trend = series.trend();
        assert_eq!((trend.windows, trend.first, trend.last), (4, 2, 4));
        assert_eq!((trend.rising, trend.run), (2, 1));
        assert_eq!(trend.late_share, 0.5);
    }
}
