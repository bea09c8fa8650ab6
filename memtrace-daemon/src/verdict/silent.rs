//! Processes that allocate without a call that is seen: another allocator than those that are known
//! is at work, or a library that is not probed. Silence of the books is no answer there.

use crate::human::bytes;

/// What is said where device memory grew so much, by NVML, and no call was seen.
#[must_use]
pub fn no_device_calls(grown_bytes: u64) -> String {
    format!(
        "no events from an allocating process: NVML counts {} that came since it was first seen, \
         and no call for device memory was seen",
        bytes(grown_bytes)
    )
}

/// What is said where anonymous memory grew so much and no call of an allocator was seen.
#[must_use]
pub fn no_heap_calls(grown_bytes: u64) -> String {
    format!(
        "no events from an allocating process: its anonymous memory grew by {}, and no call of an \
         allocator was seen: it uses one that is not probed",
        bytes(grown_bytes)
    )
}
