//! Programs that user space runs (BPF_PROG_TEST_RUN): send what has changed, clear a closed
//! address space out of the live map.
//!
//! What the ring buffer does not accept stays marked as changed and is sent again.

use core::ffi::{c_long, c_void};

use aya_ebpf::{
    EbpfContext, helpers::generated::bpf_for_each_map_elem, macros::raw_tracepoint,
    programs::RawTracePointContext,
};
use memtrace_common::{
    Account, AccountRecord, CallLive, CallLiveKey, FreeReason, PointerClass, ProcessEntry,
    RecordKind, Totals, TotalsKey, TotalsRecord,
};

use crate::{
    account::add_one,
    atomic,
    call_books::{common_row, gone},
    emit::emit,
    live::remove_call,
    maps::{ACCOUNTS, CALL_LIVE, PROCESSES, TOTALS, control},
    process::report,
};

pub const CONTINUE: c_long = 0;
pub const STOP: c_long = 1;

/// Times that a copy is tried again when an allocation was being booked meanwhile.
const COPY_TRIES: u32 = 4;

type Callback =
    unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void, *mut c_void) -> c_long;

/// Calls `callback` for each element of a map.
#[inline(always)]
pub fn for_each(map: *mut c_void, callback: Callback, argument: *mut c_void) {
    // SAFETY: the verifier checks map, callback and argument against each other.
    unsafe { bpf_for_each_map_elem(map, callback as *mut c_void, argument, 0) };
}

macro_rules! map_pointer {
    ($map:ident) => {
        (&raw const $map).cast_mut().cast::<core::ffi::c_void>()
    };
}
pub(crate) use map_pointer;

/// Sends totals, processes and accounts that have changed: what there is least of comes first.
/// The result is 1 where the ring buffer was full before the end: drained and called again, it
/// goes on.
#[raw_tracepoint]
pub fn mt_flush(_ctx: RawTracePointContext) -> i32 {
    let mut full = 0_u64;
    for_each(map_pointer!(TOTALS), send_totals, (&raw mut full).cast());
    if full != 0 {
        return 1;
    }
    for_each(map_pointer!(PROCESSES), send_process, (&raw mut full).cast());
    if full != 0 {
        return 1;
    }
    for_each(map_pointer!(ACCOUNTS), send_account, (&raw mut full).cast());
    i32::from(full != 0)
}

/// Ends a walk, and says in its argument why.
#[inline(always)]
pub unsafe fn ring_full(argument: *mut c_void) -> c_long {
    // SAFETY: the caller passes the argument of a walk that is a number.
    unsafe { *argument.cast::<u64>() = 1 };
    STOP
}

unsafe extern "C" fn send_process(
    _map: *mut c_void,
    _key: *const c_void,
    value: *mut c_void,
    argument: *mut c_void,
) -> c_long {
    let entry = value.cast::<ProcessEntry>();
    // SAFETY: the kernel passes a value of the map.
    unsafe {
        if (*entry).version != (*entry).reported && !report(entry) {
            return ring_full(argument);
        }
    }
    CONTINUE
}

unsafe extern "C" fn send_account(
    _map: *mut c_void,
    key: *const c_void,
    value: *mut c_void,
    argument: *mut c_void,
) -> c_long {
    let Some(control) = control() else { return STOP };
    let account = value.cast::<Account>();
    // SAFETY: the kernel passes a key and a value of the map.
    unsafe {
        if u64::from(*key.cast::<u32>()) >= (*control).next_slot {
            return STOP;
        }
        let live = (*account)
            .allocated
            .bytes
            .wrapping_sub((*account).freed.bytes)
            .wrapping_sub((*account).freed_unseen.bytes);
        if live < (*account).sampled_level {
            (*account).sampled_level = live;
        }
        let changes = account_changes(account);
        if changes != (*account).reported {
            let mut whole = false;
            if !emit(RecordKind::Account, |record: *mut AccountRecord| {
                whole = copy_account(account, &raw mut (*record).account);
            }) {
                return ring_full(argument);
            }
            if whole {
                (*account).reported = changes;
            }
        }
    }
    CONTINUE
}

/// A number that differs whenever a counter of the account has moved.
#[inline(always)]
pub unsafe fn account_changes(account: *const Account) -> u64 {
    // SAFETY: the caller passes a checked map value.
    unsafe {
        (*account)
            .seen
            .count
            .wrapping_add((*account).allocated.count)
            .wrapping_add((*account).freed.count)
            .wrapping_add((*account).freed_unseen.count)
            .wrapping_add((*account).dropped.count)
    }
}

/// Copies an account; true if no allocation was half booked meanwhile.
#[inline(always)]
pub unsafe fn copy_account(from: *const Account, to: *mut Account) -> bool {
    let mut tries = 0;
    while tries < COPY_TRIES {
        // SAFETY: the caller passes a checked map value and memory of the record's size.
        unsafe {
            let seen = core::ptr::read_volatile(&raw const (*from).seen.count);
            core::ptr::copy_nonoverlapping(from, to, 1);
            let booked = (*to).allocated.count.wrapping_add((*to).dropped.count);
            let bytes = (*to).allocated.bytes.wrapping_add((*to).dropped.bytes);
            if booked == seen && bytes == (*to).seen.bytes {
                return true;
            }
        }
        tries += 1;
    }
    false
}

