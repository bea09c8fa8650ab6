//! Allocator functions of libraries: one generic set of programs, told by the attach cookie
//! which function fired and by its [`FunctionSpec`] how to read the call.
//!
//! Arguments are taken at entry, result and stack at return. At return the probed function's
//! own frame is gone: the instruction pointer is the caller's return address and the frame
//! pointers begin at the direct caller, so the stack is the one of the allocation site.
//!
//! Return probes go only on C functions that can neither throw nor call back into code that
//! can (see the catalog); this file relies on nothing else about them.

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext,
    bindings::pt_regs,
    helpers::{
        bpf_probe_read_user,
        generated::{bpf_get_attach_cookie, bpf_get_func_ip},
    },
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use memtrace_common::{
    CallLive, CallLiveKey, DuplicateRecord, FreeReason, FunctionKind, FunctionSpec, LossCause,
    PointerRule, RecordKind, SizeRule, Success, cookie_attachment, cookie_function,
    tunables::{IMPLAUSIBLE_BYTES, INFLIGHT_DEPTH, PENDING_INNER},
};

use crate::{
    account::add_one,
    arch,
    call_books::{self, Caller, allocated, dropped, left, next_id, settled, totals_row},
    emit::emit,
    inflight::{Frame, Inflight, Pending},
    live::{Inserted, insert_call, now, put_back, remove_call},
    loss::lost,
    maps::{CALL_LIVE, FUNCTIONS},
    process,
    task::Task,
};

#[uprobe]
pub fn mt_call_entry(ctx: ProbeContext) -> u32 {
    enter(&ctx);
    0
}

#[uretprobe]
pub fn mt_call_return(ctx: RetProbeContext) -> u32 {
    leave(&ctx);
    0
}

#[inline(always)]
fn enter(ctx: &ProbeContext) -> Option<()> {
    let regs: *const pt_regs = ctx.regs;
    let task = Task::current();
    let identity = process::current(task)?;
    if !identity.booked() {
        return None;
    }
    // SAFETY: helpers on the program's own context.
    let (cookie, address) =
        unsafe { (bpf_get_attach_cookie(ctx.as_ptr()), bpf_get_func_ip(ctx.as_ptr())) };
    let spec = FUNCTIONS.get(u32::from(cookie_function(cookie)))?;
    let inflight = Inflight::of(task, true);
    if inflight.is_null() {
        lost(LossCause::InflightFull, 0);
        return None;
    }
    let context = ctx.as_ptr();
    let stack_pointer = arch::stack_pointer(regs);
    // SAFETY: the helper checks the address.
    let return_address = unsafe { bpf_probe_read_user(stack_pointer as *const u64) }.unwrap_or(0);

    drop_below(context, inflight, stack_pointer);
    // SAFETY: checked task storage.
    unsafe {
        let depth = (*inflight).depth;
        if depth > 0 {
            let top = Inflight::frame(inflight, depth - 1);
            if (*top).stack_pointer == stack_pointer {
                if (*top).address == address
                    && cookie_attachment((*top).cookie) != cookie_attachment(cookie)
                {
                    duplicate(cookie_attachment((*top).cookie), cookie_attachment(cookie));
                    return None;
                }
                let trampoline = task.uprobe_trampoline();
                if trampoline == 0 || return_address != trampoline {
                    abandon(context, top);
                    (*inflight).depth = depth - 1;
                }
            }
        }
        let depth = (*inflight).depth;
        if depth >= INFLIGHT_DEPTH as u64 {
            lost(LossCause::InflightFull, 0);
            return None;
        }
        let frame = Inflight::frame(inflight, depth);
        (*frame).stack_pointer = stack_pointer;
        (*frame).return_address = return_address;
        (*frame).address = address;
        (*frame).cookie = cookie;
        (*frame).size_a = arch::argument(regs, spec.size_a);
        (*frame).size_b = arch::argument(regs, spec.size_b);
        (*frame).pointer = arch::argument(regs, spec.pointer_argument);
        (*frame).space = identity.space;
        (*frame).serial = identity.serial;
        (*frame).folds = u32::from(spec.folds);
        (*frame).flags = 0;
        (*frame).pending = [Pending::NONE; PENDING_INNER];
        if spec.kind == FunctionKind::Free as u8 {
            if (*frame).pointer == 0 {
                return None;
            }
            (*frame).flags = Frame::FREE;
            set_aside(inflight, depth, spec, identity.space);
        }
        (*inflight).depth = depth + 1;
    }
    Some(())
}

