//! Writing records into the ring buffer, and counting those that found no room.

use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_ringbuf_query};
use memtrace_common::{AllocationRecord, LossCause, RecordHeader, RecordKind, StackForm};

use crate::{globals, loss::lost, maps::EVENTS};

/// `BPF_RB_NO_WAKEUP`: user space drains the ring on a timer. Waking it at every record would
/// cost the traced program 5 µs each time.
const NO_WAKEUP: u64 = 1;
/// `BPF_RB_FORCE_WAKEUP`.
const FORCE_WAKEUP: u64 = 2;
/// `BPF_RB_AVAIL_DATA`.
const AVAIL_DATA: u64 = 0;

/// Reserves a record of type `T`, lets `fill` write its body, and submits it with its header.
///
/// `T` begins with a [`RecordHeader`]. Returns whether the ring accepted it; if not, that is
/// counted. `fill` must write every byte behind the header.
#[inline(always)]
pub fn emit<T: 'static>(kind: RecordKind, fill: impl FnOnce(*mut T)) -> bool {
    let Some(mut entry) = EVENTS.reserve::<T>(0) else {
        lost(LossCause::RingFull, 0);
        return false;
    };
    let record = entry.as_mut_ptr();
    // SAFETY: reserved memory of `size_of::<T>()` bytes that begins with a header.
    unsafe {
        record.cast::<RecordHeader>().write(RecordHeader {
            kind: kind as u32,
            length: size_of::<T>() as u32,
            time_ns: bpf_ktime_get_ns(),
        });
    }
    fill(record);
    entry.submit(NO_WAKEUP);
    true
}

/// How a call is submitted: it wakes user space where the ring fills faster than the timer
/// empties it.
#[inline(always)]
pub fn wakeup() -> u64 {
    if waiting_bytes() > globals::ring_wakeup_bytes() { FORCE_WAKEUP } else { NO_WAKEUP }
}

/// Bytes in the ring buffer that user space has not taken yet.
#[inline(always)]
pub fn waiting_bytes() -> u64 {
    let ring = core::ptr::from_ref(&EVENTS).cast_mut().cast();
    // SAFETY: a ring buffer.
    unsafe { bpf_ringbuf_query(ring, AVAIL_DATA) }
}

/// A call, and return addresses in a fixed number; those that are 0 are none.
#[repr(C)]
struct Call<T> {
    call: AllocationRecord,
    frames: T,
}

/// Sends a call with return addresses, which `take` writes. Whether the ring accepted it; if
/// not, that is counted.
#[inline(always)]
pub fn emit_call<T: 'static>(
    call: &AllocationRecord,
    form: StackForm,
    inner: u64,
    take: impl FnOnce(*mut T),
) -> bool {
    let Some(mut entry) = EVENTS.reserve::<Call<T>>(0) else {
        lost(LossCause::RingFull, 0);
        return false;
    };
    let record = entry.as_mut_ptr();
    // SAFETY: reserved memory of the record's size.
    unsafe {
        (*record).call = *call;
        (*record).call.header.length = size_of::<Call<T>>() as u32;
        (*record).call.form = form as u32;
        (*record).call.inner = inner;
        take(&raw mut (*record).frames);
    }
    entry.submit(wakeup());
    true
}
