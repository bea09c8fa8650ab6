//! How long calls of library functions took, in one histogram a function for all processes.

use memtrace_common::{LATENCY_BUCKETS, Latency};

use crate::{arch, atomic, maps::LATENCY};

/// Counts a call that took so long.
#[inline(always)]
pub fn took(function: u32, ns: u64) {
    let Some(latency) = LATENCY.get_ptr_mut(function) else { return };
    let bucket = arch::opaque(Latency::bucket(ns) as u64);
    if bucket >= LATENCY_BUCKETS as u64 {
        return;
    }
    // SAFETY: a checked map value; the bucket is below the length.
    unsafe {
        atomic::add(&raw mut (*latency).sum_ns, ns);
        let buckets = (&raw mut (*latency).buckets).cast::<u64>();
        atomic::add(buckets.add(bucket as usize), 1);
    }
}