/// Takes what a free names out of the live map until the free has returned.
#[inline(always)]
unsafe fn set_aside(inflight: *mut Inflight, depth: u64, spec: &FunctionSpec, space: u32) {
    // SAFETY: checked task storage.
    unsafe {
        let frame = Inflight::frame(inflight, depth);
        if depth > 0 {
            let outer = Inflight::frame(inflight, depth - 1);
            if (*outer).flags & Frame::FREE != 0
                && (*outer).pointer == (*frame).pointer
                && (*outer).folds & u32::from(spec.family) != 0
            {
                (*frame).flags |= Frame::INNER;
                return;
            }
        }
        let key = CallLiveKey { space, class: u32::from(spec.class), pointer: (*frame).pointer };
        if let Some(entry) = remove_call(&key) {
            (*frame).taken = entry;
            (*frame).flags |= Frame::TAKEN;
        }
    }
}

#[inline(always)]
fn leave(ctx: &RetProbeContext) -> Option<()> {
    let regs: *const pt_regs = ctx.regs;
    let task = Task::current();
    let inflight = Inflight::of(task, false);
    if inflight.is_null() {
        return None;
    }
    let context = ctx.as_ptr();
    // SAFETY: a helper on the program's own context.
    let cookie = unsafe { bpf_get_attach_cookie(context) };
    let stack_pointer = arch::stack_pointer(regs).wrapping_sub(arch::RETURN_POPS);
    drop_below(context, inflight, stack_pointer);
    // SAFETY: checked task storage.
    unsafe {
        let depth = (*inflight).depth;
        if depth == 0 {
            return None;
        }
        let frame = Inflight::frame(inflight, depth - 1);
        // Not ours: the second attachment of one file, or a call that was too deep to be followed.
        if (*frame).stack_pointer != stack_pointer || (*frame).cookie != cookie {
            return None;
        }
        // The frame stays readable: nothing else of this thread runs until this program is done.
        (*inflight).depth = depth - 1;
        let caller = Caller { context, space: (*frame).space, serial: (*frame).serial };
        let function = u32::from(cookie_function(cookie));
        let spec = FUNCTIONS.get(function)?;
        let value = arch::return_value(regs);
        let succeeded = match spec.success {
            s if s == Success::ZeroStatus as u8 => value as u32 == 0,
            s if s == Success::NonNull as u8 => value != 0,
            _ => true,
        };
        if (*frame).flags & Frame::FREE != 0 {
            finish_free(&caller, frame, spec, function, succeeded);
            return Some(());
        }
        let outer = outer_of(inflight, depth - 1, spec);
        if succeeded {
            finish_allocation(&caller, frame, outer, spec, value);
        } else if outer.is_null() {
            fail(&caller, frame, function);
        }
        settle_pending(&caller, frame, u32::from(spec.class));
    }
    Some(())
}

/// The enclosing call that this one may fold into; null if there is none.
#[inline(always)]
unsafe fn outer_of(inflight: *mut Inflight, depth: u64, spec: &FunctionSpec) -> *mut Frame {
    if depth == 0 {
        return core::ptr::null_mut();
    }
    // SAFETY: checked task storage.
    unsafe {
        let outer = Inflight::frame(inflight, depth - 1);
        if (*outer).flags & Frame::FREE == 0 && (*outer).folds & u32::from(spec.family) != 0 {
            outer
        } else {
            core::ptr::null_mut()
        }
    }
}

