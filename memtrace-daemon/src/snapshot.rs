//! What the engine publishes: an immutable picture of the books and the findings.
//!
//! Reports, metrics and the HTTP routes read this and nothing else. Its serialised form is
//! the JSON dump, schema 1: unknown values are `null`, never absent.

use std::collections::BTreeMap;
use std::ops::Index;
use std::sync::Arc;

use jiff::Timestamp;
use memtrace_common::Amount;
use serde::{Serialize, Serializer};

/// A picture of everything.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// Version of this form.
    pub schema: u32,
    /// When this picture was made.
    pub generated_at: Timestamp,
    /// When the probes were attached.
    pub attached_at: Timestamp,
    /// The host.
    pub host: HostInfo,
    /// Terms of conservation for the host, by domain name.
    pub domains: BTreeMap<&'static str, Terms>,
    /// Which libraries and processes are probed, and which are not, and why.
    pub coverage: Vec<CoverageRow>,
    /// Kinds of memory that memtrace does not see.
    pub not_seen: Vec<String>,
    /// Losses by cause; every cause is there.
    pub loss: BTreeMap<&'static str, Loss>,
    /// Processes with books, running ones and those that ended within 15 minutes.
    pub processes: Vec<Process>,
    /// Growth that is unbalanced, worst first.
    pub findings: Vec<Finding>,
    /// Figures for metrics and `status` that are not part of the dump.
    #[serde(skip)]
    pub runtime: Runtime,
}

/// The host that a snapshot is of.
#[derive(Clone, Debug, Serialize)]
pub struct HostInfo {
    /// Host name.
    pub name: String,
    /// Kernel release.
    pub kernel: String,
    /// Machine, such as `x86_64`.
    pub arch: String,
}

/// An amount as the dump writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(remote = "Amount")]
struct AmountForm {
    bytes: u64,
    count: u64,
}

/// The terms of conservation: seen = live + freed + closed + freed_unseen + dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Terms {
    /// Successful allocations.
    #[serde(with = "AmountForm")]
    pub seen: Amount,
    /// Live (running processes; for the kernel domain, ended ones too).
    #[serde(with = "AmountForm")]
    pub live: Amount,
    /// Freed.
    #[serde(with = "AmountForm")]
    pub freed: Amount,
    /// Given back by the end of a process, an exec or a reset.
    #[serde(with = "AmountForm")]
    pub closed: Amount,
    /// Freed without being seen: the address was handed out again.
    #[serde(with = "AmountForm")]
    pub freed_unseen: Amount,
    /// Seen, but not followed.
    #[serde(with = "AmountForm")]
    pub dropped: Amount,
}

impl Terms {
    /// Whether the equation holds, in bytes and in counts.
    #[must_use]
    pub fn conserved(&self) -> bool {
        let sum = self
            .live
            .saturating_add(self.freed)
            .saturating_add(self.closed)
            .saturating_add(self.freed_unseen)
            .saturating_add(self.dropped);
        self.seen == sum
    }

    /// Adds another's terms to these.
    pub fn add(&mut self, other: &Self) {
        let Self { seen, live, freed, closed, freed_unseen, dropped } = other;
        self.seen = self.seen.saturating_add(*seen);
        self.live = self.live.saturating_add(*live);
        self.freed = self.freed.saturating_add(*freed);
        self.closed = self.closed.saturating_add(*closed);
        self.freed_unseen = self.freed_unseen.saturating_add(*freed_unseen);
        self.dropped = self.dropped.saturating_add(*dropped);
    }
}

/// Terms of one process in one domain, and what moved no bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessTerms {
    /// The terms.
    #[serde(flatten)]
    pub terms: Terms,
    /// Allocating calls that failed.
    pub failures: u64,
    /// Freeing calls that failed.
    pub failed_frees: u64,
    /// Frees of addresses that are not on the books.
    pub unknown_frees: u64,
    /// Successes that gave a null pointer.
    pub empty: u64,
    /// Successes whose size cannot be true.
    pub implausible: u64,
}

/// What was lost to one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Events.
    pub count: u64,
    /// Bytes, where they are known.
    pub bytes: Option<u64>,
}

/// Whether one library file or one process is probed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CoverageRow {
    /// `library` or `process`.
    pub kind: &'static str,
    /// Catalog name of the library, such as `libcudart`.
    pub library: Option<String>,
    /// Path as the process that mapped it has it.
    pub path: Option<String>,
    /// Build id, hex.
    pub build_id: Option<String>,
    /// Device and inode, `major:minor:inode`.
    pub file: Option<String>,
    /// The process that it was found in, if by a process.
    pub pid: Option<u32>,
    /// Whether probes are on it.
    pub attached: bool,
    /// Since when.
    pub attached_at: Option<Timestamp>,
    /// How: `uprobe_multi` or `perf_event`.
    pub by: Option<&'static str>,
    /// Functions probed.
    pub functions: Vec<String>,
    /// Catalog functions that the library does not export.
    pub missing: Vec<String>,
    /// Why not, or what a reader should know.
    pub reason: Option<String>,
}

