//! Host and kernel memory, as /proc/meminfo has it.

use procfs::{Current, Meminfo};

use crate::record::Observation;

/// What can be said now; what the kernel does not show is left out.
pub(super) fn look() -> Vec<Observation> {
    // /proc is mounted, or nothing of memtrace works; a second later it is tried again.
    let Ok(memory) = Meminfo::current() else { return Vec::new() };
    let host = memory.mem_available.map(|available_bytes| Observation::Memory {
        total_bytes: memory.mem_total,
        available_bytes,
    });
    let slab = memory.s_unreclaim.map(|unreclaimable_bytes| Observation::Slab {
        slab_bytes: memory.slab,
        unreclaimable_bytes,
    });
    host.into_iter().chain(slab).collect()
}
