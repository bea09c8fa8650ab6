//! Programs that user space runs once a window: how old is what is live. Each account gets the
//! time of its oldest object, and those that hold much get a row of live bytes by age.
//!
//! The walk is over live maps while others change them, so it is a picture of about now; it moves
//! no counter. A row that was not sent is overwritten by the next scan.

use core::ffi::{c_long, c_void};

use aya_ebpf::{EbpfContext, macros::raw_tracepoint, programs::RawTracePointContext};
use memtrace_common::{AGE_CLASSES, Account, AccountAgesRecord, AgeRow, RecordKind, tunables};

use crate::{
    account::{account, age_class},
    emit::emit,
    flush::{CONTINUE, STOP, account_changes, for_each, map_pointer, ring_full},
    live::{KernelLive, now},
    maps::{ACCOUNTS, AGE_ROWS, KERNEL_LIVE, control},
};

/// What one scan knows.
#[repr(C)]
struct Scan {
    now_ns: u64,
    /// Accounts that hold less get no row.
    min_bytes: u64,
    /// Rows handed out, and accounts that found none.
    rows: u64,
    without_row: u64,
}

/// Notes in each account when its oldest live object was made, has those sent again whose oldest
/// is another one now, and sums the live bytes by age of accounts that hold at least argument 0.
/// The result is how many of these found no row.
#[raw_tracepoint]
pub fn mt_scan_ages(ctx: RawTracePointContext) -> i32 {
    // SAFETY: user space passes one argument.
    let min_bytes = unsafe { *ctx.as_ptr().cast::<u64>() };
    let mut scan = Scan { now_ns: now(), min_bytes, rows: 0, without_row: 0 };
    let argument = (&raw mut scan).cast();
    for_each(map_pointer!(AGE_ROWS), forget_row, argument);
    for_each(map_pointer!(ACCOUNTS), begin_account, argument);
    for_each(map_pointer!(KERNEL_LIVE), note_object, argument);
    for_each(map_pointer!(ACCOUNTS), mark_changed, argument);
    scan.without_row as i32
}

unsafe extern "C" fn forget_row(
    _map: *mut c_void,
    _key: *const c_void,
    value: *mut c_void,
    _argument: *mut c_void,
) -> c_long {
    // SAFETY: the kernel passes a value of the map.
    unsafe { (*value.cast::<AgeRow>()).pending = 0 };
    CONTINUE
}

unsafe extern "C" fn begin_account(
    _map: *mut c_void,
    key: *const c_void,
    value: *mut c_void,
    argument: *mut c_void,
) -> c_long {
    let Some(control) = control() else { return STOP };
    let account = value.cast::<Account>();
    let scan = argument.cast::<Scan>();
    // SAFETY: the kernel passes a key and a value of the map, and the argument of the scan.
    unsafe {
        let slot = *key.cast::<u32>();
        if u64::from(slot) >= (*control).next_slot {
            return STOP;
        }
        (*account).previous_oldest_ns = (*account).oldest_ns;
        (*account).oldest_ns = 0;
        (*account).age_row = 0;
        let left = (*account).freed.bytes.wrapping_add((*account).freed_unseen.bytes);
        let live = (*account).allocated.bytes.saturating_sub(left);
        if live >= (*scan).min_bytes {
            let number = (*scan).rows;
            match AGE_ROWS.get_ptr_mut(number as u32) {
                Some(row) => {
                    (*row).bytes = [0; AGE_CLASSES];
                    (*row).time_ns = (*scan).now_ns;
                    (*row).first_ns = (*account).first_ns;
                    (*row).slot = slot;
                    (*row).pending = 1;
                    (*scan).rows = number + 1;
                    // 0 is none, so rows count from 1 here.
                    (*account).age_row = number as u16 + 1;
                }
                None => (*scan).without_row += 1,
            }
        }
    }
    CONTINUE
}

const _: () = assert!(tunables::AGE_ROWS < u16::MAX as u32);

unsafe extern "C" fn note_object(
    _map: *mut c_void,
    _key: *const c_void,
    value: *mut c_void,
    argument: *mut c_void,
) -> c_long {
    let entry = value.cast::<KernelLive>();
    let scan = argument.cast::<Scan>();
    // SAFETY: the kernel passes a value of the map and the argument of the scan; `account` and
    // the map of rows check their indexes; a class is below the length of the array.
    unsafe {
        let Some(account) = account((*entry).slot) else { return CONTINUE };
        let time_ns = (*entry).time_ns;
        let oldest = (*account).oldest_ns;
        if oldest == 0 || time_ns < oldest {
            (*account).oldest_ns = time_ns;
        }
        let row = (*account).age_row;
        if row != 0
            && let Some(row) = AGE_ROWS.get_ptr_mut(u32::from(row) - 1)
        {
            let class = age_class((*scan).now_ns.saturating_sub(time_ns));
            *(&raw mut (*row).bytes).cast::<u64>().add(class) += u64::from((*entry).bytes);
        }
    }
    CONTINUE
}

unsafe extern "C" fn mark_changed(
    _map: *mut c_void,
    key: *const c_void,
    value: *mut c_void,
    _argument: *mut c_void,
) -> c_long {
    let Some(control) = control() else { return STOP };
    let account = value.cast::<Account>();
    // SAFETY: the kernel passes a key and a value of the map.
    unsafe {
        if u64::from(*key.cast::<u32>()) >= (*control).next_slot {
            return STOP;
        }
        if (*account).oldest_ns != (*account).previous_oldest_ns {
            // Whatever it was, it is not the sum of the counters: the flush sends the account.
            (*account).reported = !account_changes(account);
        }
    }
    CONTINUE
}

/// Sends the rows of the last scan. The result is 1 where the ring buffer was full before the
/// end: drained and called again, it goes on.
#[raw_tracepoint]
pub fn mt_send_ages(_ctx: RawTracePointContext) -> i32 {
    let mut full = 0_u64;
    for_each(map_pointer!(AGE_ROWS), send_row, (&raw mut full).cast());
    i32::from(full != 0)
}

unsafe extern "C" fn send_row(
    _map: *mut c_void,
    _key: *const c_void,
    value: *mut c_void,
    argument: *mut c_void,
) -> c_long {
    let row = value.cast::<AgeRow>();
    // SAFETY: the kernel passes a value of the map; `account` checks the slot.
    unsafe {
        if (*row).pending == 0 {
            return CONTINUE;
        }
        // A slot may have another account by now: nothing is said about that one.
        if let Some(account) = account((*row).slot)
            && (*account).first_ns == (*row).first_ns
            && !emit(RecordKind::AccountAges, |record: *mut AccountAgesRecord| {
                (*record).key = (*account).key;
                (*record).slot = (*row).slot;
                (*record).reserved = 0;
                (*record).first_ns = (*row).first_ns;
                (*record).scanned_ns = (*row).time_ns;
                (*record).bytes = (*row).bytes;
            })
        {
            return ring_full(argument);
        }
        (*row).pending = 0;
    }
    CONTINUE
}
