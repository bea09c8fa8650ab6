//! What is said about something that was measured rather than booked.
//!
//! A measurement never says `leak`: it knows of no allocation that was kept, and growth of it
//! has other explanations (a cache that fills, an allocator that gives nothing back). It says
//! `growing`, and what would decide.

use super::{Judgement, Level, VerdictConfig};
use crate::snapshot::{Evidence, Verdict};

/// What a measurement says.
#[derive(Clone, Debug)]
pub struct Said {
    /// Serial of the process that it is about.
    pub serial: Option<u32>,
    /// A process that it is about and that there is not any more. Where there is neither it is
    /// about the host.
    pub gone: Option<Gone>,
    /// The domain that is nearest to what was measured; `host` where none is.
    pub domain: &'static str,
    /// The verdict and what it rests on.
    pub judgement: Judgement,
}

/// A process that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Its thread group id.
    pub pid: u32,
    /// Its name; empty where nobody knows it.
    pub comm: String,
}

/// The word of a level of its own, without what a measurement cannot know.
pub(super) fn word(level: &Level) -> Verdict {
    match level.verdict() {
        Verdict::Leak => Verdict::Growing,
        word => word,
    }
}

/// Growth that evidence shows, bytes a second.
pub(super) fn growth(evidence: &Evidence) -> Option<f64> {
    let slope = evidence.slope_bytes_per_second.map(|slope| slope.value);
    let floors = || {
        let (first, last) = (evidence.floor_first_bytes?, evidence.floor_last_bytes?);
        let seconds =
            f64::from(evidence.windows.checked_sub(1)?) * f64::from(evidence.window_seconds);
        (seconds > 0.0).then(|| (last as f64 - first as f64) / seconds)
    };
    slope.or_else(floors)
}

/// A level that is not remembered before it has grown: most never do.
#[derive(Debug, Default)]
pub(super) struct Rise {
    first: Option<u64>,
    level: Option<Box<Level>>,
}

impl Rise {
    /// Takes a measurement; it is worth remembering from `worth` bytes above the first one on.
    pub(super) fn observe(&mut self, config: &VerdictConfig, now_ns: u64, bytes: u64, worth: u64) {
        let first = *self.first.get_or_insert(bytes);
        if bytes >= first.saturating_add(worth) || self.level.is_some() {
            self.level.get_or_insert_default().observe(config, now_ns, bytes);
        }
    }

    pub(super) fn grows(&self) -> bool {
        self.level.as_ref().is_some_and(|level| word(level) == Verdict::Growing)
    }

    pub(super) fn evidence(&self, config: &VerdictConfig, now_ns: u64) -> Evidence {
        self.level.as_ref().map_or_else(Evidence::default, |level| level.evidence(config, now_ns))
    }
}
