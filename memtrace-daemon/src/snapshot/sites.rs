//! Sites: where memory is allocated, with their books and their stacks.

use serde::Serialize;

use super::{Evidence, Frames, Taken, Verdict, site_id};

/// One row of a process' books: (domain, function, site).
#[derive(Clone, Debug, Serialize)]
pub struct Site {
    /// Site id, 16 hex digits; `None` while its stack has no name yet.
    #[serde(serialize_with = "site_id")]
    pub id: Option<u64>,
    /// Domain name.
    pub domain: &'static str,
    /// The function as probed.
    pub api: &'static str,
    /// `process`, `interrupt` or `worker` (kernel domain); `process` elsewhere.
    pub context: &'static str,
    /// Number of the device, as the process counts them, that its memory is on or whose context it
    /// is bound to; `None` where that is not known, has no meaning, or is not one.
    pub device: Option<u8>,
    /// Live bytes; of an ended process' user domains, what it held at its end.
    pub live_bytes: u64,
    /// Live objects.
    pub live_count: u64,
    /// Bytes allocated since attach.
    pub allocated_bytes: u64,
    /// Bytes freed since attach.
    pub freed_bytes: u64,
    /// Objects allocated since attach.
    pub allocations: u64,
    /// Objects freed since attach by frees that were seen.
    pub frees: u64,
    /// Calls that failed.
    pub failures: u64,
    /// Growth of live bytes, bytes a second; `None` while unknown.
    pub growth_bytes_per_second: Option<f64>,
    /// Age of the oldest live object, seconds.
    pub oldest_age_seconds: Option<f64>,
    /// Verdict.
    pub verdict: Verdict,
    /// From 0 to 1.
    pub confidence: Option<f64>,
    /// What the verdict rests on.
    pub evidence: Evidence,
    /// How many allocations one followed allocation stands for; 1 is all.
    pub sampling: f64,
    /// Whether `frames` is a sample among several stacks of this call site.
    pub frames_sampled: bool,
    /// How the stack was taken, and whether it is whole; `None` where there is none.
    pub stack: Option<Taken>,
    /// Frames, innermost first.
    pub frames: Frames,
    /// Stacks seen at this site, heaviest first.
    pub samples: Vec<Sample>,
    /// `"unattributed"` where the stacks of this memory are not known, and similar notes.
    pub note: Option<&'static str>,
}

/// Note of a kernel site that uprobes allocate at: what tracing itself costs the traced process.
/// It is on the books, and it is no news.
pub const OWN_PROBES: &str = "made by uprobes, memtrace's own among them";

/// One stack seen at a sampled site.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Bytes of growth that this stack stands for.
    pub weight_bytes: u64,
    /// Times taken.
    pub count: u64,
    /// Kernel frames, innermost first.
    pub frames: Frames,
    /// Example of a user stack that called.
    pub user_frames: Frames,
}
