//! Walking a copied user stack over steps that user space has learned, in the kernel.
//!
//! Exact where it succeeds: each step is a function of a return address, the stack pointer and
//! the frame pointer alone, which are all followed. What is not known ends it without a result.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_loop;
use memtrace_common::{MAX_COPY, MAX_SLOTS, MAX_WALK, Step, StepKey};

use crate::{
    copy::CopySlot,
    maps::{COPIES, STEPS},
};

/// Where a walk starts.
pub struct Start {
    pub space: u32,
    /// The slot that has the copy, and gets the addresses.
    pub slot: u32,
    pub pc: u64,
    pub stack_pointer: u64,
    pub frame_pointer: u64,
    /// Bytes of the copy.
    pub length: u64,
}

/// Where a walk is.
#[repr(C)]
struct Walk {
    space: u32,
    slot: u32,
    /// Where the copy begins.
    base: u64,
    length: u64,
    pc: u64,
    stack_pointer: u64,
    frame_pointer: u64,
    /// Addresses found.
    count: u64,
    /// Whether the outermost frame was reached.
    whole: u64,
}

/// Writes the return addresses into the slot; how many, 0 where the walk did not reach the
/// outermost frame.
#[inline(always)]
pub fn walk(start: &Start) -> u64 {
    let mut walk = Walk {
        space: start.space,
        slot: start.slot,
        base: start.stack_pointer,
        length: start.length,
        pc: start.pc,
        stack_pointer: start.stack_pointer,
        frame_pointer: start.frame_pointer,
        count: 0,
        whole: 0,
    };
    let context: *mut Walk = &raw mut walk;
    // SAFETY: the callback has the form that the helper wants, and gets this context.
    unsafe { bpf_loop(MAX_WALK as u32, step as *mut c_void, context.cast(), 0) };
    // SAFETY: a local variable. Volatile, because the compiler does not see the helper write.
    unsafe {
        if core::ptr::read_volatile(&raw const (*context).whole) == 0 {
            return 0;
        }
        core::ptr::read_volatile(&raw const (*context).count)
    }
}

const GO_ON: i64 = 0;
const STOP: i64 = 1;

#[inline(never)]
extern "C" fn step(index: u64, walk: *mut Walk) -> i64 {
    // SAFETY: the context that `walk` passed.
    unsafe {
        let Some(slot) = COPIES.get_ptr_mut((*walk).slot) else { return STOP };
        let pc = (*walk).pc;
        let key = StepKey { address: pc, space: (*walk).space, reserved: 0 };
        let Some(step) = STEPS.get(key).copied() else { return STOP };
        let index = index & (MAX_WALK as u64 - 1);
        (&raw mut (*slot).walked.addresses).cast::<u64>().add(index as usize).write(pc);
        (*walk).count = index + 1;
        if step == Step::END {
            (*walk).whole = 1;
            return STOP;
        }
        let from =
            if step.by_frame_pointer() { (*walk).frame_pointer } else { (*walk).stack_pointer };
        let frame = from + step.offset();
        // Who called is farther out.
        if frame <= (*walk).stack_pointer {
            return STOP;
        }
        let Some(caller) = word(walk, slot, frame - 8) else { return STOP };
        if step.saved() != 0 {
            let Some(saved) = word(walk, slot, frame - step.saved()) else { return STOP };
            (*walk).frame_pointer = saved;
        }
        (*walk).stack_pointer = frame;
        (*walk).pc = mended(slot, frame - 8, caller);
        GO_ON
    }
}

/// A word of the copy.
#[inline(always)]
unsafe fn word(walk: *mut Walk, slot: *mut CopySlot, address: u64) -> Option<u64> {
    // SAFETY: the walk's context and a checked map value.
    unsafe {
        let place = address - (*walk).base;
        let length = (*walk).length;
        if place & 7 != 0 || length < 8 || place > length - 8 {
            return None;
        }
        let place = place & (MAX_COPY as u64 - 1);
        let word = (&raw const (*slot).copied.bytes).cast::<u8>().add(place as usize);
        Some(word.cast::<u64>().read())
    }
}

/// What belongs into a return slot.
#[inline(always)]
unsafe fn mended(slot: *mut CopySlot, at: u64, value: u64) -> u64 {
    let mut value = value;
    let mut index = MAX_SLOTS;
    // The outermost call at a place knows best: those that jumped from it know the trampoline.
    while index > 0 {
        index -= 1;
        // SAFETY: a checked map value.
        unsafe {
            let pair = (&raw const (*slot).copied.head.slots).cast::<[u64; 2]>().add(index).read();
            if pair[0] == at {
                value = pair[1];
            }
        }
    }
    value
}
