//! Writing records into the ring buffer, and counting those that found no room.

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use memtrace_common::{LossCause, RecordHeader, RecordKind};

use crate::{loss::lost, maps::EVENTS};

/// `BPF_RB_NO_WAKEUP`: user space drains the ring on a timer. Waking it at every record would
/// cost the traced program 5 µs each time.
const NO_WAKEUP: u64 = 1;

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
