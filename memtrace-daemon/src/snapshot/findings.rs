//! Findings: verdicts, and the numbers that they rest on.

use jiff::Timestamp;
use serde::Serialize;

use super::site_id;

/// What is said about growth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Live bytes are bounded.
    Steady,
    /// Young: growth may be start-up.
    #[default]
    Warming,
    /// Unbalanced so far; cannot tell yet.
    Growing,
    /// Grew, then held.
    Plateau,
    /// The floor rises without bound, old allocations are not freed.
    Leak,
    /// The process holds memory that its live allocations do not explain.
    Fragmentation,
    /// Held after its owner's parent or process ended.
    Orphaned,
    /// Too much was lost or unseen to say.
    Unreliable,
}

impl Verdict {
    /// The word that reports and metrics use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Warming => "warming",
            Self::Growing => "growing",
            Self::Plateau => "plateau",
            Self::Leak => "leak",
            Self::Fragmentation => "fragmentation",
            Self::Orphaned => "orphaned",
            Self::Unreliable => "unreliable",
        }
    }
}

/// Numbers that a person can check.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evidence {
    /// Lowest live bytes of the first window.
    pub floor_first_bytes: Option<u64>,
    /// Lowest live bytes of the last window.
    pub floor_last_bytes: Option<u64>,
    /// Windows looked at.
    pub windows: u32,
    /// Length of a window, seconds.
    pub window_seconds: f64,
    /// Windows whose floor was above the one before.
    pub rising_windows: u32,
    /// Bytes by which live memory grew an allocation.
    pub bytes_per_allocation: Option<f64>,
    /// Share of everything allocated that was freed, 0 to 1.
    pub freed_share: Option<f64>,
    /// Events lost while this was watched.
    pub lost_events: u64,
    /// How long it was watched, seconds.
    pub watched_seconds: f64,
}

/// Growth that is unbalanced, or another thing that a person should know.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// `site`, `process`, `service` or `host`.
    pub level: &'static str,
    /// Domain name.
    pub domain: &'static str,
    /// Process ids concerned.
    pub processes: Vec<u32>,
    /// Their name.
    pub comm: String,
    /// Site id, at level `site`.
    #[serde(serialize_with = "site_id")]
    pub site: Option<u64>,
    /// First frame that is the user's, for a headline.
    pub function: Option<String>,
    /// Verdict.
    pub verdict: Verdict,
    /// From 0 to 1.
    pub confidence: Option<f64>,
    /// Since when the verdict holds.
    pub since: Timestamp,
    /// When memory will be gone at this rate.
    pub exhaustion: Option<Exhaustion>,
    /// What the verdict rests on.
    pub evidence: Evidence,
    /// What decided, or would decide.
    pub decided_by: Vec<String>,
}

/// When memory will be gone at the present rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Exhaustion {
    /// Seconds from now.
    pub seconds: f64,
    /// Of what: `host`, a cgroup's path, `cuda:0`.
    pub of: String,
}
