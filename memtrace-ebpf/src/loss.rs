//! Counting what is not seen. Called by the branch that fails, never derived afterwards.

use memtrace_common::LossCause;

use crate::{atomic, maps::LOSS};

/// Counts one event of `cause`, and its bytes where they are known.
#[inline(always)]
pub fn lost(cause: LossCause, bytes: u64) {
    let Some(counter) = LOSS.get_ptr_mut(cause as u32) else { return };
    // SAFETY: `counter` points to a checked map value.
    unsafe {
        atomic::add(&raw mut (*counter).count, 1);
        if bytes != 0 {
            atomic::add(&raw mut (*counter).bytes, bytes);
        }
    }
}
