//! The books of library functions: live entries, totals and records of one call.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_get_current_pid_tgid;
use memtrace_common::{
    AllocationRecord, Amount, CallLive, CallLiveKey, FreeReason, FreeRecord, LossCause,
    RecordHeader, RecordKind, Totals, TotalsKey,
};

use crate::{
    account::add_one,
    atomic, copy,
    emit::emit,
    live::{Inserted, insert_call, now, remove_call},
    loss::lost,
    maps::{CALL_LIVE, TOTALS, control},
};

const BPF_NOEXIST: u64 = 1;

/// Whose call it is, and whom to name in its records.
#[derive(Clone, Copy)]
pub struct Caller {
    pub context: *mut c_void,
    pub space: u32,
    pub serial: u32,
    /// Where the call returned to; of a static probe, one behind its place, as if its instruction
    /// were the call.
    pub direct: u64,
    /// What the stack goes on with behind `direct`: an address, or one of the constants.
    pub above: u64,
}

impl Caller {
    /// The walk by frame pointers, which begins with `direct`.
    pub const WALK: u64 = 0;
    /// The walk by frame pointers, which begins with the caller of the outer call.
    pub const WALK_ABOVE: u64 = 1;
    /// Nothing that is known.
    pub const NOTHING: u64 = u64::MAX;

    /// Of the call that the program runs for.
    #[inline(always)]
    pub fn new(context: *mut c_void, space: u32, serial: u32, direct: u64) -> Self {
        Self { context, space, serial, direct, above: Self::WALK }
    }

    /// Of an earlier call of the same process.
    #[inline(always)]
    pub fn known(&self, direct: u64, above: u64) -> Self {
        Self { direct, above, ..*self }
    }
}

/// The row of totals of a function in an address space, made if there is none; `None` where
/// there is no room.
#[inline(never)]
fn own_row(space: u32, function: u32) -> Option<*mut Totals> {
    let key = TotalsKey { space, function };
    if let Some(row) = TOTALS.get_ptr_mut(key) {
        return Some(row);
    }
    // SAFETY: all zero is a valid row of totals.
    let zero: Totals = unsafe { core::mem::zeroed() };
    let _ = TOTALS.insert(key, &zero, BPF_NOEXIST);
    TOTALS.get_ptr_mut(key)
}

/// The function's row of space 0, which user space makes at start: what finds no row of its own
/// is booked there. Its sums are right, only whose and at which site is not known.
#[inline(always)]
pub fn common_row(function: u32) -> Option<*mut Totals> {
    TOTALS.get_ptr_mut(TotalsKey { space: 0, function })
}

/// The row to book an event of `bytes` bytes in, and whether it is its own.
#[inline(always)]
fn row_for(space: u32, function: u32, bytes: u64) -> (Option<*mut Totals>, bool) {
    match own_row(space, function) {
        Some(row) => (Some(row), true),
        None => {
            lost(LossCause::AccountMapFull, bytes);
            (common_row(function), false)
        }
    }
}

/// What an entry says, and of its row.
#[inline(always)]
const fn rowless(state: u32, own: bool) -> u32 {
    if own { state & !CallLive::ROWLESS } else { state | CallLive::ROWLESS }
}

/// Counts one event that moves no bytes; whether it has a row of its own.
#[inline(always)]
pub fn count(space: u32, function: u32, which: impl FnOnce(*mut Totals) -> *mut u64) -> bool {
    let (row, own) = row_for(space, function, 0);
    if let Some(row) = row {
        atomic::add(which(row), 1);
    }
    own
}

/// An id never given before; ascending.
#[inline(always)]
pub fn next_id() -> u64 {
    let Some(control) = control() else { return 0 };
    // SAFETY: a checked map value. User space starts the counter at 1.
    atomic::fetch_add(unsafe { &raw mut (*control).next_id }, 1)
}

/// Books an allocation: counted as seen, entered into the live map, reported. What has no id is
/// entered only.
#[inline(never)]
pub fn allocated(caller: &Caller, key: &CallLiveKey, entry: &mut CallLive) {
    if entry.id == 0 {
        return allocated_uncounted(key, entry);
    }
    let (row, own) = row_for(key.space, u32::from(entry.function), entry.bytes);
    let Some(row) = row else { return };
    entry.state = rowless(entry.state, own);
    // SAFETY: `row` is a checked map value.
    unsafe {
        add_one(&raw mut (*row).seen, entry.bytes);
        match insert_call(key, entry) {
            Inserted::New => {}
            // If it waited for an outer call, where it was made is not known any more.
            Inserted::Replaced(old) => {
                left(&caller.known(0, Caller::NOTHING), key, &old, FreeReason::FreedUnseen);
            }
            Inserted::Full => {
                lost(LossCause::LiveMapFull, entry.bytes);
                add_one(&raw mut (*row).dropped, entry.bytes);
                return;
            }
        }
        add_one(&raw mut (*row).allocated, entry.bytes);
    }
    if own {
        report(caller, RecordKind::Allocation, key, entry);
    }
}

