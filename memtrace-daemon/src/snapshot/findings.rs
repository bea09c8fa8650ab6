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

/// Numbers that a person can check. What was not measured, or has no meaning here, is `None`. There
/// is one with each site that is watched, so seven digits are enough where they say enough.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evidence {
    /// Lowest live bytes of the first window.
    pub floor_first_bytes: Option<u64>,
    /// Lowest live bytes of the last window.
    pub floor_last_bytes: Option<u64>,
    /// The same of live objects, of what is counted and has no bytes.
    pub floor_first_objects: Option<u64>,
    /// The same of the last window.
    pub floor_last_objects: Option<u64>,
    /// Windows looked at.
    pub windows: u32,
    /// Length of a window, seconds.
    pub window_seconds: f32,
    /// Windows whose floor was above the one before.
    pub rising_windows: u32,
    /// Growth of the floor: the median slope between any two windows (Theil and Sen), and the
    /// interval that it lies in with 95 %.
    pub slope_bytes_per_second: Option<Interval>,
    /// The same of the number of live objects, objects a second.
    pub slope_objects_per_second: Option<f64>,
    /// How likely floors would rise like this by chance (Mann and Kendall, one-sided, corrected
    /// for autocorrelation), 0 to 1.
    pub trend_p: Option<f64>,
    /// Growth in the later half of what was watched over that in the earlier half: 1 is a
    /// straight line, less slows down. By time, or by the work that the process did where that
    /// says more for growth.
    pub late_over_early: Option<f32>,
    /// Of what was allocated at least so long ago, how much is still live; the shortest first.
    pub survival: Vec<Survival>,
    /// Age by which nearly all was freed that was freed at all, seconds.
    pub residence_seconds: Option<f32>,
    /// Windows with a new highest floor.
    pub new_maxima: u32,
    /// How long ago the last new highest floor was, seconds.
    pub since_maximum_seconds: Option<f32>,
    /// Bytes by which live memory grew an allocation.
    pub bytes_per_allocation: Option<f64>,
    /// Share of everything allocated that was freed, 0 to 1.
    pub freed_share: Option<f32>,
    /// How much of the time that was watched the site had work, 0 to 1.
    pub active_share: Option<f32>,
    /// Allocations a window, late over early: what load alone would make live memory grow by.
    pub load_ratio: Option<f32>,
    /// Events lost while this was watched.
    pub lost_events: u64,
    /// The same as a share of all events, 0 to 1.
    pub lost_share: f32,
    /// Objects whose free was not seen: their address was handed out again.
    pub unseen_frees: u64,
    /// Traced growth over observed growth, where the domain's growth can be observed.
    pub explained_ratio: Option<f32>,
    /// How long it was watched, seconds.
    pub watched_seconds: f32,
    /// Since the first allocation at the site, seconds.
    pub site_age_seconds: Option<f32>,
    /// Since the process was started, seconds.
    pub process_age_seconds: Option<f32>,
}

impl Evidence {
    /// Seconds, as they are here, from nanoseconds.
    #[must_use]
    pub fn seconds(ns: u64) -> f32 {
        (ns as f64 / 1e9) as f32
    }

    /// Of what has no bytes: what was reckoned with an object for a byte is said of objects.
    #[must_use]
    pub fn of_objects(self) -> Self {
        Self {
            floor_first_objects: self.floor_first_bytes,
            floor_last_objects: self.floor_last_bytes,
            slope_objects_per_second: self
                .slope_bytes_per_second
                .map(|slope| slope.value)
                .or(self.slope_objects_per_second),
            floor_first_bytes: None,
            floor_last_bytes: None,
            slope_bytes_per_second: None,
            bytes_per_allocation: None,
            ..self
        }
    }
}

/// A value, and the interval that it lies in with 95 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// The value.
    pub value: f64,
    /// Upper end.
    pub high: f64,
}

/// Of what was allocated at least so long ago, how much is still live. There are up to 16 of them
/// with each site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Survival {
    /// At least so long ago, seconds.
    pub age_seconds: f32,
    /// Objects allocated at least so long ago.
    pub allocated: u64,
    /// Share of them that is still live, 0 to 1.
    pub share: f32,
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