#[inline(always)]
unsafe fn finish_allocation(
    caller: &Caller,
    frame: *mut Frame,
    outer: *mut Frame,
    spec: &FunctionSpec,
    value: u64,
) {
    // SAFETY: checked task storage; the helper checks user addresses.
    unsafe {
        let function = u32::from(cookie_function((*frame).cookie));
        let bytes = match size_of_call(frame, spec) {
            Size::Bytes(bytes) => bytes,
            Size::Implausible => {
                call_books::count(caller.space, function, |row| &raw mut (*row).implausible);
                lost(LossCause::Implausible, 0);
                return;
            }
            Size::Unreadable => {
                lost(LossCause::UnreadablePointer, 0);
                return;
            }
        };
        let pointer = if spec.pointer_rule == PointerRule::Return as u8 {
            value
        } else if let Ok(pointer) = bpf_probe_read_user((*frame).pointer as *const u64) {
            pointer
        } else {
            lost(LossCause::UnreadablePointer, bytes);
            if let Some(row) = totals_row(caller.space, function) {
                add_one(&raw mut (*row).seen, bytes);
                add_one(&raw mut (*row).dropped, bytes);
            }
            return;
        };
        if pointer == 0 {
            call_books::count(caller.space, function, |row| &raw mut (*row).empty);
            return;
        }
        let key = CallLiveKey { space: caller.space, class: u32::from(spec.class), pointer };
        let mut entry = CallLive { bytes, id: 0, time_ns: now(), function, reserved: 0 };
        if !outer.is_null() && wait_for(caller, outer, &key, &mut entry) {
            return;
        }
        // What an inner call gave under this very pointer becomes this allocation.
        let mut index = 0;
        while index < PENDING_INNER {
            let place = &raw mut (*frame).pending[index & (PENDING_INNER - 1)];
            if (*place).pointer == pointer {
                if (*place).entered != 0
                    && let Some(inner) = CALL_LIVE.get_ptr_mut(&key)
                    && (*inner).function & CallLive::PENDING != 0
                {
                    // It is in the live map already, and only changes its name and its size.
                    *place = Pending::NONE;
                    entry.id = (*inner).id;
                    *inner = entry;
                    settled(caller, &key, &entry);
                    return;
                }
                *place = Pending::NONE;
            }
            index += 1;
        }
        entry.id = next_id();
        allocated(caller, &key, &entry);
    }
}

const _: () = assert!(PENDING_INNER.is_power_of_two());

/// Enters an inner allocation as pending and notes it in the outer frame; false if the outer
/// frame has no room, so that it must be booked now.
#[inline(always)]
unsafe fn wait_for(
    caller: &Caller,
    outer: *mut Frame,
    key: &CallLiveKey,
    entry: &mut CallLive,
) -> bool {
    // SAFETY: checked task storage.
    unsafe {
        let mut index = 0;
        while index < PENDING_INNER {
            let place = &raw mut (*outer).pending[index & (PENDING_INNER - 1)];
            if (*place).pointer == 0 {
                let mut old = CallLive::NONE;
                let mut pending = *entry;
                pending.id = next_id();
                pending.function |= CallLive::PENDING;
                (*place).entered = 1;
                match insert_call(key, &pending, &mut old) {
                    Inserted::New => {}
                    Inserted::Replaced => left(caller, key, &old, FreeReason::FreedUnseen),
                    Inserted::Full => (*place).entered = 0,
                }
                (*place).pointer = key.pointer;
                (*place).bytes = entry.bytes;
                (*place).function = entry.function;
                return true;
            }
            index += 1;
        }
    }
    false
}

/// Books inner allocations that the outer call did not hand on as its own.
#[inline(never)]
fn settle_pending(caller: &Caller, frame: *mut Frame, class: u32) {
    let mut index = 0;
    while index < PENDING_INNER {
        // SAFETY: checked task storage.
        unsafe {
            let place = &raw mut (*frame).pending[index & (PENDING_INNER - 1)];
            let Pending { pointer, bytes, function, entered } = *place;
            *place = Pending::NONE;
            if pointer != 0 {
                let key = CallLiveKey { space: caller.space, class, pointer };
                if entered == 0 {
                    dropped(caller.space, function, bytes);
                } else if let Some(entry) = CALL_LIVE.get_ptr_mut(&key)
                    && (*entry).function & CallLive::PENDING != 0
                {
                    // If it is not there it was freed inside the call, and booked by that.
                    (*entry).function &= !CallLive::PENDING;
                    let entry = *entry;
                    settled(caller, &key, &entry);
                }
            }
        }
        index += 1;
    }
}

enum Size {
    Bytes(u64),
    Implausible,
    Unreadable,
}

