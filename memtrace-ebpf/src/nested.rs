//! Calls inside calls: inner allocations wait for what their outer call gives, and calls that
//! were left by another way than their return are settled.

use aya_ebpf::helpers::bpf_probe_read_user;
use memtrace_common::{
    CallLive, CallLiveKey, FreeReason, FunctionSpec, LossCause, cookie_attachment, cookie_function,
    tunables::{INFLIGHT_DEPTH, PENDING_INNER},
};

use crate::{
    call_books::{Caller, dropped, left, settled},
    inflight::{BELOW, Fired, Frame, Inflight, Pending},
    live::{Inserted, insert_call, put_back},
    loss::lost,
    maps::{CALL_LIVE, FUNCTIONS},
    task::Task,
};

const _: () = assert!(PENDING_INNER.is_power_of_two());

/// Drops frames whose calls will not return; whether the call that is entered now is another
/// attachment's view of the one on top.
///
/// A frame below the stack pointer was left (longjmp, an exception). One at the very stack
/// pointer was left too, unless its call has jumped to this one: then the return slot holds the
/// trampoline. So does the slot of every call that is still to return; a slot that holds
/// something else has been overwritten since.
#[inline(always)]
pub fn drop_dead(
    caller: &Caller,
    task: Task,
    inflight: *mut Inflight,
    entered: &Entered,
) -> Option<Duplicate> {
    let mut round = 0;
    while round < INFLIGHT_DEPTH {
        // SAFETY: checked task storage; the helper checks the user address.
        unsafe {
            let depth = (*inflight).depth;
            if depth == 0 {
                return None;
            }
            let top = Inflight::frame(inflight, depth - 1);
            let at = (*top).stack_pointer;
            if at >= entered.stack_pointer {
                let other = cookie_attachment((*top).cookie);
                let attachment = cookie_attachment(entered.cookie);
                if round == 0
                    && at == entered.stack_pointer
                    && (*top).address == entered.address
                    // Below kernel 6.6 the address of a perf-event uprobe is not told.
                    && cookie_function((*top).cookie) == cookie_function(entered.cookie)
                    && other != attachment
                {
                    return Some(Duplicate { first: other, second: attachment });
                }
                let trampoline = trampoline(inflight, task);
                let slot = if at == entered.stack_pointer {
                    entered.return_address
                } else {
                    bpf_probe_read_user(at as *const u64).unwrap_or(0)
                };
                if trampoline != 0 && slot == trampoline {
                    return None;
                }
            }
            abandon(caller, top);
            (*inflight).depth = depth - 1;
        }
        round += 1;
    }
    None
}

/// A call that is being entered.
pub struct Entered {
    pub stack_pointer: u64,
    pub return_address: u64,
    pub address: u64,
    pub cookie: u64,
}

/// Two attachments that fire for one call.
pub struct Duplicate {
    pub first: u32,
    pub second: u32,
}

/// Where return probes put their trampoline in this address space, which exec alone changes.
/// The kernel makes it when a return probe first needs it, which is after its entry.
#[inline(always)]
unsafe fn trampoline(inflight: *mut Inflight, task: Task) -> u64 {
    // SAFETY: checked task storage.
    unsafe {
        if (*inflight).trampoline == 0 {
            (*inflight).trampoline = task.uprobe_trampoline();
        }
        (*inflight).trampoline
    }
}

/// Drops frames whose stack pointer lies below: their functions were left without a return.
#[inline(always)]
pub fn drop_below(caller: &Caller, inflight: *mut Inflight, stack_pointer: u64) {
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
            abandon(caller, top);
            (*inflight).depth = depth - 1;
        }
        round += 1;
    }
}

/// Drops all frames: the thread ends, or its program is replaced.
#[inline(always)]
pub fn drop_all(caller: &Caller, inflight: *mut Inflight) {
    drop_below(caller, inflight, u64::MAX);
    // SAFETY: checked task storage.
    unsafe {
        (*inflight).trampoline = 0;
        (*inflight).known = 0;
        (*inflight).place = 0;
        (*inflight).below = [0; BELOW];
        (*inflight).fired = Fired::NONE;
    }
}

/// Counts a call whose return was not seen, and settles what it held. The thread is elsewhere
/// by now: of the stack only what the frame knows is true.
#[inline(never)]
fn abandon(caller: &Caller, frame: *mut Frame) {
    lost(LossCause::MissedReturn, 0);
    // SAFETY: checked task storage.
    unsafe {
        let above = (*frame).return_address;
        settle_pending(caller, frame, above);
        let Some(spec) = FUNCTIONS.get(u32::from(cookie_function((*frame).cookie))) else { return };
        if (*frame).flags & Frame::TAKEN != 0 {
            let key = free_key(caller.space, frame, spec);
            let taken = (*frame).taken;
            restore(&caller.known(above, Caller::NOTHING), &key, &taken);
        }
    }
}

