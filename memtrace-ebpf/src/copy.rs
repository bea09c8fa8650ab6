//! The user stack of a call: walked over learned steps where they are known, else copied for
//! user space to unwind, else by frame pointers.
//!
//! A stack is copied to a slot first: eight bytes of user memory at a time would cost three
//! times as much, and the ring buffer then gets what there is and no more. Slots are claimed,
//! never assumed: uprobe programs can be preempted by others on the same CPU.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{
    bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_probe_read_kernel, bpf_probe_read_user,
    bpf_ringbuf_output,
};
use memtrace_common::{
    AllocationRecord, Learned, LossCause, MAX_COPY, MAX_SLOTS, MAX_USER_FRAMES, MAX_WALK,
    StackForm, StackHead, StepKey, tunables::COPY_SLOTS,
};

use crate::{
    arch, atomic,
    call_books::Caller,
    emit::{emit_call, waiting_bytes, wakeup},
    globals,
    inflight::Inflight,
    loss::lost,
    maps::{BUDGET, COPIES, EVENTS, STEPS},
    stack,
    task::Task,
    walk::{self, Path, Start},
};

/// A page.
const PAGE: u64 = 4_096;
/// Slots that are tried.
const TRIES: u32 = 4;

/// Where a stack is copied to, and what is made of it.
#[repr(C)]
pub struct CopySlot {
    /// Whether somebody uses it.
    busy: u64,
    /// What the last walk went by.
    pub path: Path,
    /// What is sent of a walk.
    pub walked: Walked,
    /// What is sent of a copy.
    pub copied: Copied,
}

/// A call with return addresses.
#[repr(C)]
pub struct Walked {
    call: AllocationRecord,
    /// Innermost first.
    pub addresses: [u64; MAX_WALK],
}

/// A call with a copy of its stack.
#[repr(C)]
pub struct Copied {
    call: AllocationRecord,
    /// Registers, and what else unwinding needs.
    pub head: StackHead,
    /// The stack, from the stack pointer on. A page more than is ever used, so that the
    /// verifier sees a page fit in behind any place.
    pub bytes: [u8; MAX_COPY + PAGE as usize],
}

const _: () = assert!(COPY_SLOTS.is_power_of_two());
const _: () = assert!(MAX_COPY.is_power_of_two());

/// Sends a call with its stack.
#[inline(always)]
pub fn send(caller: &Caller, call: &AllocationRecord) {
    let inner = match caller.above {
        Caller::WALK => 0,
        Caller::WALK_ABOVE => caller.direct,
        _ => return send_known(caller, call),
    };
    let form = match through_slot(caller, call, inner) {
        DONE => return,
        OVER_BUDGET => StackForm::OverBudget,
        _ => StackForm::NotCopied,
    };
    lost(LossCause::StackBudget, 0);
    emit_call(call, form, inner, |frames: *mut [u64; MAX_USER_FRAMES]| {
        // What it cannot fill it clears.
        stack::user(caller.context, frames);
        if inner == 0 {
            // SAFETY: memory of MAX_USER_FRAMES addresses.
            unsafe { *frames.cast::<u64>() = caller.direct };
        }
    });
}

/// Sends a call of which no more is known than where it was to return to.
#[inline(always)]
fn send_known(caller: &Caller, call: &AllocationRecord) {
    let above = if caller.above == Caller::NOTHING { 0 } else { caller.above };
    emit_call(call, StackForm::Known, 0, |frames: *mut [u64; 2]| {
        // SAFETY: memory of two addresses.
        unsafe { *frames = [caller.direct, above] };
    });
}

// What comes of a slot.
const DONE: u64 = 0;
const OVER_BUDGET: u64 = 1;
const NOT_COPIED: u64 = 2;

