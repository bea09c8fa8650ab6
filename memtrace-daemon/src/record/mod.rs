//! What the engine consumes, and nothing else: records of the kernel side, ticks of time,
//! resolved stacks and observations of the host.
//!
//! All times are monotonic nanoseconds unless a name says otherwise. A stream of these
//! records, replayed, gives the same books and the same findings.
//!
//! The serialised form is what recordings hold. Variants have numbers there, in their order: a
//! new one goes to the end. What changes the form of one that is there already is a new version of
//! the recordings' format, but for stacks and observations, whose fields have names there.

mod anchor;
mod call;
mod form;
mod measured;

use std::sync::Arc;

use memtrace_common::{
    Account, AccountAgesRecord, DuplicateRecord, FreeRecord, FunctionId, KernelSampleRecord,
    Latency, LossCounter, ProcessEntry, Totals, TotalsKey,
};
use serde::{Deserialize, Serialize};

pub use anchor::Anchor;
pub use call::{Call, CopiedCall, EXACT, Registers, StackCopy, Stage, code_at};
pub use measured::{CgroupLimit, DeviceMemory, HostMemory, Parent, ProcessMemory, UnusedShared};

use crate::snapshot::{CoverageRow, Frame, Taken};

/// One thing that the engine is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Record {
    /// A process was first seen or has changed (started, forked, executed, ended).
    Process {
        /// When.
        time_ns: u64,
        /// The process as it is now; the last one wins.
        entry: ProcessEntry,
    },
    /// A kernel account as it is now; the one with larger counters wins.
    Account {
        /// When.
        time_ns: u64,
        /// Its books.
        account: Account,
    },
    /// A kernel account as it is now, with a stack that reached it.
    KernelSample(#[serde(with = "form::sample")] Box<KernelSampleRecord>),
    /// Call-path totals as they are now; the one with larger counters wins.
    Totals {
        /// When.
        time_ns: u64,
        /// Whose.
        key: TotalsKey,
        /// The counters.
        totals: Totals,
    },
    /// A library function gave memory.
    Allocation(Box<Call>),
    /// A library function failed to give memory.
    Failure(Box<Call>),
    /// An allocation left the books.
    Free(FreeRecord),
    /// One call fired through two attachments.
    Duplicate(DuplicateRecord),
    /// A stack has been named.
    Stack(#[serde(with = "form::named")] StackLabel),
    /// Time has passed.
    Tick {
        /// Now.
        now_ns: u64,
    },
    /// Something about the host.
    Observation {
        /// When; of [`Observation::LiveIds`], when reading began.
        now_ns: u64,
        /// What.
        #[serde(with = "form::named")]
        observation: Observation,
    },
    /// How old what is live at a kernel account is.
    AccountAges(AccountAgesRecord),
}

/// Names one raw stack: for kernel stacks the addresses alone, for user stacks the
/// addresses within one address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StackKey(pub u64);

/// A raw stack, to be named by `stacks/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawStack {
    /// Its key, [`StackKey::kernel`] or [`StackKey::user`].
    pub key: StackKey,
    /// Whose addresses they are.
    pub origin: StackOrigin,
    /// Return addresses, innermost first; with [`EXACT`] what is none.
    pub addresses: Arc<[u64]>,
    /// How they were taken.
    pub taken: Taken,
}

impl RawStack {
    /// The address space that its addresses are in; `None` for the kernel's.
    #[must_use]
    pub const fn space(&self) -> Option<u32> {
        match self.origin {
            StackOrigin::Kernel => None,
            StackOrigin::User { space, .. } => Some(space),
        }
    }
}

/// Whose addresses a raw stack has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StackOrigin {
    /// The kernel's.
    Kernel,
    /// A process'.
    User {
        /// Thread group id in the initial pid namespace.
        tgid: u32,
        /// Serial of the process.
        serial: u32,
        /// Address space, new after each exec.
        space: u32,
    },
}

impl StackKey {
    /// The key of a kernel stack.
    #[must_use]
    pub fn kernel(addresses: &[u64]) -> Self {
        Self::mix(0, addresses)
    }

    /// The key of a user stack in an address space (spaces count from 1).
    #[must_use]
    pub fn user(space: u32, addresses: &[u64]) -> Self {
        Self::mix(u64::from(space) | 1 << 32, addresses)
    }

    fn mix(seed: u64, addresses: &[u64]) -> Self {
        use std::hash::Hasher;
        let mut hasher = rustc_hash::FxHasher::default();
        hasher.write_u64(seed);
        for address in addresses {
            hasher.write_u64(*address);
        }
        Self(hasher.finish())
    }
}

/// A raw stack with names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StackLabel {
    /// Which stack.
    pub key: StackKey,
    /// Its frames, innermost first; an inlined function is a frame of its own.
    pub frames: Arc<[Frame]>,
    /// What makes the same stack the same in every process and after a restart: one entry a
    /// return address, innermost first: build id (or module) + file offset, or kernel
    /// symbol + offset.
    pub identity: Arc<[String]>,
}

/// A fact about the host or about the tracer itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Observation {
    /// What a person calls a process.
    ProcessFacts {
        /// Serial of the process.
        serial: u32,
        /// Arguments joined by spaces; `None` where they cannot be read.
        cmdline: Option<String>,
        /// Path of its cgroup.
        cgroup: Option<String>,
        /// Resident bytes at first sight.
        rss_bytes: Option<u64>,
        /// Whether it ran before memtrace was attached.
        before_attach: bool,
    },
    /// Host memory.
    Memory(HostMemory),
    /// Memory of a process.
    ProcessMemory(ProcessMemory),
    /// Shared memory that nobody uses.
    UnusedShared(UnusedShared),
    /// A GPU as NVML has it.
    Device(DeviceMemory),
    /// All loss counters, in the order of `LossCause::ALL`.
    Loss(Vec<LossCounter>),
    /// Coverage as it is now; replaces what was said before.
    Coverage(Vec<CoverageRow>),
    /// The ids of all live library allocations, read from the live map after records were
    /// lost: ids below `next_id` that are not among them are not live any more.
    LiveIds {
        /// The next id to be given when reading began.
        next_id: u64,
        /// Sorted.
        ids: Vec<u64>,
    },
    /// A person has stopped tracing, or has it go on.
    Tracing {
        /// Whether it is stopped now.
        stopped: bool,
    },
    /// A GPU that answered before does not any more: nothing is known of it.
    DeviceLost {
        /// NVML index.
        index: u32,
    },
    /// How long calls took since attach, by function, in the order of their ids; replaces what was
    /// said before.
    Latency(Vec<(FunctionId, Latency)>),
}
