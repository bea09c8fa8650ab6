//! Calls of one address space whose stacks are still to be unwound. They are on no site's books
//! yet: until their stacks come, they are what no site explains.

use memtrace_common::{FreeReason, FunctionId};
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
    function: FunctionId,
    time_ns: u64,
    left: Option<FreeReason>,
}

impl Waiting {
    pub(super) fn enter(
        &mut self,
        id: u64,
        function: FunctionId,
        time_ns: u64,
        left: Option<FreeReason>,
    ) {
        self.calls.entry(id).or_insert(Call { function, time_ns, left });
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

    /// Those that a sorted list of live ids, read from `read_ns` on, does not have, and that are
    /// not known to have left.
    pub(super) fn missing(
        &self,
        next_id: u64,
        ids: &[u64],
        read_ns: u64,
    ) -> impl Iterator<Item = u64> {
        let missing = move |(id, call): &(&u64, &Call)| {
            let older = **id < next_id && call.time_ns < read_ns;
            older && call.left.is_none() && ids.binary_search(id).is_err()
        };
        self.calls.iter().filter(missing).map(|(id, _)| *id)
    }

    /// The function of a call that waits.
    pub(super) fn function_of(&self, id: u64) -> Option<FunctionId> {
        self.calls.get(&id).map(|call| call.function)
    }

    /// Functions of calls that a reset has closed.
    pub(super) fn closed(&self) -> impl Iterator<Item = FunctionId> {
        let closed = |call: &&Call| call.left == Some(FreeReason::Closed);
        self.calls.values().filter(closed).map(|call| call.function)
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len() + self.failures
    }
}
