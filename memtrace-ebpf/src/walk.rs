//! Walking a copied user stack over steps that user space has learned, in the kernel.
//!
//! Exact where it succeeds: each step is a function of a return address, the stack pointer and
//! the frame pointer alone, which are all followed. What is not known ends it without a result.
//! A walk that begins as the last one did and finds the same words goes the same way.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_loop;
use memtrace_common::{MAX_COPY, MAX_SLOTS, MAX_WALK, Step, StepKey};

use crate::{
    arch,
    copy::CopySlot,
    maps::{COPIES, STEPS},
};

/// Where a walk starts.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Start {
    pub pc: u64,
    pub stack_pointer: u64,
    pub frame_pointer: u64,
    /// Since when the steps hold.
    pub learned: u64,
    pub space: u64,
}

impl Start {
    #[inline(always)]
    fn same(&self, other: &Self) -> bool {
        self.pc == other.pc
            && self.stack_pointer == other.stack_pointer
            && self.frame_pointer == other.frame_pointer
            && self.learned == other.learned
            && self.space == other.space
    }
}

/// Words of a stack that a walk went by: a return address and a frame pointer each step.
const MAX_WORDS: usize = 2 * MAX_WALK;
const _: () = assert!(MAX_WORDS.is_power_of_two());

/// What a walk went by.
#[repr(C)]
pub struct Path {
    start: Start,
    /// Return addresses that it found; 0 where it is no whole walk.
    count: u64,
    /// Words used.
    words: u64,
    /// Places in the copy, and what was there.
    word: [Word; MAX_WORDS],
}

/// A word of a copy.
#[repr(C)]
#[derive(Clone, Copy)]
struct Word {
    place: u64,
    value: u64,
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
    /// Words gone by.
    words: u64,
    /// Whether the outermost frame was reached.
    whole: u64,
    /// Whether it went by more than the words of the copy.
    mended: u64,
}

/// Has the return addresses in the slot; how many, 0 where the walk did not reach the outermost
/// frame. `length` is what there is of the copy, in bytes.
#[inline(always)]
pub fn walk(index: u32, slot: *mut CopySlot, start: &Start, length: u64) -> u64 {
    // SAFETY: a checked map value.
    unsafe {
        if (*slot).path.start.same(start) && goes_the_same_way(slot, length) {
            return (*slot).path.count;
        }
        (*slot).path.start = *start;
        (*slot).path.count = 0;
        let mut walk = Walk {
            space: start.space as u32,
            slot: index,
            base: start.stack_pointer,
            length,
            pc: start.pc,
            stack_pointer: start.stack_pointer,
            frame_pointer: start.frame_pointer,
            count: 0,
            words: 0,
            whole: 0,
            mended: 0,
        };
        let context: *mut Walk = &raw mut walk;
        // The callback has the form that the helper wants, and gets this context.
        bpf_loop(MAX_WALK as u32, step as *mut c_void, context.cast(), 0);
        // Volatile, because the compiler does not see the helper write.
        if core::ptr::read_volatile(&raw const (*context).whole) == 0 {
            return 0;
        }
        let count = core::ptr::read_volatile(&raw const (*context).count);
        if core::ptr::read_volatile(&raw const (*context).mended) == 0 {
            (*slot).path.words = core::ptr::read_volatile(&raw const (*context).words);
            (*slot).path.count = count;
        }
        count
    }
}

/// Whether all words that the last walk went by are there again.
#[inline(always)]
unsafe fn goes_the_same_way(slot: *mut CopySlot, length: u64) -> bool {
    // SAFETY: a checked map value.
    unsafe {
        if (*slot).path.count == 0 {
            return false;
        }
        let words = (*slot).path.words;
        let mut index = 0_u64;
        while index < MAX_WORDS as u64 {
            if index >= words {
                return true;
            }
            let at = arch::opaque(index) & (MAX_WORDS as u64 - 1);
            let word = (&raw const (*slot).path.word).cast::<Word>().add(at as usize).read();
            if word.place + 8 > length || copied(slot, word.place) != word.value {
                return false;
            }
            index += 1;
        }
        words == MAX_WORDS as u64
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
        // The step of address 0 is none.
        if pc == 0 {
            return STOP;
        }
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
        (*walk).pc = caller;
        mend(walk, slot, frame - 8);
        GO_ON
    }
}

/// A word of the copy that the walk goes by.
#[inline(always)]
unsafe fn word(walk: *mut Walk, slot: *mut CopySlot, address: u64) -> Option<u64> {
    // SAFETY: the walk's context and a checked map value.
    unsafe {
        let place = address - (*walk).base;
        let length = (*walk).length;
        if place & 7 != 0 || length < 8 || place > length - 8 {
            return None;
        }
        let value = copied(slot, place);
        let at = (*walk).words & (MAX_WORDS as u64 - 1);
        let noted = (&raw mut (*slot).path.word).cast::<Word>().add(at as usize);
        noted.write(Word { place, value });
        (*walk).words += 1;
        Some(value)
    }
}

/// The word at a place of the copy.
#[inline(always)]
unsafe fn copied(slot: *mut CopySlot, place: u64) -> u64 {
    let place = place & (MAX_COPY as u64 - 8);
    // SAFETY: a checked map value.
    unsafe {
        let word = (&raw const (*slot).copied.bytes).cast::<u8>().add(place as usize);
        word.cast::<u64>().read()
    }
}

/// Takes what belongs into a return slot that holds the trampoline.
#[inline(always)]
unsafe fn mend(walk: *mut Walk, slot: *mut CopySlot, at: u64) {
    let mut index = MAX_SLOTS;
    // The outermost call at a place knows best: those that jumped from it know the trampoline.
    while index > 0 {
        index -= 1;
        // SAFETY: the walk's context and a checked map value.
        unsafe {
            let pair = (&raw const (*slot).copied.head.slots).cast::<[u64; 2]>().add(index).read();
            if pair[0] == at {
                (*walk).pc = pair[1];
                (*walk).mended = 1;
            }
        }
    }
}