#[inline(always)]
unsafe fn size_of_call(frame: *mut Frame, spec: &FunctionSpec) -> Size {
    // SAFETY: checked task storage; the helper checks the user address.
    let (a, b) = unsafe {
        match spec.size_rule {
            s if s == SizeRule::Product as u8 => ((*frame).size_a, (*frame).size_b),
            s if s == SizeRule::ProductAtReturn as u8 => {
                match bpf_probe_read_user((*frame).size_a as *const u64) {
                    Ok(factor) => (factor, (*frame).size_b),
                    Err(_) => return Size::Unreadable,
                }
            }
            _ => ((*frame).size_a, 1),
        }
    };
    if a >= IMPLAUSIBLE_BYTES || b >= IMPLAUSIBLE_BYTES {
        return Size::Implausible;
    }
    if b != 0 && a > (IMPLAUSIBLE_BYTES - 1) / b {
        return Size::Implausible;
    }
    Size::Bytes(a * b)
}

#[inline(never)]
fn fail(caller: &Caller, frame: *mut Frame, function: u32) {
    // SAFETY: checked task storage.
    let bytes = unsafe { (*frame).size_a };
    call_books::count(caller.space, function, |row| unsafe { &raw mut (*row).failures });
    let key = CallLiveKey { space: caller.space, class: 0, pointer: 0 };
    let entry = CallLive { bytes, function, ..CallLive::NONE };
    call_books::report(caller, RecordKind::Failure, &key, &entry);
}

#[inline(always)]
unsafe fn finish_free(
    caller: &Caller,
    frame: *mut Frame,
    spec: &FunctionSpec,
    function: u32,
    succeeded: bool,
) {
    // SAFETY: checked task storage.
    unsafe {
        let flags = (*frame).flags;
        if flags & Frame::INNER != 0 {
            return;
        }
        let key = CallLiveKey {
            space: caller.space,
            class: u32::from(spec.class),
            pointer: (*frame).pointer,
        };
        let taken = (*frame).taken;
        if !succeeded {
            call_books::count(caller.space, function, |row| &raw mut (*row).failed_frees);
            if flags & Frame::TAKEN != 0 {
                restore(caller, &key, &taken);
            }
        } else if flags & Frame::TAKEN != 0 {
            left(caller, &key, &taken, FreeReason::Freed);
        } else {
            call_books::count(caller.space, function, |row| &raw mut (*row).unknown_frees);
        }
    }
}

/// Puts an entry back; if its address has a new one, it must have been freed unseen.
#[inline(never)]
fn restore(caller: &Caller, key: &CallLiveKey, taken: &CallLive) {
    if !put_back(key, taken) {
        left(caller, key, taken, FreeReason::FreedUnseen);
    }
}

/// Drops frames whose stack pointer lies below: their functions were left without a return.
#[inline(always)]
fn drop_below(context: *mut c_void, inflight: *mut Inflight, stack_pointer: u64) {
    let mut round = 0;
    while round < INFLIGHT_DEPTH {
        // SAFETY: checked task storage.
        unsafe {
            let depth = (*inflight).depth;
            if depth == 0 {
                return;
            }
            let top = Inflight::frame(inflight, depth - 1);
            if (*top).stack_pointer >= stack_pointer {
                return;
            }
            abandon(context, top);
            (*inflight).depth = depth - 1;
        }
        round += 1;
    }
}

/// Counts a call whose return was not seen, and settles what it held.
#[inline(never)]
pub fn abandon(context: *mut c_void, frame: *mut Frame) {
    lost(LossCause::MissedReturn, 0);
    // SAFETY: checked task storage.
    unsafe {
        let caller = &Caller { context, space: (*frame).space, serial: (*frame).serial };
        let Some(spec) = FUNCTIONS.get(u32::from(cookie_function((*frame).cookie))) else { return };
        let class = u32::from(spec.class);
        settle_pending(caller, frame, class);
        if (*frame).flags & Frame::TAKEN != 0 {
            let key = CallLiveKey { space: caller.space, class, pointer: (*frame).pointer };
            let taken = (*frame).taken;
            restore(caller, &key, &taken);
        }
    }
}

#[inline(always)]
fn duplicate(first: u32, second: u32) {
    emit(RecordKind::Duplicate, |record: *mut DuplicateRecord| {
        // SAFETY: reserved memory of the record's size.
        unsafe {
            (*record).first = first;
            (*record).second = second;
        }
    });
}
