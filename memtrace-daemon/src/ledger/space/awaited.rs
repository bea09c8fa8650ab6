//! Calls of an address space whose stacks are still to come. They are on no site, and in the totals
//! like all others.

use memtrace_common::{FreeReason, FunctionId};

use super::Space;

impl Space {
    /// An allocation whose stack is still to come; `early` where its free came already.
    pub(in crate::ledger) fn await_stack(
        &mut self,
        id: u64,
        function: FunctionId,
        time_ns: u64,
        early: Option<FreeReason>,
    ) {
        if !self.live.contains_key(&id) {
            self.waiting.enter(id, function, time_ns, early);
        }
    }

    /// The stack has come; why the allocation left the books meanwhile, if it did.
    pub(in crate::ledger) fn stack_came(&mut self, id: u64) -> Option<FreeReason> {
        self.waiting.leave(id)
    }

    /// A failed call whose stack is still to come.
    pub(in crate::ledger) fn await_failure(&mut self) {
        self.waiting.failures += 1;
    }

    /// A failed call has come with its stack.
    pub(in crate::ledger) fn failure_came(&mut self) {
        self.waiting.failures = self.waiting.failures.saturating_sub(1);
    }

    /// Calls whose stacks are still to come.
    #[must_use]
    pub fn awaited(&self) -> usize {
        self.waiting.len()
    }

    pub(in crate::ledger) fn awaits(&self, id: u64) -> bool {
        self.waiting.holds(id)
    }

    /// Notes the free of an allocation whose stack is still to come; false where it is not one.
    pub(in crate::ledger) fn free_awaited(&mut self, id: u64, reason: FreeReason) -> bool {
        self.waiting.free(id, reason)
    }
}
