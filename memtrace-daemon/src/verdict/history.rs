//! What is remembered of one row: the floors of its windows, and where watching began.

use memtrace_common::Amount;

use super::VerdictConfig;
use super::judge::Traffic;
use super::series::{Series, Trend};
use crate::ledger::RowSample;
use crate::snapshot::Verdict;

/// The history of one row.
#[derive(Debug)]
pub(super) struct History {
    /// The last windows.
    pub(super) recent: Series,
    /// All windows, in ever wider ones: a step an hour rises in no ten-second window's run.
    pub(super) whole: Series,
    /// What the two said at the end of the last window.
    pub(super) recent_trend: Trend,
    pub(super) whole_trend: Trend,
    /// When watching began, ns.
    pub(super) watched_ns: u64,
    /// Counters when watching began.
    pub(super) allocated: Amount,
    pub(super) freed: Amount,
    pub(super) live_bytes: u64,
    pub(super) traffic: Traffic,
    /// Windows watched, those with a new highest floor, and how long ago the last of them was:
    /// in windows, and in windows with allocations.
    pub(super) windows: u32,
    pub(super) rises: u32,
    pub(super) since_rise: u32,
    pub(super) active_since_rise: u32,
    /// Highest floor so far.
    pub(super) high: u64,
    /// The floor when the row was old enough to be judged.
    pub(super) base: Option<u64>,
    /// What was last said, and since when.
    pub(super) verdict: Verdict,
    pub(super) since_ns: u64,
    /// The last look at which the row was there.
    pub(super) round: u64,
    low_bytes: u64,
    allocations: u64,
}

impl History {
    pub(super) fn new(
        now_ns: u64,
        sample: &RowSample<'_>,
        traffic: Traffic,
        config: &VerdictConfig,
    ) -> Self {
        Self {
            recent: Series::new(config.capacity(), false),
            whole: Series::new(config.capacity(), true),
            recent_trend: Trend::default(),
            whole_trend: Trend::default(),
            watched_ns: now_ns,
            allocated: sample.allocated,
            freed: sample.freed,
            live_bytes: sample.live.bytes,
            traffic,
            windows: 0,
            rises: 0,
            since_rise: 0,
            active_since_rise: 0,
            high: 0,
            base: None,
            verdict: Verdict::Warming,
            since_ns: now_ns,
            round: 0,
            low_bytes: sample.live.bytes,
            allocations: sample.allocated.count,
        }
    }

    pub(super) fn tick(&mut self, sample: &RowSample<'_>) {
        self.low_bytes = self.low_bytes.min(sample.low_bytes);
    }

    pub(super) fn end_window(&mut self, sample: &RowSample<'_>) {
        let floor = self.low_bytes;
        self.recent.push(floor);
        self.whole.push(floor);
        self.recent_trend = self.recent.trend();
        self.whole_trend = self.whole.trend();
        let active = sample.allocated.count != self.allocations;
        if self.windows > 0 && floor > self.high {
            self.rises += 1;
            self.since_rise = 0;
            self.active_since_rise = 0;
        } else {
            self.since_rise += 1;
            self.active_since_rise += u32::from(active);
        }
        self.windows += 1;
        self.high = self.high.max(floor);
        self.allocations = sample.allocated.count;
        self.low_bytes = sample.live.bytes;
    }

    /// Whether the row was large at any time that is still remembered.
    pub(super) fn matters(&self, watch_bytes: u64) -> bool {
        self.windows == 0 || self.low_bytes >= watch_bytes || self.recent.highest() >= watch_bytes
    }

    /// Windows without growth after which growth is over: where it comes in rare steps, three
    /// times the usual distance between them.
    pub(super) fn patience(&self, plateau_windows: u32) -> u32 {
        let distance = self.windows / self.rises.max(1);
        if self.rises < 3 { plateau_windows } else { plateau_windows.max(distance * 3) }
    }
}
