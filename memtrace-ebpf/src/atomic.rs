//! Atomic instructions. Ordering is always sequentially consistent: with a relaxed one the
//! compiler drops the fetch of a fetch-and-add and returns the addend.

use core::intrinsics::{AtomicOrdering, atomic_xadd, atomic_xchg};

/// Adds to a counter that other CPUs and interrupts add to as well.
#[inline(always)]
pub fn add(counter: *mut u64, value: u64) {
    // SAFETY: callers pass pointers into map values, which the verifier has checked.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(counter, value) };
}

/// Adds, and returns what was there before.
#[inline(always)]
pub fn fetch_add(counter: *mut u64, value: u64) -> u64 {
    // SAFETY: as in `add`.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(counter, value) }
}

/// Adds to a counter of 32 bits, and returns what was there before.
#[inline(always)]
pub fn fetch_add_32(counter: *mut u32, value: u32) -> u32 {
    // SAFETY: as in `add`.
    unsafe { atomic_xadd::<u32, u32, { AtomicOrdering::SeqCst }>(counter, value) }
}

/// Subtracts.
#[inline(always)]
pub fn sub(counter: *mut u64, value: u64) {
    add(counter, value.wrapping_neg());
}

/// Puts a value, and returns what was there before.
#[inline(always)]
pub fn swap(place: *mut u64, value: u64) -> u64 {
    // SAFETY: as in `add`.
    unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(place, value) }
}
