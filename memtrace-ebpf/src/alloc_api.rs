//! Allocator functions of libraries: one generic set of programs, told by the attach cookie
//! which function fired and by its [`FunctionSpec`] how to read the call.
//!
//! Arguments are taken at entry, result and stack at return. At return the probed function's
//! own frame is gone: the instruction pointer is the caller's return address and the frame
//! pointers begin at the direct caller, so the stack is the one of the allocation site.
//!
//! Return probes go only on C functions that can neither throw nor call back into code that
//! can (see the catalog); this file relies on nothing else about them.

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
    CallLive, CallLiveKey, Counted, DuplicateRecord, FreeReason, FunctionKind, FunctionSpec,
    LossCause, PointerClass, PointerRule, RecordKind, SizeRule, Success, cookie_function,
    tunables::{IMPLAUSIBLE_BYTES, INFLIGHT_DEPTH},
};

use crate::{
    arch,
    call_books::{self, Caller, Reference, allocated, closed, left, next_id, opened, settled},
    context,
    emit::emit,
    geometry,
    inflight::{Frame, Inflight},
    latency::took,
    live::{copy_call, now, remove_call},
    loss::lost,
    mapped,
    maps::FUNCTIONS,
    nested::{
        Entered, Inner, drop_below, drop_dead, free_key, has_pending, outer_of, restore,
        settle_pending, take_inner, wait_for, waited,
    },
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
    let mut inflight = Inflight::of(task, false);
    let books = Inflight::books(inflight, task)?;
    // SAFETY: helpers on the program's own context.
    let (cookie, address) =
        unsafe { (bpf_get_attach_cookie(ctx.as_ptr()), bpf_get_func_ip(ctx.as_ptr())) };
    let spec = FUNCTIONS.get(u32::from(cookie_function(cookie)))?;
    if inflight.is_null() {
        inflight = Inflight::of(task, true);
    }
    if inflight.is_null() {
        lost(LossCause::InflightFull, 0);
        return None;
    }
    let stack_pointer = arch::stack_pointer(regs);
    // SAFETY: the helper checks the address.
    let return_address = unsafe { bpf_probe_read_user(stack_pointer as *const u64) }.unwrap_or(0);
    let caller = Caller::new(ctx.as_ptr(), books.space, books.serial, return_address);
    let entered = Entered { stack_pointer, return_address, address, cookie };
    if let Some(twice) = drop_dead(&caller, task, inflight, &entered) {
        duplicate(twice.first, twice.second);
        return None;
    }
    // SAFETY: checked task storage.
    unsafe {
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
        (*frame).entered_ns = now();
        (*frame).size_a = arch::argument(regs, spec.size_a);
        (*frame).size_b = arch::argument(regs, spec.size_b);
        (*frame).pointer = arch::argument(regs, spec.pointer_argument);
        if spec.pointer_rule == PointerRule::Ordinal as u8 {
            (*frame).pointer = u64::from((*frame).pointer as u32) + 1;
        }
        (*frame).device = arch::argument(regs, spec.device_argument);
        (*frame).folds = u32::from(spec.folds);
        (*frame).flags = if spec.counted == 0 { 0 } else { Frame::COUNTED };
        if spec.size_rule >= SizeRule::PitchedExtent as u8 {
            measure(regs, frame, spec.size_rule);
        }
        Frame::clear_pending(frame);
        if spec.kind == FunctionKind::Free as u8 {
            if (*frame).pointer == 0 {
                return None;
            }
            (*frame).flags |= Frame::FREE;
            set_aside(inflight, depth, spec, caller.space);
        }
        if spec.kind == FunctionKind::Reset as u8 {
            (*frame).flags |= Frame::RESET;
            if depth > 0 && (*Inflight::frame(inflight, depth - 1)).flags & Frame::RESET != 0 {
                (*frame).flags |= Frame::INNER;
            }
        }
        (*inflight).space = caller.space;
        (*inflight).serial = caller.serial;
        (*inflight).known = books.known;
        (*inflight).whole = books.whole;
        (*inflight).depth = depth + 1;
    }
    Some(())
}

/// Notes a size that lies in memory, which the call may change.
#[inline(always)]
unsafe fn measure(regs: *const pt_regs, frame: *mut Frame, rule: u8) {
    let stack = arch::stack_pointer(regs);
    let (out, description) = (arch::argument(regs, 0), arch::argument(regs, 1));
    let (third, fourth) = (arch::argument(regs, 2), arch::argument(regs, 3));
    let size = geometry::mt_geometry(u64::from(rule), stack, description, third, fourth);
    // SAFETY: checked task storage.
    unsafe {
        if rule == SizeRule::PitchedExtent as u8 {
            // Behind the pointer is the pitch.
            (*frame).size_a = out.wrapping_add(8);
            (*frame).size_b = size;
        } else {
            (*frame).size_a = size;
            (*frame).described = [description, third, fourth];
        }
    }
}

