//! The numbers of the first verdict, as the configuration file has them.

use serde::Deserialize;

/// When growth is worth a word, and which word.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VerdictConfig {
    /// Length of a window, seconds. The floor of a window is the lowest live bytes in it.
    pub window_seconds: f64,
    /// Sites younger than this are warming up, seconds.
    pub min_age_seconds: f64,
    /// Sites smaller than this are not judged, bytes.
    pub min_bytes: u64,
    /// Consecutive rising windows that make `growing`.
    pub growing_windows: u32,
    /// Windows that a leak must have been watched for. A cache that fills looks like a leak
    /// until it is full, so this is long.
    pub leak_windows: u32,
    /// Share of these windows that must have risen, 0 to 1.
    pub leak_rising_share: f64,
    /// A site that frees more than this share of what it allocates is not called a leak, 0 to 1.
    pub leak_freed_share: f64,
    /// Windows without a new high floor after which growth has stopped.
    pub plateau_windows: u32,
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
            leak_windows: 45,
            leak_rising_share: 0.9,
            leak_freed_share: 0.5,
            plateau_windows: 12,
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

    /// Windows that a history holds.
    #[must_use]
    pub fn capacity(&self) -> usize {
        usize::try_from(self.leak_windows.clamp(24, 1_000)).unwrap_or(24) + 1
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    // `as` saturates: a negative or huge number of seconds is 0 or for ever.
    (seconds * 1e9) as u64
}
