//! Steps of an unwinding, simple enough for a kernel program: from a return address to its
//! caller's, by the stack pointer and the frame pointer alone.
//!
//! User space learns them from unwind information; a kernel program follows them. What needs
//! more than these two registers has no step.

use bytemuck::{Pod, Zeroable};

use crate::assert_size;

/// Deepest stack that a walk over steps follows.
pub const MAX_WALK: usize = 128;
/// Most bytes of a user stack that are copied.
pub const MAX_COPY: usize = 32_768;
/// Return slots that hold the trampoline of return probes, and what belongs there.
pub const MAX_SLOTS: usize = 3;

/// A return address in an address space.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct StepKey {
    /// The return address; 0 keys the space's [`Learned`].
    pub address: u64,
    /// The address space.
    pub space: u32,
    /// Always 0.
    pub reserved: u32,
}
assert_size!(StepKey, 16);

/// How to get from a return address to its caller's.
///
/// The canonical frame address (CFA) is the stack pointer or the frame pointer plus an offset.
/// The next return address lies in the 8 bytes below it, the caller's stack pointer is the CFA
/// itself, and the caller's frame pointer is unchanged or saved a number of words below the CFA.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct Step(pub u64);
assert_size!(Step, 8);

/// Since when the steps of an address space hold: the [`Step`] of address 0. Another one for all
/// steps that are learned anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned(pub u64);

impl Learned {
    /// Learned the `turn`th time, when there were so many pages of executable mappings.
    #[must_use]
    pub const fn new(turn: u32, exec_pages: u64) -> Self {
        Self((turn as u64) << 32 | exec_pages & 0xffff_ffff)
    }

    /// Whether there were so many pages of executable mappings.
    #[must_use]
    #[inline(always)]
    pub const fn held_at(self, exec_pages: u64) -> bool {
        self.0 & 0xffff_ffff == exec_pages & 0xffff_ffff
    }
}

impl Step {
    /// The outermost frame: nobody called it.
    pub const END: Self = Self(u64::MAX);

    const BY_FRAME_POINTER: u64 = 1 << 48;

    /// A step; `None` where it does not fit the form. `offset` is in bytes, `saved` is how many
    /// bytes below the CFA the caller's frame pointer is saved (`None`: it is unchanged).
    #[must_use]
    pub const fn new(by_frame_pointer: bool, offset: u64, saved: Option<u64>) -> Option<Self> {
        if offset < 8 || !offset.is_multiple_of(8) || offset > MAX_COPY as u64 {
            return None;
        }
        let words = match saved {
            None => 0,
            Some(bytes) if bytes.is_multiple_of(8) && bytes >= 16 && bytes <= MAX_COPY as u64 => {
                bytes / 8
            }
            Some(_) => return None,
        };
        let base = if by_frame_pointer { Self::BY_FRAME_POINTER } else { 0 };
        Some(Self(offset | words << 32 | base))
    }

    /// Whether the CFA is counted from the frame pointer; else from the stack pointer.
    #[must_use]
    #[inline(always)]
    pub const fn by_frame_pointer(self) -> bool {
        self.0 & Self::BY_FRAME_POINTER != 0
    }

    /// From there to the CFA, bytes.
    #[must_use]
    #[inline(always)]
    pub const fn offset(self) -> u64 {
        self.0 & 0xffff_ffff
    }

    /// How many bytes below the CFA the caller's frame pointer is saved; 0 where it is unchanged.
    #[must_use]
    #[inline(always)]
    pub const fn saved(self) -> u64 {
        (self.0 >> 32 & 0xffff) * 8
    }
}