/// The enclosing call that this one may fold into; null if there is none.
#[inline(always)]
pub unsafe fn outer_of(inflight: *mut Inflight, depth: u64, spec: &FunctionSpec) -> *mut Frame {
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

/// Enters an inner allocation as pending and notes it in the outer frame. Of many the last ones
/// wait: who came before them is booked on its own.
#[inline(never)]
pub fn wait_for(caller: &Caller, outer: *mut Frame, key: &CallLiveKey, entry: &CallLive) {
    // SAFETY: checked task storage.
    unsafe {
        let turn = (*outer).turn & (PENDING_INNER as u64 - 1);
        (*outer).turn = turn + 1;
        let place = (&raw mut (*outer).pending).cast::<Pending>().add(turn as usize);
        if (*place).pointer != 0 {
            if (*outer).settled_from == 0 {
                (*outer).settled_from = (*place).id;
            }
            let above = (*outer).return_address;
            settle(caller, place, above);
        }
        let mut pending = *entry;
        pending.state |= CallLive::PENDING;
        let entered = match insert_call(key, &pending) {
            Inserted::New => true,
            Inserted::Replaced(old) => {
                // With the same id it has waited for a call in between, which gave it on.
                if old.id != entry.id {
                    left(caller, key, &old, FreeReason::FreedUnseen);
                }
                true
            }
            Inserted::Full => false,
        };
        (*place).pointer = key.pointer;
        (*place).bytes = entry.bytes;
        (*place).id = if entered { entry.id } else { 0 };
        (*place).caller = caller.direct;
        (*place).function = u32::from(entry.function);
        (*place).class = key.class;
    }
}

/// What a call's inner ones have to say about the pointer that it gives.
pub enum Inner {
    /// Nothing.
    None,
    /// This one waits under it.
    Waits(*mut CallLive),
    /// It is on the books already, under its inner name.
    Booked,
}

/// Takes the inner allocation with this pointer out of those that wait.
#[inline(always)]
pub unsafe fn take_inner(frame: *mut Frame, key: &CallLiveKey) -> Inner {
    let mut id = 0;
    let mut index = 0;
    // SAFETY: checked task storage and map values.
    unsafe {
        while index < PENDING_INNER {
            let place = &raw mut (*frame).pending[index & (PENDING_INNER - 1)];
            if (*place).pointer == key.pointer && (*place).class == key.class {
                id = (*place).id;
                (*place).pointer = 0;
            }
            index += 1;
        }
        let settled_from = (*frame).settled_from;
        if id == 0 && settled_from == 0 {
            return Inner::None;
        }
        let Some(live) = CALL_LIVE.get_ptr_mut(key) else { return Inner::None };
        if id != 0 && (*live).id == id {
            return Inner::Waits(live);
        }
        // Ids ascend, and the address is the caller's now.
        if settled_from != 0 && (*live).id >= settled_from && (*live).state & CallLive::PENDING == 0
        {
            return Inner::Booked;
        }
    }
    Inner::None
}

/// Whether inner allocations wait.
#[inline(always)]
pub unsafe fn has_pending(frame: *mut Frame) -> bool {
    let mut any = 0;
    let mut index = 0;
    while index < PENDING_INNER {
        // SAFETY: checked task storage.
        any |= unsafe { (*frame).pending[index & (PENDING_INNER - 1)].pointer };
        index += 1;
    }
    any != 0
}

/// Books inner allocations that the outer call did not hand on as its own. `above` is what
/// their stacks go on with behind their direct callers.
#[inline(never)]
pub fn settle_pending(caller: &Caller, frame: *mut Frame, above: u64) {
    let mut index = 0;
    while index < PENDING_INNER {
        // SAFETY: checked task storage.
        unsafe {
            let place = &raw mut (*frame).pending[index & (PENDING_INNER - 1)];
            if (*place).pointer != 0 {
                settle(caller, place, above);
            }
        }
        index += 1;
    }
}

/// Books one inner allocation on its own.
#[inline(always)]
unsafe fn settle(caller: &Caller, place: *mut Pending, above: u64) {
    // SAFETY: checked task storage and map values.
    unsafe {
        let Pending { pointer, bytes, id, caller: direct, function, class } = *place;
        (*place).pointer = 0;
        if id == 0 {
            lost(LossCause::LiveMapFull, bytes);
            dropped(caller.space, function, bytes);
            return;
        }
        let key = CallLiveKey { space: caller.space, class, pointer };
        // If another is there, this one was freed inside the call, and booked by that.
        if let Some(live) = CALL_LIVE.get_ptr_mut(&key)
            && (*live).id == id
        {
            (*live).state &= !CallLive::PENDING;
            let mut entry = *live;
            settled(&caller.known(direct, above), &key, &mut entry);
            (*live).state = entry.state;
        }
    }
}

/// As whom to book an allocation that was freed inside the call it waited for.
#[inline(always)]
pub unsafe fn waited(caller: &Caller, outer: *mut Frame, taken: &CallLive) -> Caller {
    let mut direct = 0;
    let mut index = 0;
    // SAFETY: checked task storage.
    unsafe {
        while index < PENDING_INNER {
            let place = &raw mut (*outer).pending[index & (PENDING_INNER - 1)];
            if (*place).id == taken.id {
                direct = (*place).caller;
                (*place).pointer = 0;
            }
            index += 1;
        }
        if direct == 0 { *caller } else { caller.known(direct, (*outer).return_address) }
    }
}

/// What a free names.
#[inline(always)]
pub unsafe fn free_key(space: u32, frame: *mut Frame, spec: &FunctionSpec) -> CallLiveKey {
    // SAFETY: checked task storage.
    CallLiveKey { space, class: u32::from(spec.class), pointer: unsafe { (*frame).pointer } }
}

/// Puts an entry back; if its address has a new one, it must have been freed unseen.
#[inline(never)]
pub fn restore(caller: &Caller, key: &CallLiveKey, taken: &CallLive) {
    if !put_back(key, taken) {
        left(caller, key, taken, FreeReason::FreedUnseen);
    }
}
