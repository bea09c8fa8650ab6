//! Calls of one address space whose stacks are still to be unwound. They are on no site's books
//! yet: until their stacks come, they are what no site explains.

use memtrace_common::FreeReason;
use rustc_hash::FxHashMap;

/// The calls. Bounded by what may be unwound at a time.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    calls: FxHashMap<u64, Call>,
    /// Failed calls, which have no id.
    pub(super) failures: usize,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    time_ns: u64,
    left: Option<FreeReason>,
}

impl Waiting {
    pub(super) fn enter(&mut self, id: u64, time_ns: u64, left: Option<FreeReason>) {
        self.calls.entry(id).or_insert(Call { time_ns, left });
    }

    /// Takes a call out; why it left the books meanwhile, if it did.
    pub(super) fn leave(&mut self, id: u64) -> Option<FreeReason> {
        self.calls.remove(&id)?.left
    }

    pub(super) fn holds(&self, id: u64) -> bool {
        self.calls.contains_key(&id)
    }

    /// Notes a free; false where the id does not wait.
    pub(super) fn free(&mut self, id: u64, reason: FreeReason) -> bool {
        let call = self.calls.get_mut(&id);
        let waits = call.is_some();
        if let Some(call) = call {
            call.left.get_or_insert(reason);
        }
        waits
    }

    /// Notes as freed what a sorted list of live ids, read from `read_ns` on, does not have.
    pub(super) fn free_missing(&mut self, next_id: u64, ids: &[u64], read_ns: u64) {
        for (id, call) in &mut self.calls {
            if *id < next_id && call.time_ns < read_ns && ids.binary_search(id).is_err() {
                call.left.get_or_insert(FreeReason::Freed);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len() + self.failures
    }
}
