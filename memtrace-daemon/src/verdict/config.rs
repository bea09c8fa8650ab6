//! The numbers of the verdict, as the configuration file has them. All times are counted in
//! windows, so that one number makes everything faster or slower.

use serde::{Deserialize, Serialize};

/// When growth is worth a word, and which word.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct VerdictConfig {
    /// Length of a window, seconds. The floor of a window is the lowest live bytes in it. Ten
    /// seconds are longer than a request and short enough for 30 of them in 5 minutes.
    pub window_seconds: f64,
    /// Sites younger than this are warming up, seconds: programs allocate what they need to run
    /// in their first minute.
    pub min_age_seconds: f64,
    /// Sites smaller than this are not judged, bytes.
    pub min_bytes: u64,
    /// Windows of growth that make `growing`: a minute.
    pub growing_windows: u32,
    /// Windows of growth that make a `leak` where the site also frees, and what it keeps is
    /// older than what it frees. With the first minute this stays below 5 minutes.
    pub turnover_windows: u32,
    /// Windows of growth that make a `leak` where nothing was ever freed: 8 minutes, since a
    /// cache that fills looks the same until it is full.
    pub leak_windows: u32,
    /// Windows without a new highest floor after which growth has stopped; more where growth
    /// comes in rare steps, or where memory lives for long.
    pub plateau_windows: u32,
    /// New highest floors that a leak must have had where nothing was ever freed: fewer are
    /// first uses of this and that.
    pub leak_steps: u32,
    /// Growth is a trend if chance would rise like this with a smaller probability, 0 to 1.
    pub trend_p: f64,
    /// Late growth over middle growth below which a curve slows down, at first and after half as
    /// long again: what slows down is not a leak yet.
    pub straight: [f64; 2],
    /// Share of events lost while a site was watched that makes its verdict `unreliable`, 0 to 1.
    pub loss_share: f64,
}

impl Default for VerdictConfig {
    fn default() -> Self {
        Self {
            window_seconds: 10.0,
            min_age_seconds: 60.0,
            min_bytes: 1 << 20,
            growing_windows: 6,
            turnover_windows: 22,
            leak_windows: 48,
            plateau_windows: 12,
            leak_steps: 10,
            trend_p: 0.001,
            straight: [0.92, 0.8],
            loss_share: 0.05,
        }
    }
}

impl VerdictConfig {
    /// Length of a window, ns; at least a millisecond.
    #[must_use]
    pub fn window_ns(&self) -> u64 {
        nanoseconds(self.window_seconds).max(1_000_000)
    }

    /// Age at which a site is judged, ns.
    #[must_use]
    pub fn min_age_ns(&self) -> u64 {
        nanoseconds(self.min_age_seconds)
    }

    /// Growth that is worth a word, bytes.
    pub(super) fn min_growth(&self) -> f64 {
        self.min_bytes as f64 / 4.0
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    // `as` saturates: a negative or huge number of seconds is 0 or for ever.
    (seconds * 1e9) as u64
}
