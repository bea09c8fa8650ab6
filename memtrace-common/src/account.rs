//! Accounts and totals: the cumulative counters that the kernel side is the authority for.

use bytemuck::{Pod, Zeroable};

use crate::assert_size;

/// A number of objects and of bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Amount {
    /// Objects.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
}
assert_size!(Amount, 16);

impl Amount {
    /// Both parts, never below zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_sub(other.count),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }

    /// Both parts, never beyond `u64::MAX`.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// Whether both parts are zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.count == 0 && self.bytes == 0
    }
}

/// On whose behalf kernel memory was taken.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Context {
    /// A process, in a system call or a fault.
    Process = 0,
    /// An interrupt: the process that happened to run is not to blame.
    Interrupt = 1,
    /// A kernel thread.
    Worker = 2,
}

impl Context {
    /// The name that JSON uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Interrupt => "interrupt",
            Self::Worker => "worker",
        }
    }

    /// The context with this discriminant.
    #[must_use]
    pub const fn from_u32(value: u32) -> Option<Self> {
        match value {
            0 => Some(Self::Process),
            1 => Some(Self::Interrupt),
            2 => Some(Self::Worker),
            _ => None,
        }
    }
}

/// Frees are counted by the age of what was freed, in classes that double.
///
/// Class 0 is below 2^`AGE_SHIFT` ns, class n below 2^(`AGE_SHIFT` + n) ns, the last one is open.
pub const AGE_CLASSES: usize = 8;

/// The account that takes what found no account of its own.
pub const UNATTRIBUTED_SLOT: u32 = 0;

/// What one kernel account is about.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AccountKey {
    /// The call site: the address that the allocator returns to.
    pub call_site: u64,
    /// 0 for the netted account of a call site, else the hash of the kernel stack.
    pub detail: u64,
    /// Process serial; 0 in an interrupt and where the process is unknown.
    pub serial: u32,
    /// [`Context`] in the low 16 bits, [`crate::FunctionId`] in the high 16.
    pub context_and_function: u32,
}
assert_size!(AccountKey, 24);

impl AccountKey {
    /// Packs context and function.
    #[must_use]
    pub const fn pack(context: Context, function: u16) -> u32 {
        context as u32 | ((function as u32) << 16)
    }

    /// The context.
    #[must_use]
    pub const fn context(&self) -> Option<Context> {
        Context::from_u32(self.context_and_function & 0xffff)
    }

    /// The id of the allocating function.
    #[must_use]
    pub const fn function(&self) -> u16 {
        (self.context_and_function >> 16) as u16
    }
}

/// The books of one kernel account. All counters are cumulative.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Account {
    /// What it is about.
    pub key: AccountKey,
    /// Its place in the array of accounts.
    pub slot: u32,
    /// 1 once a stack sample of it was accepted by the ring buffer.
    pub sampled: u16,
    /// Its [`AgeRow`] in the last scan, counted from 1; 0 for none (kernel side's own use).
    #[cfg_attr(feature = "serde", serde(skip))]
    pub age_row: u16,
    /// Successful allocations, taken before anything can fail.
    pub seen: Amount,
    /// Of these: entered into the live map.
    pub allocated: Amount,
    /// Of these: freed by a free that was seen.
    pub freed: Amount,
    /// Of these: closed because the address was handed out again.
    pub freed_unseen: Amount,
    /// Seen, but not followed.
    pub dropped: Amount,
    /// Frees by age of the object.
    pub ages: [u64; AGE_CLASSES],
    /// First allocation, monotonic ns.
    pub first_ns: u64,
    /// Last allocation, monotonic ns.
    pub last_ns: u64,
    /// Oldest live allocation as of the last scan, monotonic ns; 0 where unknown.
    pub oldest_ns: u64,
    /// `oldest_ns` of the scan before (kernel side's own use).
    pub previous_oldest_ns: u64,
    /// Live bytes at the last stack sample (kernel side's own use).
    pub sampled_level: u64,
    /// Sum of counters when the ring buffer last accepted it (kernel side's own use).
    pub reported: u64,
}
assert_size!(Account, 224);

impl Account {
    /// Entered into the live map and not freed since.
    #[must_use]
    pub const fn live(&self) -> Amount {
        self.allocated.saturating_sub(self.freed).saturating_sub(self.freed_unseen)
    }
}

/// Live bytes of one account by age, as of a scan. A row is an account's for one scan only.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct AgeRow {
    /// Live bytes, in the classes of [`Account::ages`].
    pub bytes: [u64; AGE_CLASSES],
    /// When the scan began, monotonic ns: what ages are reckoned from.
    pub time_ns: u64,
    /// [`Account::first_ns`]: with the slot it says which account.
    pub first_ns: u64,
    /// The account's slot.
    pub slot: u32,
    /// 1 until the ring buffer has accepted it.
    pub pending: u32,
}
assert_size!(AgeRow, 88);

/// What one row of call-path totals is about.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TotalsKey {
    /// Address space, [`crate::ProcessEntry::space`].
    pub space: u32,
    /// [`crate::FunctionId`].
    pub function: u32,
}
assert_size!(TotalsKey, 8);

/// Call-path totals of one (address space, function). All counters are cumulative.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Totals {
    /// Successful allocations, taken before anything can fail.
    pub seen: Amount,
    /// Of these: entered into the live map.
    pub allocated: Amount,
    /// Of these: freed by a free that succeeded.
    pub freed: Amount,
    /// Of these: closed because the address was handed out again.
    pub freed_unseen: Amount,
    /// Seen, but not followed.
    pub dropped: Amount,
    /// Of those allocated: given back by a reset of their device, or with their context.
    pub closed: Amount,
    /// Calls that failed (of allocating functions).
    pub failures: u64,
    /// Calls that failed (of freeing functions).
    pub failed_frees: u64,
    /// Frees of addresses that are not on the books.
    pub unknown_frees: u64,
    /// Successes that gave a null pointer.
    pub empty: u64,
    /// Successes whose size cannot be true.
    pub implausible: u64,
    /// Sum of counters when the ring buffer last accepted it (kernel side's own use).
    pub reported: u64,
}
assert_size!(Totals, 144);

impl Totals {
    /// Entered into the live map and not freed since.
    #[must_use]
    pub const fn live(&self) -> Amount {
        self.allocated
            .saturating_sub(self.freed)
            .saturating_sub(self.freed_unseen)
            .saturating_sub(self.closed)
    }
}
