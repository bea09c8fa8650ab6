//! What the engine publishes: an immutable picture of the books and the findings.
//!
//! Reports, metrics and the HTTP routes read this and nothing else. Its serialised form is
//! the JSON dump, schema 1: unknown values are `null`, never absent.

mod findings;
mod frames;
mod sites;

use std::collections::BTreeMap;

use jiff::Timestamp;
use memtrace_common::Amount;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use findings::{Evidence, Exhaustion, Finding, Interval, Survival, Verdict};
pub use frames::{Frame, FrameKind, Frames, Taken, TakenBy};
pub use sites::{OWN_PROBES, Sample, Site};

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
#[derive(Clone, Debug, Serialize, Deserialize)]
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

/// What records that a recording lacks are called among the losses; where there are none it is
/// no row, since only a replay can have them.
pub const RECORDING_GAP: &str = "recording_gap";

/// One of a few words. By this name serde does not take it for text to be borrowed.
pub type Word = &'static str;

/// Whether one library file or one process is probed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverageRow {
    /// `library` or `process`.
    #[serde(deserialize_with = "kind")]
    pub kind: Word,
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
    #[serde(deserialize_with = "by")]
    pub by: Option<Word>,
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
    /// What it holds now, as measured beside the books.
    pub measured: Measured,
    /// Terms by domain name.
    pub domains: BTreeMap<&'static str, ProcessTerms>,
    /// Live device memory by device; of an ended process nothing.
    pub devices: Vec<OnDevice>,
    /// Sites, by live bytes, largest first.
    pub sites: Vec<Site>,
}

/// Live device memory on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OnDevice {
    /// Number of the device as the process counts them; `None` where that is not known.
    pub device: Option<u8>,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live objects.
    pub live_count: u64,
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

/// What a process holds by the kernel's and the driver's own count when it was last looked at,
/// to be held against the books. What was not looked at, or cannot be seen, is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// Resident anonymous bytes.
    pub anonymous_bytes: Option<u64>,
    /// Anonymous bytes that are swapped out.
    pub swap_bytes: Option<u64>,
    /// Resident bytes of shared memory.
    pub shared_bytes: Option<u64>,
    /// Resident bytes of mapped files.
    pub file_bytes: Option<u64>,
    /// Of the anonymous bytes, those in transparent huge pages.
    pub anonymous_huge_bytes: Option<u64>,
    /// Bytes of address space.
    pub virtual_bytes: Option<u64>,
    /// Threads.
    pub threads: Option<u32>,
    /// Device bytes by NVML.
    pub device_bytes: Option<u64>,
    /// Limit of the cgroup that it comes up against first, bytes.
    pub cgroup_limit_bytes: Option<u64>,
    /// What counts against that limit and cannot be taken back, bytes.
    pub cgroup_used_bytes: Option<u64>,
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

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
    one_of(&["library", "process"], &String::deserialize(deserializer)?)
}

fn by<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Word>, D::Error> {
    let word = Option::<String>::deserialize(deserializer)?;
    word.map(|word| one_of(&["uprobe_multi", "perf_event"], &word)).transpose()
}

fn one_of<E: serde::de::Error>(words: &'static [Word], word: &str) -> Result<Word, E> {
    let known = words.iter().find(|known| **known == word);
    known.copied().ok_or_else(|| E::unknown_variant(word, words))
}
