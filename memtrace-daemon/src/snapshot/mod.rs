//! What the engine publishes: an immutable picture of the books and the findings.
//!
//! Reports, metrics and the HTTP routes read this and nothing else. Its serialised form is
//! the JSON dump, schema 1: unknown values are `null`, never absent.

mod coverage;
mod devices;
mod findings;
mod frames;
mod latency;
mod sites;

use std::collections::BTreeMap;

use jiff::Timestamp;
use memtrace_common::Amount;
use serde::{Deserialize, Serialize, Serializer};

pub use coverage::{CoverageRow, Word};
pub use devices::{Device, DeviceProcess, ProcessDevice, difference};
pub use findings::{Evidence, Exhaustion, Finding, Interval, Survival, Verdict};
pub use frames::{Frame, FrameKind, Frames, Taken, TakenBy};
pub use latency::CallLatency;
pub use sites::{OWN_PROBES, Sample, Site, SiteEvidence};

/// A picture of everything.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// Version of this form.
    pub schema: u32,
    /// When this picture was made.
    pub generated_at: Timestamp,
    /// When the probes were attached.
    pub attached_at: Timestamp,
    /// Since when tracing is stopped; `None` while it goes on.
    pub stopped_at: Option<Timestamp>,
    /// The host.
    pub host: HostInfo,
    /// Terms of conservation for the host, by domain name.
    pub domains: BTreeMap<&'static str, Terms>,
    /// Which libraries and processes are probed, and which are not, and why.
    pub coverage: Vec<CoverageRow>,
    /// What was seen by which layer.
    pub layers: Vec<Layer>,
    /// How long calls took, by function.
    pub latency: Vec<CallLatency>,
    /// Kinds of memory that memtrace does not see.
    pub not_seen: Vec<String>,
    /// GPUs as NVML has them, beside the books.
    pub devices: Vec<Device>,
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

impl Snapshot {
    /// Names of the processes with books, by pid; of several the one that runs.
    #[must_use]
    pub fn names(&self) -> BTreeMap<u32, &str> {
        let of = |ended| self.processes.iter().filter(move |process| process.ended == ended);
        of(true).chain(of(false)).map(|process| (process.pid, process.comm.as_str())).collect()
    }
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

/// What was seen of a domain's calls by one library. A call of the runtime that calls the driver is
/// the runtime's, and counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Layer {
    /// `runtime`, `driver`, `hip` or `declared`; a runtime within an executable is a `runtime`.
    pub layer: &'static str,
    /// Catalog name of the library.
    pub library: &'static str,
    /// Domain name.
    pub domain: &'static str,
    /// The terms of the calls that it was the outermost of.
    #[serde(flatten)]
    pub terms: Terms,
    /// Of these calls, those that failed.
    pub failures: u64,
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

/// What stops of tracing are called among the losses: events that were not seen, nobody knows how
/// many. Where there was none it is no row.
pub const STOPPED: &str = "stopped";

/// What records that a recording lacks are called among the losses; where there are none it is
/// no row, since only a replay can have them.
pub const RECORDING_GAP: &str = "recording_gap";

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
    /// PyTorch's pool, where its tensors are on the books.
    pub pool: Option<Pool>,
    /// Device memory by NVML beside the books; `None` where it has none, or there is no driver.
    pub device: Option<ProcessDevice>,
    /// Terms by domain name. Boxed: a map makes room for eleven at once, and most have one.
    pub domains: BTreeMap<&'static str, Box<ProcessTerms>>,
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

/// What PyTorch's pool holds, and what its tensors need of it. A view into the domain `cuda`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// Device memory that it took and has not given back, bytes.
    pub held_bytes: u64,
    /// Live tensors, bytes.
    pub tensor_bytes: u64,
    /// Live tensors.
    pub tensors: u64,
    /// What tensors took at most at a time, rounded up as the pool does, bytes.
    pub most_bytes: u64,
    /// What no tensor needs now, bytes: `torch.cuda.empty_cache()` gives back what of it is in
    /// whole segments.
    pub cached_bytes: u64,
    /// Whether all tensors are on the books; if not, `cached_bytes` may be tensors from before.
    pub whole: bool,
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
