//! Probes that fire too often, away for a while.

use std::time::{Duration, Instant};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// The process that makes them fire.
    pub pid: u32,
    /// The functions with this class of pointers, those that give and those that take back:
    /// with only one of the two the books would be wrong.
    pub class: u8,
    /// Firings a second.
    pub firings: u64,
    /// For how long.
    pub pause: Duration,
}

/// Functions of a file that are not probed for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resting {
    pub(super) rest: Rest,
    pub(super) until: Instant,
}

impl Resting {
    /// For coverage.
    pub(super) fn words(&self) -> String {
        let Rest { pid, class: _, firings, pause } = self.rest;
        format!(
            "process {pid} made some of its probes fire {firings} times a second: they are away \
             for {} s, and calls meanwhile are on no books",
            pause.as_secs()
        )
    }
}
