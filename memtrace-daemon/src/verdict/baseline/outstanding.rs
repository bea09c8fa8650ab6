//! What has been outstanding for longer than N: bcc's memleak, read as it is used.
//!
//! Source: `memleak` of bcc (`tools/memleak.py`): every interval (default 5 s) it prints the
//! stacks with the most outstanding bytes, of allocations older than `-o` (default 500 ms).
//! memleak leaves the verdict to its reader; what readers do is to wait until start-up is over
//! and to take what is still outstanding for a leak. So: a site is a leak while it has had a
//! megabyte or more outstanding, in every window, for longer than N = 10 minutes.
//!
//! Simplified: memleak ages each allocation; here it is the lowest level of the last N, which is
//! at most what is older than N at a site that only grows, and less at one with traffic, which
//! is in this rule's favour.

use std::collections::VecDeque;

use super::levels::{Levels, MIN_BYTES, Rows, WINDOW_NS};
use crate::snapshot::Verdict;
use crate::verdict::{Rule, Subject, Surroundings};

/// N, in windows: 10 minutes.
const WINDOWS: usize = (600_000_000_000 / WINDOW_NS) as usize;

/// The rule.
#[derive(Debug, Default)]
pub struct Outstanding {
    levels: Levels<VecDeque<u64>>,
}

impl Rule for Outstanding {
    fn observe(&mut self, now_ns: u64, _surroundings: Surroundings, rows: Rows<'_>) {
        self.levels.observe(now_ns, rows, |levels, bytes| {
            levels.push_back(bytes);
            if levels.len() <= WINDOWS {
                return Verdict::Warming;
            }
            levels.pop_front();
            let lowest = levels.iter().min().copied().unwrap_or(0);
            if lowest >= MIN_BYTES { Verdict::Leak } else { Verdict::Steady }
        });
    }

    fn said(&self, each: &mut dyn FnMut(Subject, Verdict)) {
        self.levels.said(each);
    }
}
