//! What goes through the ring buffer. Records report counters; they are never the only copy.

use bytemuck::{Pod, Zeroable};

use crate::{
    AGE_CLASSES, Account, AccountKey, MAX_SLOTS, ProcessEntry, Totals, TotalsKey, assert_size,
};

/// Deepest kernel stack that is taken.
pub const MAX_KERNEL_FRAMES: usize = 48;
/// Deepest user stack that is taken by frame pointers.
pub const MAX_USER_FRAMES: usize = 48;

/// Which record follows a [`RecordHeader`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// [`ProcessRecord`]
    Process = 1,
    /// [`AccountRecord`]
    Account = 2,
    /// [`KernelSampleRecord`]
    KernelSample = 3,
    /// [`TotalsRecord`]
    Totals = 4,
    /// [`AllocationRecord`]
    Allocation = 5,
    /// [`AllocationRecord`] of a call that failed: bytes asked for, no pointer, no id
    Failure = 6,
    /// [`FreeRecord`]
    Free = 7,
    /// [`DuplicateRecord`]
    Duplicate = 8,
    /// [`AccountAgesRecord`]
    AccountAges = 9,
}

impl RecordKind {
    /// The kind with this discriminant.
    #[must_use]
    pub const fn from_u32(value: u32) -> Option<Self> {
        match value {
            1 => Some(Self::Process),
            2 => Some(Self::Account),
            3 => Some(Self::KernelSample),
            4 => Some(Self::Totals),
            5 => Some(Self::Allocation),
            6 => Some(Self::Failure),
            7 => Some(Self::Free),
            8 => Some(Self::Duplicate),
            9 => Some(Self::AccountAges),
            _ => None,
        }
    }

    /// The name that metrics use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Account => "account",
            Self::KernelSample => "kernel_sample",
            Self::Totals => "totals",
            Self::Allocation => "allocation",
            Self::Failure => "failure",
            Self::Free => "free",
            Self::Duplicate => "duplicate",
            Self::AccountAges => "account_ages",
        }
    }
}

/// The beginning of every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RecordHeader {
    /// [`RecordKind`].
    pub kind: u32,
    /// Bytes of the whole record.
    pub length: u32,
    /// Monotonic ns.
    pub time_ns: u64,
}
assert_size!(RecordHeader, 16);

/// A process was first seen or has changed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct ProcessRecord {
    /// Kind, length, time.
    pub header: RecordHeader,
    /// The process as it is now.
    pub entry: ProcessEntry,
}
assert_size!(ProcessRecord, 96);

/// An account as it is now.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct AccountRecord {
    /// Kind, length, time.
    pub header: RecordHeader,
    /// Its books.
    pub account: Account,
}
assert_size!(AccountRecord, 240);

/// How old what is live at an account is, as of a scan.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AccountAgesRecord {
    /// Kind, length, time.
    pub header: RecordHeader,
    /// What the account is about.
    pub key: AccountKey,
    /// Its slot.
    pub slot: u32,
    /// Nothing.
    pub reserved: u32,
    /// Its first allocation, monotonic ns: a slot's next account has another.
    pub first_ns: u64,
    /// When the scan began, monotonic ns: what ages are reckoned from.
    pub scanned_ns: u64,
    /// Live bytes, in the classes of [`Account::ages`].
    pub bytes: [u64; AGE_CLASSES],
}
assert_size!(AccountAgesRecord, 128);

/// An account as it is now, and a stack that reached it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct KernelSampleRecord {
    /// Kind, length, time.
    pub header: RecordHeader,
    /// Its books.
    pub account: Account,
    /// Bytes by which live memory has grown since the last sample: the weight of this stack.
    pub weight: u64,
    /// Thread group that ran; with an interrupt, the one that was interrupted.
    pub tgid: u32,
    /// Thread that ran.
    pub tid: u32,
    /// Frames used of `kernel`.
    pub kernel_frames: u32,
    /// Frames used of `user`.
    pub user_frames: u32,
    /// Kernel return addresses, innermost first.
    pub kernel: [u64; MAX_KERNEL_FRAMES],
    /// User return addresses by frame pointers, innermost first: an example of who called.
    pub user: [u64; MAX_USER_FRAMES],
}
assert_size!(KernelSampleRecord, 16 + 224 + 24 + 8 * 96);

/// Call-path totals as they are now.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct TotalsRecord {
    /// Kind, length, time.
    pub header: RecordHeader,
    /// Whose.
    pub key: TotalsKey,
    /// The counters.
    pub totals: Totals,
}
assert_size!(TotalsRecord, 168);