/// One process with books.
#[derive(Clone, Debug, Serialize)]
pub struct Process {
    /// Process id in the initial pid namespace; 0 for kernel memory taken in interrupts.
    pub pid: u32,
    /// Start, ns since boot.
    pub start_ns: u64,
    /// Parent's process id.
    pub ppid: Option<u32>,
    /// Name.
    pub comm: String,
    /// Arguments joined by spaces.
    pub cmdline: Option<String>,
    /// Cgroup path.
    pub cgroup: Option<String>,
    /// Whether its last thread has ended.
    pub ended: bool,
    /// When.
    pub ended_at: Option<Timestamp>,
    /// What it held before books began.
    pub baseline: Baseline,
    /// Terms by domain name.
    pub domains: BTreeMap<&'static str, ProcessTerms>,
    /// Sites, by live bytes, largest first.
    pub sites: Vec<Site>,
}

/// What a process held when its books began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Baseline {
    /// Whether the process was there before memtrace.
    pub before_attach: bool,
    /// Resident bytes.
    pub rss_bytes: Option<u64>,
    /// Device bytes by NVML.
    pub device_bytes: Option<u64>,
}

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

/// The frames of a stack, innermost first. Shared: a clone costs nothing, and stacks that have
/// frames in common hold them once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frames(Arc<[Arc<Frame>]>);

impl Frames {
    /// Frames in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Frame> + ExactSizeIterator {
        self.0.iter().map(AsRef::as_ref)
    }

    /// The frame at a position.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Frame> {
        self.0.get(index).map(AsRef::as_ref)
    }

    /// Whether anybody else holds the same frames.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// The innermost frame.
    #[must_use]
    pub fn first(&self) -> Option<&Frame> {
        self.get(0)
    }

    /// How many frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Default for Frames {
    fn default() -> Self {
        Self(Arc::from([]))
    }
}

impl FromIterator<Arc<Frame>> for Frames {
    fn from_iter<I: IntoIterator<Item = Arc<Frame>>>(frames: I) -> Self {
        Self(frames.into_iter().collect())
    }
}

impl FromIterator<Frame> for Frames {
    fn from_iter<I: IntoIterator<Item = Frame>>(frames: I) -> Self {
        Self(frames.into_iter().map(Arc::new).collect())
    }
}

impl From<Vec<Frame>> for Frames {
    fn from(frames: Vec<Frame>) -> Self {
        frames.into_iter().collect()
    }
}

impl<'a> IntoIterator for &'a Frames {
    type Item = &'a Frame;
    type IntoIter =
        std::iter::Map<std::slice::Iter<'a, Arc<Frame>>, fn(&'a Arc<Frame>) -> &'a Frame>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(AsRef::as_ref)
    }
}

impl Index<usize> for Frames {
    type Output = Frame;

    #[expect(clippy::indexing_slicing, reason = "this is what indexing means; callers are linted")]
    fn index(&self, index: usize) -> &Frame {
        &self.0[index]
    }
}

impl Serialize for Frames {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

/// One frame of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Frame {
    /// `kernel`, `native` or `python`.
    pub kind: FrameKind,
    /// Function name, demangled.
    pub symbol: Option<String>,
    /// File that holds the code, or the kernel module.
    pub module: Option<String>,
    /// Build id of the module, hex.
    pub build_id: Option<String>,
    /// Native: offset in the file; kernel: offset in the symbol. Bytes.
    pub offset: Option<u64>,
    /// Source file.
    pub file: Option<String>,
    /// Source line.
    pub line: Option<u32>,
    /// Whether the function is inlined into the next frame.
    pub inlined: bool,
    /// Whether the frame belongs to an allocator rather than to its user.
    pub allocator: bool,
    /// Why the frame has no name.
    pub reason: Option<String>,
}

/// Which kind of code a frame is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FrameKind {
    /// Kernel code.
    Kernel,
    /// Compiled user code.
    #[default]
    Native,
    /// An interpreter's frame.
    Python,
}

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

/// Figures about the tracer itself.
#[derive(Clone, Debug, Default)]
pub struct Runtime {
    /// Records consumed, by kind.
    pub records: BTreeMap<&'static str, u64>,
    /// (probe, library) → attached.
    pub probes: BTreeMap<(String, String), bool>,
    /// Traced growth over observed growth, by domain.
    pub explained: BTreeMap<&'static str, f64>,
    /// GPUs as NVML has them: (index, total bytes, used bytes).
    pub devices: Vec<(u32, u64, u64)>,
    /// Run time of each BPF program in seconds, where the kernel's statistics are on.
    pub program_seconds: BTreeMap<String, f64>,
    /// Whether start-up attachment is done.
    pub ready: bool,
}

fn site_id<S: Serializer>(id: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match id {
        Some(id) => serializer.serialize_some(&format!("{id:016x}")),
        None => serializer.serialize_none(),
    }
}