/// Looks at a description once more that could not be read before the call: it may lie in a page
/// that the program had not come to yet.
#[inline(always)]
unsafe fn measure_again(frame: *mut Frame, rule: u8) {
    // SAFETY: checked task storage.
    unsafe {
        if (*frame).size_a == geometry::UNKNOWN || (*frame).size_a == geometry::UNREADABLE {
            let [description, third, fourth] = (*frame).described;
            let stack = (*frame).stack_pointer;
            (*frame).size_a =
                geometry::mt_geometry(u64::from(rule), stack, description, third, fourth);
        }
    }
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
        if spec.counted != 0 {
            return;
        }
        let key = free_key(space, frame, spec);
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
    let direct = arch::instruction_pointer(regs);
    // SAFETY: checked task storage.
    let (space, serial) = unsafe { ((*inflight).space, (*inflight).serial) };
    let caller = Caller::new(ctx.as_ptr(), space, serial, direct);
    // SAFETY: a helper on the program's own context.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let stack_pointer = arch::stack_pointer(regs).wrapping_sub(arch::RETURN_POPS);
    drop_below(&caller, inflight, stack_pointer);
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
        let function = u32::from(cookie_function(cookie));
        let spec = FUNCTIONS.get(function)?;
        let now_ns = now();
        took(function, now_ns.wrapping_sub((*frame).entered_ns));
        let value = arch::return_value(regs);
        let succeeded = match spec.success {
            s if s == Success::ZeroStatus as u8 => value as u32 == 0,
            s if s == Success::NonNull as u8 => value != 0,
            _ => true,
        };
        if (*frame).flags & Frame::FREE != 0 {
            finish_free(&caller, inflight, depth - 1, spec, succeeded);
            return Some(());
        }
        if spec.kind == FunctionKind::Map as u8 || spec.kind == FunctionKind::Unmap as u8 {
            if !succeeded {
            } else if spec.kind == FunctionKind::Map as u8 {
                mapped::map(space, frame);
            } else {
                mapped::unmap(space, (*frame).pointer, (*frame).size_a);
            }
            return Some(());
        }
        if spec.kind == FunctionKind::Select as u8 {
            if succeeded {
                context::select(inflight, frame, spec.device_rule, space);
            }
            return Some(());
        }
        if spec.kind == FunctionKind::Reset as u8 {
            if (*frame).flags & Frame::INNER != 0 {
            } else if succeeded {
                context::reset(inflight, frame, spec.device_rule, space);
            } else {
                call_books::count(space, function, |row| &raw mut (*row).failed_frees);
            }
            return Some(());
        }
        let mut outer = outer_of(inflight, depth - 1, spec);
        let mut told = false;
        if spec.counted != 0 && !outer.is_null() {
            // A reference does not wait: an outer call that counts too says it all, another nothing.
            told = (*outer).flags & Frame::COUNTED != 0;
            outer = core::ptr::null_mut();
        }
        if spec.class == PointerClass::Context as u8 {
            // Nobody gives it on.
            outer = core::ptr::null_mut();
        }
        if told {
        } else if succeeded {
            finish_allocation(&caller, inflight, frame, outer, spec, Returned { value, now_ns });
        } else if outer.is_null() && spec.uncounted == 0 {
            fail(&caller, frame, spec);
        }
        settle_pending(&caller, frame, Caller::WALK_ABOVE);
    }
    Some(())
}

/// What a call gave, and when.
struct Returned {
    value: u64,
    now_ns: u64,
}