unsafe extern "C" fn send_totals(
    _map: *mut c_void,
    key: *const c_void,
    value: *mut c_void,
    argument: *mut c_void,
) -> c_long {
    let totals = value.cast::<Totals>();
    // SAFETY: the kernel passes a key and a value of the map.
    unsafe {
        let changes = totals_changes(totals);
        if changes == (*totals).reported {
            return CONTINUE;
        }
        let copy = core::ptr::read_volatile(totals);
        // A call is being booked (its thread may be preempted there): next time.
        if copy.allocated.count.wrapping_add(copy.dropped.count) != copy.seen.count
            || copy.allocated.bytes.wrapping_add(copy.dropped.bytes) != copy.seen.bytes
        {
            return CONTINUE;
        }
        if !emit(RecordKind::Totals, |record: *mut TotalsRecord| {
            (*record).key = *key.cast::<TotalsKey>();
            (*record).totals = copy;
        }) {
            return ring_full(argument);
        }
        (*totals).reported = changes;
    }
    CONTINUE
}

/// A number that differs whenever a counter of the row has moved.
#[inline(always)]
unsafe fn totals_changes(totals: *const Totals) -> u64 {
    // SAFETY: the caller passes a checked map value.
    unsafe {
        (*totals)
            .seen
            .count
            .wrapping_add((*totals).allocated.count)
            .wrapping_add((*totals).freed.count)
            .wrapping_add((*totals).freed_unseen.count)
            .wrapping_add((*totals).dropped.count)
            .wrapping_add((*totals).closed.count)
            .wrapping_add((*totals).failures)
            .wrapping_add((*totals).failed_frees)
            .wrapping_add((*totals).unknown_frees)
            .wrapping_add((*totals).empty)
            .wrapping_add((*totals).implausible)
    }
}

/// Clears the address space in argument 0 out of the live map. Its books are closed already,
/// but for what is in the common rows: that leaves them unseen.
#[raw_tracepoint]
pub fn mt_sweep(ctx: RawTracePointContext) -> i32 {
    // SAFETY: user space passes one argument.
    let mut space = unsafe { *ctx.as_ptr().cast::<u64>() };
    for_each(map_pointer!(CALL_LIVE), clear_space, (&raw mut space).cast());
    0
}

unsafe extern "C" fn clear_space(
    _map: *mut c_void,
    key: *const c_void,
    _value: *mut c_void,
    argument: *mut c_void,
) -> c_long {
    // SAFETY: the kernel passes a key of the map and the argument of `mt_sweep`.
    unsafe {
        let key = *key.cast::<CallLiveKey>();
        if u64::from(key.space) == *argument.cast::<u64>() {
            let entry: Option<CallLive> = remove_call(&key);
            if let Some(entry) = entry
                && entry.state & CallLive::ROWLESS != 0
                && let Some(row) = common_row(u32::from(entry.function))
            {
                add_one(&raw mut (*row).freed_unseen, entry.bytes);
            }
        }
    }
    CONTINUE
}

/// Books that nobody sees any more what becomes of the memory of the address space in argument 0
/// whose pointers are of the class in argument 1: the probes that would tell are taken away while
/// it runs. Physical memory goes with its mappings. What waits for an outer call is left to that.
#[raw_tracepoint]
pub fn mt_forget(ctx: RawTracePointContext) -> i32 {
    let arguments = ctx.as_ptr().cast::<u64>();
    // SAFETY: user space passes two arguments.
    let mut whose = unsafe { [*arguments, *arguments.add(1)] };
    for_each(map_pointer!(CALL_LIVE), forget_call, (&raw mut whose).cast());
    0
}

unsafe extern "C" fn forget_call(
    _map: *mut c_void,
    key: *const c_void,
    value: *mut c_void,
    argument: *mut c_void,
) -> c_long {
    // SAFETY: the kernel passes a key and a value of the map, and the argument of `mt_forget`.
    unsafe {
        let key = *key.cast::<CallLiveKey>();
        let [space, class] = *argument.cast::<[u64; 2]>();
        let mapping =
            class == PointerClass::Physical as u64 && key.class == PointerClass::Mapping as u32;
        if u64::from(key.space) == space
            && (u64::from(key.class) == class || mapping)
            && (*value.cast::<CallLive>()).state & CallLive::PENDING == 0
            && let Some(entry) = remove_call(&key)
        {
            gone(&key, &entry, FreeReason::FreedUnseen);
        }
    }
    CONTINUE
}

/// Adds argument 0 to the generation and argument 1 to the number of promoted call sites.
#[raw_tracepoint]
pub fn mt_adjust(ctx: RawTracePointContext) -> i32 {
    let Some(control) = control() else { return 0 };
    let arguments = ctx.as_ptr().cast::<u64>();
    // SAFETY: user space passes three arguments; a checked map value.
    unsafe {
        atomic::add(&raw mut (*control).generation, *arguments);
        atomic::add(&raw mut (*control).promoted, *arguments.add(1));
        // Only user space writes it.
        core::ptr::write_volatile(&raw mut (*control).stopped, *arguments.add(2));
    }
    0
}
