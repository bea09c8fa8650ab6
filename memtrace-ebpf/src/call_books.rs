//! The books of library functions: live entries, totals and records of one call.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_get_current_pid_tgid;
use memtrace_common::{
    AllocationRecord, Amount, CallLive, CallLiveKey, FreeReason, FreeRecord, LossCause, RecordKind,
    Totals, TotalsKey,
};

use crate::{
    account::add_one,
    atomic,
    emit::emit,
    live::{Inserted, insert_call},
    loss::lost,
    maps::{TOTALS, control},
    stack,
};

const BPF_NOEXIST: u64 = 1;

/// Whose call it is, and whom to name in its records.
#[derive(Clone, Copy)]
pub struct Caller {
    pub context: *mut c_void,
    pub space: u32,
    pub serial: u32,
}

/// The row of totals of a function in an address space, made if there is none. Where there
/// is no room, the function's row of space 0, which user space makes at start.
#[inline(never)]
pub fn totals_row(space: u32, function: u32) -> Option<*mut Totals> {
    let key = TotalsKey { space, function };
    if let Some(row) = TOTALS.get_ptr_mut(key) {
        return Some(row);
    }
    // SAFETY: all zero is a valid row of totals.
    let zero: Totals = unsafe { core::mem::zeroed() };
    let _ = TOTALS.insert(key, &zero, BPF_NOEXIST);
    if let Some(row) = TOTALS.get_ptr_mut(key) {
        return Some(row);
    }
    lost(LossCause::AccountMapFull, 0);
    TOTALS.get_ptr_mut(TotalsKey { space: 0, function })
}

/// Counts one event that moves no bytes.
#[inline(always)]
pub fn count(space: u32, function: u32, which: impl FnOnce(*mut Totals) -> *mut u64) {
    if let Some(row) = totals_row(space, function) {
        atomic::add(which(row), 1);
    }
}

/// An id never given before; ascending.
#[inline(always)]
pub fn next_id() -> u64 {
    let Some(control) = control() else { return 0 };
    // SAFETY: a checked map value. User space starts the counter at 1.
    atomic::fetch_add(unsafe { &raw mut (*control).next_id }, 1)
}

/// Books an allocation: counted as seen, entered into the live map, reported.
#[inline(never)]
pub fn allocated(caller: &Caller, key: &CallLiveKey, entry: &CallLive) {
    let Some(row) = totals_row(key.space, entry.function) else { return };
    // SAFETY: `row` is a checked map value.
    unsafe {
        add_one(&raw mut (*row).seen, entry.bytes);
        let mut old = CallLive::NONE;
        match insert_call(key, entry, &mut old) {
            Inserted::New => {}
            Inserted::Replaced => left(caller, key, &old, FreeReason::FreedUnseen),
            Inserted::Full => {
                lost(LossCause::LiveMapFull, entry.bytes);
                add_one(&raw mut (*row).dropped, entry.bytes);
                return;
            }
        }
        add_one(&raw mut (*row).allocated, entry.bytes);
    }
    report(caller, RecordKind::Allocation, key, entry);
}

/// Books an allocation that found no room in the live map.
#[inline(never)]
pub fn dropped(space: u32, function: u32, bytes: u64) {
    lost(LossCause::LiveMapFull, bytes);
    if let Some(row) = totals_row(space, function) {
        // SAFETY: a checked map value.
        unsafe {
            add_one(&raw mut (*row).seen, bytes);
            add_one(&raw mut (*row).dropped, bytes);
        }
    }
}

/// Books an inner allocation that was pending in the live map, on its own or as its outer call's.
#[inline(never)]
pub fn settled(caller: &Caller, key: &CallLiveKey, entry: &CallLive) {
    let Some(row) = totals_row(key.space, entry.function) else { return };
    // SAFETY: a checked map value.
    unsafe {
        add_one(&raw mut (*row).seen, entry.bytes);
        add_one(&raw mut (*row).allocated, entry.bytes);
    }
    report(caller, RecordKind::Allocation, key, entry);
}

/// Books that an entry, already out of the live map, has left the books.
#[inline(never)]
pub fn left(caller: &Caller, key: &CallLiveKey, entry: &CallLive, reason: FreeReason) {
    let mut entry = *entry;
    if entry.function & CallLive::PENDING != 0 {
        entry.function &= !CallLive::PENDING;
        settled(caller, key, &entry);
    }
    if let Some(row) = totals_row(key.space, entry.function) {
        // SAFETY: a checked map value.
        let amount: *mut Amount = unsafe {
            match reason {
                FreeReason::Freed => &raw mut (*row).freed,
                FreeReason::FreedUnseen => &raw mut (*row).freed_unseen,
            }
        };
        add_one(amount, entry.bytes);
    }
    emit(RecordKind::Free, |record: *mut FreeRecord| {
        // SAFETY: reserved memory of the record's size.
        unsafe {
            (*record).id = entry.id;
            (*record).bytes = entry.bytes;
            (*record).space = key.space;
            (*record).function = entry.function;
            (*record).reason = reason as u32;
            (*record).tid = bpf_get_current_pid_tgid() as u32;
        }
    });
}

/// Sends an allocation, or a failed call, with the stack of the caller.
#[inline(never)]
pub fn report(caller: &Caller, kind: RecordKind, key: &CallLiveKey, entry: &CallLive) {
    emit(kind, |record: *mut AllocationRecord| {
        // SAFETY: reserved memory of the record's size.
        unsafe {
            (*record).id = entry.id;
            (*record).pointer = key.pointer;
            (*record).bytes = entry.bytes;
            (*record).space = caller.space;
            (*record).function = entry.function;
            let id = bpf_get_current_pid_tgid();
            (*record).tgid = (id >> 32) as u32;
            (*record).tid = id as u32;
            (*record).serial = caller.serial;
            (*record).user_frames = stack::user(caller.context, &raw mut (*record).user);
        }
    });
}