/// One successful allocation by a library function, or one failed call. What is known of the
/// stack follows it in the ring buffer, as [`StackForm`] says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct AllocationRecord {
    /// Kind, length with what follows, time.
    pub header: RecordHeader,
    /// Unique since start of the tracer, never reused, ascending; 0 for a failure.
    pub id: u64,
    /// The address that was given; 0 for a failure.
    pub pointer: u64,
    /// Bytes.
    pub bytes: u64,
    /// Address space whose books it is in.
    pub space: u32,
    /// [`crate::FunctionId`] and, as [`CallLive::packed`](crate::CallLive::packed) has it, the
    /// device.
    pub function: u32,
    /// Thread group of the caller.
    pub tgid: u32,
    /// Thread of the caller.
    pub tid: u32,
    /// Serial of the calling process (a vfork child's differs from the owner of `space`).
    pub serial: u32,
    /// [`StackForm`].
    pub form: u32,
    /// Where an inner call returned to that is booked with the stack of its outer call: it goes
    /// before what follows; 0 for others.
    pub inner: u64,
}
assert_size!(AllocationRecord, 16 + 24 + 24 + 8);

/// What follows an [`AllocationRecord`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StackForm {
    /// Return addresses of the whole stack, by a walk over learned steps.
    Walk = 1,
    /// [`StackHead`] and a copy of the stack.
    Copy = 2,
    /// Return addresses by frame pointers, because the budget of copies was spent.
    OverBudget = 3,
    /// Return addresses by frame pointers, because there was no memory to copy to.
    NotCopied = 4,
    /// One or two return addresses of calls that were left without a return.
    Known = 5,
}

impl StackForm {
    /// The form with this discriminant.
    #[must_use]
    pub const fn from_u32(value: u32) -> Option<Self> {
        match value {
            1 => Some(Self::Walk),
            2 => Some(Self::Copy),
            3 => Some(Self::OverBudget),
            4 => Some(Self::NotCopied),
            5 => Some(Self::Known),
            _ => None,
        }
    }
}

/// What a copy of a user stack begins with. The copy follows, from the stack pointer on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct StackHead {
    /// The kernel's `pt_regs` of x86-64, in its order.
    pub registers: [u64; PT_REGS],
    /// Return slots that hold the trampoline of return probes, and what belongs there.
    pub slots: [[u64; 2]; MAX_SLOTS],
    /// Pages of executable mappings that the process has (`mm->exec_vm`).
    pub exec_pages: u64,
    /// Whether the copy reaches to where the stack ends: 0 or 1.
    pub whole: u64,
    /// Pages that could not be read, zeros in the copy: bit 0 is the stack pointer's page. They
    /// were never written to, or are swapped out.
    pub missing: u64,
}
assert_size!(StackHead, 8 * 21 + 16 * 3 + 24);

/// Registers in `pt_regs`.
pub const PT_REGS: usize = 21;

/// Why an allocation left the books.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FreeReason {
    /// A free that succeeded.
    Freed = 1,
    /// Its address was handed out again, so it must have been freed unseen.
    FreedUnseen = 2,
    /// Its device was reset, or its context destroyed.
    Closed = 3,
}

impl FreeReason {
    /// The reason with this discriminant.
    #[must_use]
    pub const fn from_u32(value: u32) -> Option<Self> {
        match value {
            1 => Some(Self::Freed),
            2 => Some(Self::FreedUnseen),
            3 => Some(Self::Closed),
            _ => None,
        }
    }
}

/// One allocation left the books.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FreeRecord {
    /// Kind, length, time.
    pub header: RecordHeader,
    /// Of the allocation.
    pub id: u64,
    /// Of the allocation.
    pub bytes: u64,
    /// Address space whose books it was in.
    pub space: u32,
    /// [`crate::FunctionId`] that allocated it.
    pub function: u32,
    /// [`FreeReason`].
    pub reason: u32,
    /// Thread that freed it.
    pub tid: u32,
}
assert_size!(FreeRecord, 48);

/// One call fired through two attachments: the same file was attached twice.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DuplicateRecord {
    /// Kind, length, time.
    pub header: RecordHeader,
    /// The attachment that fired first.
    pub first: u32,
    /// The attachment that fired again for the same call.
    pub second: u32,
}
assert_size!(DuplicateRecord, 24);
