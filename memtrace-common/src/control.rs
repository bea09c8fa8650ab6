//! What changes while the programs run, and the counters that give out numbers.

use bytemuck::{Pod, Zeroable};

use crate::assert_size;

/// The control block, one for the whole kernel side.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Control {
    /// Raised by user space when it changed who is traced or left out.
    pub generation: u64,
    /// Call sites that are followed exactly although the rest is not.
    pub promoted: u64,
    /// Next serial of a process or number of an address space; begins at 1.
    pub next_serial: u64,
    /// Next id of an allocation by a library function; begins at 1.
    pub next_id: u64,
    /// Contexts that programs have made.
    pub contexts: u64,
    /// Next slot of the accounts that was never used; begins behind
    /// [`UNATTRIBUTED_SLOT`](crate::UNATTRIBUTED_SLOT).
    pub next_slot: u64,
    /// Live kernel allocations, up to what the CPUs have saved up.
    pub kernel_live: u64,
    /// Live allocations by library functions.
    pub call_live: u64,
    /// Not 0: calls of library functions are not looked at, because tracing is stopped.
    pub stopped: u64,
}
assert_size!(Control, 72);

/// Where an allocation by a library function is found again.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct CallLiveKey {
    /// Address space.
    pub space: u32,
    /// [`PointerClass`](crate::PointerClass).
    pub class: u32,
    /// Address.
    pub pointer: u64,
}
assert_size!(CallLiveKey, 16);

/// A live allocation by a library function.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct CallLive {
    /// Bytes.
    pub bytes: u64,
    /// Unique id; 0 for what is in no counter.
    pub id: u64,
    /// When it was made, monotonic ns.
    pub time_ns: u64,
    /// The function that made it.
    pub function: u16,
    /// The context that the program made and it was made in; 0 for a primary context, and where
    /// that is not known.
    pub context: u16,
    /// [`CallLive::ROWLESS`], [`CallLive::PENDING`], the device and, from [`CallLive::REFERENCE`]
    /// on, a number of references.
    pub state: u32,
}
assert_size!(CallLive, 32);

impl CallLive {
    /// It is booked in the row of totals of space 0, for want of one of its own.
    pub const ROWLESS: u32 = 1;
    /// An inner allocation whose outer call has not returned: it may turn out to be the
    /// outer's own, so it is found by frees but is in no counter.
    pub const PENDING: u32 = 1 << 1;
    /// Bits before the device.
    pub const DEVICE_SHIFT: u32 = 2;
    /// The device, before it is shifted: its number and 1; 0 where it is not known.
    pub const DEVICE_MASK: u32 = 0xff;
    /// One reference beside the first, of memory that is counted by references.
    pub const REFERENCE: u32 = 1 << 10;

    /// Nothing.
    pub const NONE: Self = Self { bytes: 0, id: 0, time_ns: 0, function: 0, context: 0, state: 0 };

    /// The function in the low 16 bits; behind them the device's number and 1, or 0.
    #[must_use]
    pub const fn packed(&self) -> u32 {
        self.function as u32 | self.device() << 16
    }

    /// The number of the device that it is on and 1; 0 where that is not known.
    #[must_use]
    pub const fn device(&self) -> u32 {
        (self.state >> Self::DEVICE_SHIFT) & Self::DEVICE_MASK
    }
}
