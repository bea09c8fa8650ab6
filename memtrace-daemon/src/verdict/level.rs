//! Something that is only measured: resident memory, host memory that nobody owns. It has no
//! allocations and no frees, so its floor alone must say whether it grows.

use memtrace_common::Amount;

use super::VerdictConfig;
use super::decide::decide;
use super::history::{History, Look};
use super::judge::{Traffic, of_trend};
use super::scratch::Scratch;
use super::weigh::weigh;
use super::words::reasons;
use crate::snapshot::{Evidence, Verdict};

/// Windows without a measurement that are made up for at most.
const MOST_AT_ONCE: u64 = 60;

/// A measured level and its history.
#[derive(Debug, Default)]
pub struct Level {
    history: Option<Box<History>>,
    window_start_ns: u64,
    first_ns: u64,
}

impl Level {
    /// No history yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { history: None, window_start_ns: 0, first_ns: 0 }
    }

    /// Takes a measurement, bytes. More than one a window is fine, and so is a window without.
    pub fn observe(&mut self, config: &VerdictConfig, now_ns: u64, bytes: u64) {
        let live = Amount { count: 0, bytes };
        let history = match &mut self.history {
            Some(history) => history,
            None => {
                (self.window_start_ns, self.first_ns) = (now_ns, now_ns);
                let look = Look { low_bytes: bytes, live, first_ns: now_ns, ..Look::default() };
                let new = History::new(config, now_ns, 0, &look, Traffic::default(), 0);
                self.history.insert(Box::new(new))
            }
        };
        // What is measured always works: its rest is rest, never idleness.
        let look = Look { low_bytes: bytes, live, first_ns: self.first_ns, ..Look::default() };
        history.tick(&look);
        let windows = now_ns.saturating_sub(self.window_start_ns) / config.window_ns().max(1);
        if windows > 0 {
            self.window_start_ns = now_ns;
            // Who has to wait for a turn is measured less often, and grows no faster for that.
            for _ in 0..windows.min(MOST_AT_ONCE) {
                history.end_window(config, now_ns, 0, true);
            }
            history.weighed = weigh(config, history, None, &mut Scratch::default());
            decide(config, history, false, now_ns);
        }
    }

    /// `warming`, `steady`, `growing`, `plateau`, or `leak` where it has risen for as long as a
    /// site without frees must.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.history.as_ref().map_or(Verdict::Warming, |history| history.verdict)
    }

    /// Since when that holds, monotonic ns; 0 before the first measurement.
    #[must_use]
    pub fn since_ns(&self) -> u64 {
        self.history.as_ref().map_or(0, |history| history.since_ns)
    }

    /// What that rests on.
    #[must_use]
    pub fn evidence(&self, config: &VerdictConfig, now_ns: u64) -> Evidence {
        let Some(history) = &self.history else { return Evidence::default() };
        let watched_seconds = Evidence::seconds(now_ns.saturating_sub(history.watched_ns));
        Evidence { watched_seconds, ..of_trend(config, history) }
    }

    /// What decided, or would decide.
    #[must_use]
    pub fn reasons(&self, config: &VerdictConfig, now_ns: u64) -> Vec<String> {
        let Some(history) = &self.history else { return Vec::new() };
        reasons(config, history.verdict, &history.weighed, &self.evidence(config, now_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_to_wait_for_its_measurement_grows_no_faster_for_that() {
        let config = VerdictConfig::default();
        for pause in [10, 70] {
            let mut level = Level::new();
            for second in (0..7_000).step_by(pause) {
                level.observe(&config, second as u64 * 1_000_000_000, second as u64 * 100_000);
            }
            let slope = level.evidence(&config, 7_000_000_000_000).slope_bytes_per_second.unwrap();
            assert!((90_000.0..110_000.0).contains(&slope.value), "every {pause} s: {slope:?}");
        }
    }
}
