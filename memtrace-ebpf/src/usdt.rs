//! Static probes: one program for all of them, told by the attach cookie which probe fired and by
//! its [`UsdtPoint`] where the arguments are.
//!
//! A static probe fires in the middle of a function, once, and has no return: what it tells of an
//! allocation has happened, what it tells of a free is about to, and neither fails. Its stack is
//! the one at its place.

use aya_ebpf::{
    EbpfContext,
    bindings::pt_regs,
    helpers::{bpf_probe_read_user, generated::bpf_get_attach_cookie},
    macros::uprobe,
    programs::ProbeContext,
};
use memtrace_common::{
    CallLive, CallLiveKey, FreeReason, FunctionKind, FunctionSpec, LossCause, UsdtArgument,
    UsdtPlace, UsdtPoint, cookie_attachment, cookie_function, tunables::IMPLAUSIBLE_BYTES,
};

use crate::{
    alloc_api::duplicate,
    arch,
    call_books::{self, Caller, allocated, left, next_id},
    inflight::{Fired, Inflight},
    live::{now, remove_call},
    loss::lost,
    maps::{FUNCTIONS, USDT_POINTS},
    task::Task,
};

#[uprobe]
pub fn mt_usdt(ctx: ProbeContext) -> u32 {
    fire(&ctx);
    0
}

#[inline(always)]
fn fire(ctx: &ProbeContext) -> Option<()> {
    let task = Task::current();
    let mut inflight = Inflight::of(task, false);
    let books = Inflight::books(inflight, task)?;
    // SAFETY: a helper on the program's own context.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let function = u32::from(cookie_function(cookie));
    let spec = FUNCTIONS.get(function)?;
    let point: *const UsdtPoint = USDT_POINTS.get_ptr(cookie)?;
    if inflight.is_null() {
        inflight = Inflight::of(task, true);
    }
    if inflight.is_null() {
        lost(LossCause::InflightFull, 0);
        return None;
    }
    let regs: *const pt_regs = ctx.regs;
    let address = arch::instruction_pointer(regs);
    let fired = Fired {
        address,
        stack_pointer: arch::stack_pointer(regs),
        attachment: u64::from(cookie_attachment(cookie)),
    };
    // SAFETY: checked task storage.
    unsafe {
        (*inflight).space = books.space;
        (*inflight).serial = books.serial;
        (*inflight).known = books.known;
        (*inflight).whole = books.whole;
        if told_twice(inflight, &fired) {
            return None;
        }
    }
    let caller = Caller::new(ctx.as_ptr(), books.space, books.serial, address.wrapping_add(1));
    // SAFETY: a checked map value, which user space has written before it attached.
    let (pointer, size) = unsafe { (&(*point).pointer, &(*point).size) };
    if spec.kind == FunctionKind::Free as u8 {
        return take_back(&caller, function, spec, fetch(ctx, pointer));
    }
    give(&caller, function, spec, fetch(ctx, pointer), fetch(ctx, size))
}

/// Whether another attachment has just told the same: one file, seen as two. The probe after it is
/// believed again, so that a library in another one's place is heard.
#[inline(always)]
unsafe fn told_twice(inflight: *mut Inflight, fired: &Fired) -> bool {
    // SAFETY: checked task storage.
    unsafe {
        let before = (*inflight).fired;
        if before.address == fired.address
            && before.stack_pointer == fired.stack_pointer
            && before.attachment != fired.attachment
        {
            (*inflight).fired = Fired::NONE;
            duplicate(before.attachment as u32, fired.attachment as u32);
            return true;
        }
        (*inflight).fired = *fired;
    }
    false
}

/// Books what was given.
#[inline(always)]
fn give(
    caller: &Caller,
    function: u32,
    spec: &FunctionSpec,
    pointer: Option<u64>,
    size: Option<u64>,
) -> Option<()> {
    let Some(bytes) = size else {
        lost(LossCause::UnreadablePointer, 0);
        return None;
    };
    if bytes >= IMPLAUSIBLE_BYTES {
        // SAFETY: `count` passes a checked map value.
        call_books::count(caller.space, function, |row| unsafe { &raw mut (*row).implausible });
        lost(LossCause::Implausible, 0);
        return None;
    }
    let Some(pointer) = pointer else {
        lost(LossCause::UnreadablePointer, 0);
        call_books::dropped(caller.space, function, bytes);
        return None;
    };
    if pointer == 0 {
        // SAFETY: `count` passes a checked map value.
        call_books::count(caller.space, function, |row| unsafe { &raw mut (*row).empty });
        return None;
    }
    let key = CallLiveKey { space: caller.space, class: u32::from(spec.class), pointer };
    let function = function as u16;
    let mut entry = CallLive { bytes, id: next_id(), time_ns: now(), function, ..CallLive::NONE };
    allocated(caller, &key, &mut entry);
    Some(())
}

/// Books what is taken back.
#[inline(always)]
fn take_back(
    caller: &Caller,
    function: u32,
    spec: &FunctionSpec,
    pointer: Option<u64>,
) -> Option<()> {
    let Some(pointer) = pointer else {
        lost(LossCause::UnreadablePointer, 0);
        return None;
    };
    if pointer == 0 {
        return None;
    }
    let key = CallLiveKey { space: caller.space, class: u32::from(spec.class), pointer };
    match remove_call(&key) {
        Some(entry) => left(caller, &key, &entry, FreeReason::Freed),
        None => {
            // SAFETY: `count` passes a checked map value.
            call_books::count(caller.space, function, |row| unsafe {
                &raw mut (*row).unknown_frees
            });
        }
    }
    Some(())
}

/// An argument's value; `None` where it lies in memory that cannot be read.
#[inline(always)]
fn fetch(ctx: &ProbeContext, argument: &UsdtArgument) -> Option<u64> {
    let register = |place: u16| {
        if place == UsdtArgument::NONE { Some(0) } else { arch::register(ctx.as_ptr(), place) }
    };
    if argument.place == UsdtPlace::Constant as u8 {
        return Some(argument.value(argument.number as u64));
    }
    let base = register(argument.base)?;
    if argument.place == UsdtPlace::Register as u8 {
        return Some(argument.value(base));
    }
    let index = register(argument.index)? << (argument.scale & 3);
    let address = base.wrapping_add(index).wrapping_add(argument.number as u64);
    // No more than there is: what follows may be another page. SAFETY: the helper checks addresses.
    let bits = unsafe {
        match argument.bytes {
            1 => bpf_probe_read_user(address as *const u8).map(u64::from),
            2 => bpf_probe_read_user(address as *const u16).map(u64::from),
            4 => bpf_probe_read_user(address as *const u32).map(u64::from),
            _ => bpf_probe_read_user(address as *const u64),
        }
    };
    bits.ok().map(|bits| argument.value(bits))
}