/// Sends a call by way of a slot, if there is one.
#[inline(always)]
fn through_slot(caller: &Caller, call: &AllocationRecord, inner: u64) -> u64 {
    // SAFETY: no arguments.
    let cpu = unsafe { bpf_get_smp_processor_id() } as u64;
    let index = mt_claim_slot(cpu);
    let Some(slot) = COPIES.get_ptr_mut(index as u32) else { return NOT_COPIED };
    // SAFETY: a checked map value; the helper checks the address of the context.
    let read = unsafe {
        (*slot).copied.call = *call;
        (*slot).copied.call.inner = inner;
        let registers = &raw mut (*slot).copied.head.registers;
        let size = size_of_val(&(*slot).copied.head.registers) as u32;
        let read = bpf_probe_read_kernel(registers.cast(), size, caller.context);
        if inner == 0 {
            // At a return it is so already; a static probe goes on behind its instruction.
            (*registers)[arch::PT_REGS_IP] = caller.direct;
        }
        read
    };
    let sent = if read == 0 { mt_send_slot(index) } else { NOT_COPIED };
    // SAFETY: a checked map value.
    atomic::swap(unsafe { &raw mut (*slot).busy }, 0);
    sent
}

/// Takes a slot; one that is beyond all where none is free.
///
/// A global function, as the kernel calls it: the verifier checks it once, not once for each
/// way that leads to it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mt_claim_slot(cpu: u64) -> u64 {
    let cpu = cpu as u32;
    let mut round = 0;
    while round < TRIES {
        let index = (cpu + round * (COPY_SLOTS / TRIES + 1)) & (COPY_SLOTS - 1);
        let Some(slot) = COPIES.get_ptr_mut(index) else { break };
        // SAFETY: a checked map value.
        if atomic::swap(unsafe { &raw mut (*slot).busy }, 1) == 0 {
            return u64::from(index);
        }
        round += 1;
    }
    u64::from(COPY_SLOTS)
}

/// Sends the call that a slot has, with its stack. A global function as well.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mt_send_slot(index: u64) -> u64 {
    let index = index as u32;
    let Some(slot) = COPIES.get_ptr_mut(index) else { return NOT_COPIED };
    let task = Task::current();
    // SAFETY: a checked map value.
    unsafe {
        let head = &raw mut (*slot).copied.head;
        let stack_pointer = (*head).registers[arch::PT_REGS_SP];
        let length = length(task, stack_pointer);
        (*head).missing = 0;
        let got = take(slot, stack_pointer, length);
        let exec_pages = task.exec_pages();
        slots(task, &raw mut (*head).slots);
        (*head).exec_pages = exec_pages;
        (*head).whole = u64::from(got == length && length < MAX_COPY as u64);

        let space = (*slot).copied.call.space;
        let learned = StepKey { address: 0, space, reserved: 0 };
        if (*head).missing == 0
            && let Some(learned) = STEPS.get(learned)
            && Learned(learned.0).held_at(exec_pages)
        {
            let start = Start {
                pc: (*head).registers[arch::PT_REGS_IP],
                stack_pointer,
                frame_pointer: (*head).registers[arch::PT_REGS_BP],
                learned: learned.0,
                space: u64::from(space),
            };
            let count = walk::walk(index, slot, &start, got);
            if count != 0 && count <= MAX_WALK as u64 {
                let mut size = size_of::<AllocationRecord>() as u64;
                size += count * size_of::<u64>() as u64;
                let record = &raw mut (*slot).walked.call;
                *record = (*slot).copied.call;
                complete(record, StackForm::Walk, size);
                return output(record.cast(), size);
            }
        }
        if !affords(got) {
            return OVER_BUDGET;
        }
        let got = got & (2 * MAX_COPY as u64 - 1);
        if got > MAX_COPY as u64 {
            return NOT_COPIED;
        }
        let size = (size_of::<AllocationRecord>() + size_of::<StackHead>()) as u64 + got;
        let record = &raw mut (*slot).copied.call;
        complete(record, StackForm::Copy, size);
        output(record.cast(), size)
    }
}

#[inline(always)]
unsafe fn complete(record: *mut AllocationRecord, form: StackForm, size: u64) {
    // SAFETY: a checked map value.
    unsafe {
        (*record).header.length = size as u32;
        (*record).form = form as u32;
    }
}

