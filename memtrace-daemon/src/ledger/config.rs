//! How long and how much the books keep. Never a rule of accounting: these bound memory only.

use serde::{Deserialize, Serialize};

/// Bounds of the books.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LedgerConfig {
    /// How long an ended process stays in dumps, ns; `None` until the books end (`run`).
    pub linger_ns: Option<u64>,
    /// Ended processes kept at a time; of more, those that kept nothing are folded first, and
    /// the oldest of them before others.
    pub max_ended: usize,
    /// How long after a process' end its empty accounts and its rows in kernel maps are kept,
    /// ns. Descriptors are closed after the exit event, and their memory comes back within
    /// 100 ms or so (measured: 16 of 5,493 objects left by then).
    pub reap_after_ns: u64,
    /// Stack samples kept for one kernel account.
    pub max_samples: usize,
    /// Distinct raw stacks kept; about 250 bytes each while named.
    pub max_stacks: usize,
    /// Length of a window, ns: what is allocated in one is one cohort, and age classes double
    /// from there.
    pub window_ns: u64,
}

impl LedgerConfig {
    /// Stacks that one address space may have: an eighth is left to all others.
    pub(super) const fn max_stacks_of_one(&self) -> usize {
        self.max_stacks - self.max_stacks / 8
    }
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self {
            linger_ns: Some(15 * 60 * 1_000_000_000),
            max_ended: 1_000,
            reap_after_ns: 2_000_000_000,
            max_samples: 8,
            max_stacks: 65_536,
            window_ns: 10_000_000_000,
        }
    }
}