#[inline(always)]
unsafe fn finish_allocation(
    caller: &Caller,
    inflight: *mut Inflight,
    frame: *mut Frame,
    outer: *mut Frame,
    spec: &FunctionSpec,
    returned: Returned,
) {
    // SAFETY: checked task storage; the helper checks user addresses.
    unsafe {
        let function = u32::from(cookie_function((*frame).cookie));
        // What goes wrong in an inner call goes wrong in its outer one, and counts there.
        let counts = outer.is_null() && spec.uncounted == 0;
        if spec.size_rule >= SizeRule::ChannelArray as u8 {
            measure_again(frame, spec.size_rule);
        }
        let bytes = match size_of_call(frame, spec) {
            Size::Bytes(bytes) => bytes,
            Size::Implausible if counts => {
                call_books::count(caller.space, function, |row| &raw mut (*row).implausible);
                return lost(LossCause::Implausible, 0);
            }
            Size::Unreadable if counts => return lost(LossCause::UnreadablePointer, 0),
            _ => return,
        };
        let pointer = if spec.pointer_rule == PointerRule::Return as u8 {
            returned.value
        } else if spec.pointer_rule != PointerRule::OutParameter as u8 {
            (*frame).pointer
        } else if let Ok(pointer) = bpf_probe_read_user((*frame).pointer as *const u64) {
            pointer
        } else {
            if counts {
                lost(LossCause::UnreadablePointer, 0);
                // An inner call that knows its pointer is the same memory.
                if !has_pending(frame) {
                    call_books::dropped(caller.space, function, bytes);
                }
            }
            return;
        };
        if pointer == 0 {
            if counts {
                call_books::count(caller.space, function, |row| &raw mut (*row).empty);
            }
            return;
        }
        let key = CallLiveKey { space: caller.space, class: u32::from(spec.class), pointer };
        // What an inner call gave under this very pointer becomes this allocation.
        let function = cookie_function((*frame).cookie);
        // In full: what is taken over from another is copied by the byte.
        let mut entry =
            CallLive { bytes, id: 0, time_ns: returned.now_ns, function, context: 0, state: 0 };
        context::place(inflight, frame, spec.device_rule, &mut entry);
        if spec.counted == Counted::Given as u8 {
            entry.id = if spec.uncounted == 0 { next_id() } else { 0 };
            if spec.class == PointerClass::Primary as u8 {
                context::retained(caller.space, frame, &entry);
            }
            return opened(caller, &key, &mut entry);
        }
        if spec.class == PointerClass::Context as u8 {
            entry.id = if spec.uncounted == 0 { next_id() } else { 0 };
            context::made(inflight, &mut entry);
            return allocated(caller, &key, &mut entry);
        }
        match take_inner(frame, &key) {
            Inner::Waits(live) => {
                entry.id = (*live).id;
                if outer.is_null() {
                    // It is in the live map, and gets its name and its size.
                    copy_call(&raw const entry, live);
                    settled(caller, &key, &mut entry);
                    (*live).state = entry.state;
                    return;
                }
            }
            Inner::None => entry.id = if spec.uncounted == 0 { next_id() } else { 0 },
            Inner::Booked => return,
        }
        // What is in no counter does not wait for a name.
        if outer.is_null() || spec.uncounted != 0 {
            allocated(caller, &key, &mut entry);
        } else {
            wait_for(caller, outer, &key, &entry);
        }
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
            s if s == SizeRule::None as u8 => (0, 1),
            s if s == SizeRule::Product as u8 => ((*frame).size_a, (*frame).size_b),
            s if s == SizeRule::ProductAtReturn as u8 || s == SizeRule::PitchedExtent as u8 => {
                match bpf_probe_read_user((*frame).size_a as *const u64) {
                    Ok(factor) => (factor, (*frame).size_b),
                    Err(_) => return Size::Unreadable,
                }
            }
            s if s >= SizeRule::ChannelArray as u8 && (*frame).size_a == geometry::UNKNOWN => {
                return Size::Unreadable;
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
fn fail(caller: &Caller, frame: *mut Frame, spec: &FunctionSpec) {
    // SAFETY: checked task storage.
    let (bytes, function) = unsafe {
        let bytes = match size_of_call(frame, spec) {
            Size::Bytes(bytes) => bytes,
            Size::Implausible | Size::Unreadable => 0,
        };
        (bytes, u32::from(cookie_function((*frame).cookie)))
    };
    // SAFETY: `count` passes a checked map value.
    if !call_books::count(caller.space, function, |row| unsafe { &raw mut (*row).failures }) {
        return;
    }
    let key = CallLiveKey { space: caller.space, class: 0, pointer: 0 };
    let entry = CallLive { bytes, function: function as u16, ..CallLive::NONE };
    call_books::report(caller, RecordKind::Failure, &key, &entry);
}

#[inline(always)]
unsafe fn finish_free(
    caller: &Caller,
    inflight: *mut Inflight,
    depth: u64,
    spec: &FunctionSpec,
    succeeded: bool,
) {
    // SAFETY: checked task storage.
    unsafe {
        let frame = Inflight::frame(inflight, depth);
        let function = u32::from(cookie_function((*frame).cookie));
        let flags = (*frame).flags;
        if flags & Frame::INNER != 0 {
            return;
        }
        let key = free_key(caller.space, frame, spec);
        let mut taken = CallLive::NONE;
        copy_call(&raw const (*frame).taken, &raw mut taken);
        if !succeeded {
            if spec.uncounted == 0 {
                call_books::count(caller.space, function, |row| &raw mut (*row).failed_frees);
            }
            if flags & Frame::TAKEN != 0 {
                restore(caller, &key, &taken);
            }
        } else if flags & Frame::TAKEN != 0 {
            let whose = if taken.state & CallLive::PENDING != 0 && depth > 0 {
                waited(caller, Inflight::frame(inflight, depth - 1), &taken)
            } else {
                *caller
            };
            left(&whose, &key, &taken, FreeReason::Freed);
            if spec.class == PointerClass::Context as u8 {
                context::destroyed(inflight, caller.space, &taken);
            }
        } else {
            let reference = if spec.counted == 0 { Reference::Unknown } else { closed(&key) };
            if reference == Reference::Last && spec.class == PointerClass::Primary as u8 {
                context::released(caller.space, key.pointer);
            }
            if reference == Reference::Unknown && spec.uncounted == 0 {
                call_books::count(caller.space, function, |row| &raw mut (*row).unknown_frees);
            }
        }
    }
}

#[inline(always)]
pub fn duplicate(first: u32, second: u32) {
    emit(RecordKind::Duplicate, |record: *mut DuplicateRecord| {
        // SAFETY: reserved memory of the record's size.
        unsafe {
            (*record).first = first;
            (*record).second = second;
        }
    });
}
