//! Losses: everything that memtrace knows it did not see, one counter a cause.

use bytemuck::{Pod, Zeroable};

use crate::assert_size;

/// Why something was not seen. The discriminant is the index into the map of counters.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LossCause {
    /// A record found no room in the ring buffer. Counters are sent again; a call's stack is lost.
    RingFull = 0,
    /// An allocation found no room in a live map and is not followed.
    LiveMapFull = 1,
    /// A call site found no free account: its allocations are followed, but booked as
    /// unattributed.
    AccountMapFull = 2,
    /// A call was nested deeper than the in-flight stack of its thread.
    InflightFull = 3,
    /// A call was entered and its return was never seen (longjmp, exception, thread death).
    MissedReturn = 4,
    /// A kernel program was skipped because it interrupted itself.
    Recursion = 5,
    /// An argument that lies in user memory could not be read, or says what nobody knows (the
    /// format of an array).
    UnreadablePointer = 6,
    /// A size of 2^47 bytes or more, or a product that overflows.
    Implausible = 7,
    /// The process of an event could not be named (map full, storage busy).
    UnknownProcess = 8,
    /// A stack was taken the cheap way because the copy budget was spent.
    StackBudget = 9,
    /// A probe fired too often and was taken away for a while.
    RateCeiling = 10,
}

impl LossCause {
    /// All causes, in the order of their discriminants.
    pub const ALL: [Self; 11] = [
        Self::RingFull,
        Self::LiveMapFull,
        Self::AccountMapFull,
        Self::InflightFull,
        Self::MissedReturn,
        Self::Recursion,
        Self::UnreadablePointer,
        Self::Implausible,
        Self::UnknownProcess,
        Self::StackBudget,
        Self::RateCeiling,
    ];

    /// The name that JSON and metrics use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RingFull => "ring_full",
            Self::LiveMapFull => "live_map_full",
            Self::AccountMapFull => "account_map_full",
            Self::InflightFull => "inflight_full",
            Self::MissedReturn => "missed_return",
            Self::Recursion => "recursion",
            Self::UnreadablePointer => "unreadable_pointer",
            Self::Implausible => "implausible",
            Self::UnknownProcess => "unknown_process",
            Self::StackBudget => "stack_budget",
            Self::RateCeiling => "rate_ceiling",
        }
    }

    /// Whether the bytes behind this cause are known.
    #[must_use]
    pub const fn bytes_known(self) -> bool {
        matches!(self, Self::LiveMapFull | Self::AccountMapFull)
    }
}

/// The counter of one cause, cumulative from start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LossCounter {
    /// Events.
    pub count: u64,
    /// Bytes, where [`LossCause::bytes_known`]; else 0.
    pub bytes: u64,
}
assert_size!(LossCounter, 16);