/// Enters what is in no counter. If there is no room, nothing is known to be bound to it.
#[inline(always)]
pub fn allocated_uncounted(key: &CallLiveKey, entry: &CallLive) {
    if let Inserted::Replaced(old) = insert_call(key, entry) {
        gone(key, &old, FreeReason::FreedUnseen);
    }
}

/// Books memory that is counted by references: given again, it is one more reference.
#[inline(always)]
pub fn opened(caller: &Caller, key: &CallLiveKey, entry: &mut CallLive) {
    if let Some(live) = CALL_LIVE.get_ptr_mut(key) {
        // SAFETY: a checked map value.
        atomic::fetch_add_32(unsafe { &raw mut (*live).state }, CallLive::REFERENCE);
        return;
    }
    allocated(caller, key, entry);
}

/// What became of a reference that was taken back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// It was not on the books.
    Unknown,
    /// Others are left.
    OneOfMore,
    /// It was the last one: the entry is gone.
    Last,
}

/// Takes one reference back, or the entry with the last one.
#[inline(always)]
pub fn closed(key: &CallLiveKey) -> Reference {
    let Some(live) = CALL_LIVE.get_ptr_mut(key) else { return Reference::Unknown };
    // SAFETY: a checked map value.
    let state = unsafe { &raw mut (*live).state };
    if atomic::fetch_add_32(state, CallLive::REFERENCE.wrapping_neg()) >= CallLive::REFERENCE {
        return Reference::OneOfMore;
    }
    atomic::fetch_add_32(state, CallLive::REFERENCE);
    let Some(entry) = remove_call(key) else { return Reference::Unknown };
    gone(key, &entry, FreeReason::Freed);
    Reference::Last
}

/// Books an allocation that cannot be followed; the cause is the caller's to count.
#[inline(never)]
pub fn dropped(space: u32, function: u32, bytes: u64) {
    let (row, _) = row_for(space, function, bytes);
    if let Some(row) = row {
        // SAFETY: a checked map value.
        unsafe {
            add_one(&raw mut (*row).seen, bytes);
            add_one(&raw mut (*row).dropped, bytes);
        }
    }
}

/// Books an inner allocation that was pending in the live map, on its own or as its outer call's.
/// Where it has no row of
/// its own, `entry` says so then.
#[inline(never)]
pub fn settled(caller: &Caller, key: &CallLiveKey, entry: &mut CallLive) {
    let (row, own) = row_for(key.space, u32::from(entry.function), entry.bytes);
    let Some(row) = row else { return };
    entry.state = rowless(entry.state, own);
    // SAFETY: a checked map value.
    unsafe {
        add_one(&raw mut (*row).seen, entry.bytes);
        add_one(&raw mut (*row).allocated, entry.bytes);
    }
    if own {
        report(caller, RecordKind::Allocation, key, entry);
    }
}

/// Books that an entry, already out of the live map, has left the books.
#[inline(never)]
pub fn left(caller: &Caller, key: &CallLiveKey, entry: &CallLive, reason: FreeReason) {
    let mut entry = *entry;
    if entry.state & CallLive::PENDING != 0 {
        entry.state &= !CallLive::PENDING;
        settled(caller, key, &mut entry);
    }
    gone(key, &entry, reason);
}

/// The same of an entry that did not wait for another call.
#[inline(never)]
pub fn gone(key: &CallLiveKey, entry: &CallLive, reason: FreeReason) {
    if entry.id == 0 {
        return;
    }
    let rowless = entry.state & CallLive::ROWLESS != 0;
    let function = u32::from(entry.function);
    let row = if rowless { common_row(function) } else { own_row(key.space, function) };
    if let Some(row) = row {
        // SAFETY: a checked map value.
        let amount: *mut Amount = unsafe {
            match reason {
                FreeReason::Freed => &raw mut (*row).freed,
                FreeReason::FreedUnseen => &raw mut (*row).freed_unseen,
                FreeReason::Closed => &raw mut (*row).closed,
            }
        };
        add_one(amount, entry.bytes);
    }
    if rowless {
        return;
    }
    emit(RecordKind::Free, |record: *mut FreeRecord| {
        // SAFETY: reserved memory of the record's size.
        unsafe {
            (*record).id = entry.id;
            (*record).bytes = entry.bytes;
            (*record).space = key.space;
            (*record).function = function;
            (*record).reason = reason as u32;
            (*record).tid = bpf_get_current_pid_tgid() as u32;
        }
    });
}

/// Sends an allocation, or a failed call, with the stack of the caller.
#[inline(never)]
pub fn report(caller: &Caller, kind: RecordKind, key: &CallLiveKey, entry: &CallLive) {
    // SAFETY: no arguments.
    let id = unsafe { bpf_get_current_pid_tgid() };
    // A call that failed has no entry of its own.
    let time_ns = if entry.time_ns == 0 { now() } else { entry.time_ns };
    let call = AllocationRecord {
        header: RecordHeader { kind: kind as u32, length: 0, time_ns },
        id: entry.id,
        pointer: key.pointer,
        bytes: entry.bytes,
        space: caller.space,
        function: entry.packed(),
        tgid: (id >> 32) as u32,
        tid: id as u32,
        serial: caller.serial,
        form: 0,
        inner: 0,
    };
    copy::send(caller, &call);
}
