//! Processes as the kernel side knows them: never by a bare pid.

use bytemuck::{Pod, Zeroable};

use crate::assert_size;

/// What makes a process unique on a running host.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ProcessKey {
    /// Start of the group leader, ns since boot (`start_boottime`).
    pub start_ns: u64,
    /// Thread group id in the initial pid namespace.
    pub tgid: u32,
    /// Always 0.
    pub reserved: u32,
}
assert_size!(ProcessKey, 16);

/// One process, as last changed. A record carries it whole, so that the last one wins.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ProcessEntry {
    /// Who it is.
    pub key: ProcessKey,
    /// Unique since start of the tracer, never reused; 0 is nobody.
    pub serial: u32,
    /// The books of its user domains: new at exec, the parent's while memory is shared (vfork).
    pub space: u32,
    /// Serial of the process that `space` belongs to: `serial`, or the parent's while shared.
    pub space_owner: u32,
    /// Thread group id of the parent when first seen.
    pub parent_tgid: u32,
    /// Cgroup id (v2 hierarchy); 0 where unknown.
    pub cgroup: u64,
    /// Real user id in the initial user namespace.
    pub uid: u32,
    /// [`ProcessFlags`].
    pub flags: u32,
    /// When its last thread ended, ns since boot; 0 while it runs.
    pub ended_ns: u64,
    /// The name of its leader, NUL-padded bytes in no particular encoding.
    pub comm: [u8; 16],
    /// Raised at every change.
    pub version: u32,
    /// The version that the ring buffer last accepted.
    pub reported: u32,
}
assert_size!(ProcessEntry, 80);

impl ProcessEntry {
    /// Whether its last thread has ended.
    #[must_use]
    pub const fn ended(&self) -> bool {
        self.ended_ns != 0
    }
}

/// Bits of [`ProcessEntry::flags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessFlags;

impl ProcessFlags {
    /// `run` and `attach` follow it; inherited by children.
    pub const TRACED: u32 = 1;
    /// Configuration leaves it out: nothing new is booked for it.
    pub const EXCLUDED: u32 = 2;
    /// A kernel thread.
    pub const KERNEL_THREAD: u32 = 4;
    /// The daemon itself.
    pub const SELF: u32 = 8;
    /// Its program was executed while memtrace watched, or it is a child of such a process:
    /// nothing that it did has been missed.
    pub const WHOLE: u32 = 16;
}

/// What a policy map says about a comm, uid or cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy;

impl Policy {
    /// Book it, when only named processes are booked.
    pub const INCLUDE: u32 = 1;
    /// Never book it; wins over `INCLUDE`.
    pub const EXCLUDE: u32 = 2;
}