#[inline(always)]
unsafe fn output(record: *mut c_void, size: u64) -> u64 {
    let ring = core::ptr::from_ref(&EVENTS).cast_mut().cast();
    // SAFETY: the verifier checks that so many bytes lie there.
    if unsafe { bpf_ringbuf_output(ring, record, size, wakeup()) } == 0 {
        DONE
    } else {
        // A few words may still find room.
        OVER_BUDGET
    }
}

/// How many bytes there are from the stack pointer to the end of the stack, at most
/// [`MAX_COPY`]. The first thread's ends where the kernel has put the arguments; a second
/// thread's where glibc has put its thread-local storage. On any other it is a guess.
#[inline(always)]
fn length(task: Task, stack_pointer: u64) -> u64 {
    let mut length = MAX_COPY as u64;
    let top = task.fsbase();
    if top > stack_pointer && top - stack_pointer < length {
        length = top - stack_pointer;
    }
    let top = task.start_stack();
    if top > stack_pointer && top - stack_pointer < length {
        length = top - stack_pointer;
    }
    length
}

/// Copies the stack; how many bytes could be had.
#[inline(always)]
unsafe fn take(slot: *mut CopySlot, stack_pointer: u64, length: u64) -> u64 {
    if length == 0 || length > MAX_COPY as u64 {
        return 0;
    }
    // SAFETY: a checked map value; the helper checks the user address.
    unsafe {
        let bytes = (&raw mut (*slot).copied.bytes).cast::<u8>();
        if bpf_probe_read_user(bytes.cast(), length as u32, stack_pointer as *const c_void) == 0 {
            return length;
        }
        // Page by page: what was never written to is not there, and somewhere it ends.
        let (mut at, mut got, mut missing) = (0_u64, 0_u64, 0_u64);
        let mut round = 0;
        while round < MAX_COPY as u64 / PAGE + 1 {
            let here = stack_pointer + at;
            let mut part = PAGE - (here & (PAGE - 1));
            if part > length - at {
                part = length - at;
            }
            let place = arch::opaque(at);
            if part == 0 || part > PAGE || place >= MAX_COPY as u64 {
                break;
            }
            let to = bytes.add(place as usize).cast();
            at += part;
            // What it cannot read it clears.
            if bpf_probe_read_user(to, part as u32, here as *const c_void) == 0 {
                got = at;
            } else {
                missing |= 1 << round;
            }
            round += 1;
        }
        (*slot).copied.head.missing = missing;
        got
    }
}

/// The return slots of the calls that this one is nested in: they hold the trampoline.
#[inline(always)]
unsafe fn slots(task: Task, slots: *mut [[u64; 2]; MAX_SLOTS]) {
    let inflight = Inflight::of(task, false);
    let mut index = 0;
    while index < MAX_SLOTS {
        // SAFETY: checked task storage, and a checked map value.
        unsafe {
            let mut pair = [0, 0];
            if !inflight.is_null() && (index as u64) < (*inflight).depth {
                let frame = Inflight::frame(inflight, index as u64);
                pair = [(*frame).stack_pointer, (*frame).return_address];
            }
            (&raw mut *slots).cast::<[u64; 2]>().add(index).write(pair);
        }
        index += 1;
    }
}

/// Takes so many bytes from the budget, if it has them and copies leave half of the ring buffer
/// to other records. Two CPUs at once may take one share
/// for two: the budget protects, it does not account.
#[inline(always)]
fn affords(bytes: u64) -> bool {
    if waiting_bytes() > globals::ring_copy_bytes() {
        return false;
    }
    let Some(spent_until) = BUDGET.get_ptr_mut(0) else { return false };
    // SAFETY: a checked map value, and a helper without arguments.
    unsafe {
        let now = bpf_ktime_get_ns();
        let mut from = core::ptr::read_volatile(spent_until);
        let earliest = now.saturating_sub(globals::copy_burst_ns());
        if from < earliest {
            from = earliest;
        }
        let until = from + bytes * globals::copy_kib_ns() / 1_024;
        if until > now {
            return false;
        }
        core::ptr::write_volatile(spent_until, until);
    }
    true
}
