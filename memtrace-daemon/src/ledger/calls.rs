//! Call-path records into the books: totals, allocations, failures and frees.

use memtrace_common::{FreeReason, FreeRecord, FunctionId, Totals, TotalsKey};

use super::Ledger;
use super::space::{ClosedCall, Space};
use super::stacks::Need;
use crate::record::{Call, StackKey, StackOrigin, Stage};

impl Ledger {
    pub(super) fn totals_record(&mut self, time_ns: u64, key: TotalsKey, totals: &Totals) {
        let Ok(function) = FunctionId::try_from(key.function) else {
            return;
        };
        if self.forgotten_spaces.get(&key.space).is_some() {
            return;
        }
        let space = self.spaces.entry(key.space).or_insert_with(|| {
            // Space 0 is nobody's for ever: the common rows.
            if key.space != 0 {
                self.ownerless.push(key.space);
            }
            Space::new(time_ns, self.config.window_ns)
        });
        space.accept(function, totals);
        if space.closed_ns.is_some() && !space.swept && space.holds() {
            self.closing.push(key.space);
        }
    }

    /// Finds the space of a call; `None` where it is not kept.
    fn space_of(&mut self, call: &Call) -> Option<&mut Space> {
        let swept = self.spaces.get(&call.space).is_some_and(|space| space.swept);
        if swept || self.forgotten_spaces.get(&call.space).is_some() {
            return None;
        }
        let space = self.spaces.entry(call.space).or_insert_with(|| {
            self.ownerless.push(call.space);
            Space::new(call.time_ns, self.config.window_ns)
        });
        if space.owner.is_none() && call.serial != 0 {
            self.own(call.space, call.serial, false, call.time_ns);
        }
        self.spaces.get_mut(&call.space)
    }

    /// The function and the stack of a call; `None` where the stack finds no room.
    fn site_of(&mut self, call: &Call) -> Option<(FunctionId, StackKey)> {
        let function = call.function_id();
        let stack = StackKey::user(call.space, &call.stack);
        let sites = self.spaces.get(&call.space).map_or(0, |space| space.sites().len());
        if sites >= self.config.max_stacks_of_one() && !self.stacks.holds(stack) {
            // One process must not take the room of all others.
            self.stacks.refuse();
            return None;
        }
        let origin = StackOrigin::User { tgid: call.tgid, serial: call.serial, space: call.space };
        let taken = call.taken.clone();
        let kept = self.stacks.want(stack, origin, &call.stack, taken, Need::Identity);
        kept.then_some((function, stack))
    }

    pub(super) fn allocation_record(&mut self, call: &Call) {
        self.unwound += u64::from(call.stage == Stage::Unwound);
        let early = match self.closed_calls.get(&call.id) {
            Some(ClosedCall::Booked) => return,
            Some(ClosedCall::Early(reason)) => Some(*reason),
            None => None,
        };
        let Some(space) = self.space_of(call) else {
            return;
        };
        // A call with a copied stack is told twice.
        if call.stage != Stage::Unwound {
            space.tensor(call.function, call.bytes, true);
        }
        if call.stage == Stage::Pending {
            space.await_stack(call.id, call.function_id(), call.time_ns, early);
            return;
        }
        let early = space.stack_came(call.id).or(early);
        let Some((function, stack)) = self.site_of(call) else {
            return;
        };
        let Some(space) = self.spaces.get_mut(&call.space) else {
            return;
        };
        let new = space.allocate(call, function, stack);
        if let (true, Some(reason)) = (new, early) {
            space.free(call.id, reason, call.time_ns);
            self.closed_calls.insert(call.id, ClosedCall::Booked);
        }
    }

    pub(super) fn failure_record(&mut self, call: &Call) {
        self.unwound += u64::from(call.stage == Stage::Unwound);
        let Some(space) = self.space_of(call) else {
            return;
        };
        match call.stage {
            Stage::Whole => {}
            Stage::Pending => return space.await_failure(),
            Stage::Unwound => space.failure_came(),
        }
        if let Some((function, stack)) = self.site_of(call)
            && let Some(space) = self.spaces.get_mut(&call.space)
        {
            space.fail(function, stack, call.time_ns);
        }
    }

    /// Calls whose stacks came after them, since the start.
    #[must_use]
    pub const fn unwound(&self) -> u64 {
        self.unwound
    }

    /// Calls whose stacks are still to be unwound.
    #[must_use]
    pub fn awaited(&self) -> usize {
        self.spaces.values().map(Space::awaited).sum()
    }

    pub(super) fn free_record(&mut self, free: &FreeRecord) {
        let reason = FreeReason::from_u32(free.reason).unwrap_or(FreeReason::Freed);
        let booked = self.spaces.get_mut(&free.space).is_some_and(|space| {
            space.tensor(free.function, free.bytes, false);
            if space.free_awaited(free.id, reason) {
                return true;
            }
            let booked = space.free(free.id, reason, free.header.time_ns);
            if booked && let Ok(function) = FunctionId::try_from(free.function) {
                space.heard(function);
            }
            booked
        });
        if booked {
            // Of a call that waits for its stack, the second record must still be booked.
            let awaited = self.spaces.get(&free.space).is_some_and(|space| space.awaits(free.id));
            if !awaited {
                self.closed_calls.insert(free.id, ClosedCall::Booked);
            }
        } else if self.closed_calls.get(&free.id).is_none() {
            self.closed_calls.insert(free.id, ClosedCall::Early(reason));
        }
    }

    /// After a loss: what the kernel's live map does not have was freed unheard, or closed by a
    /// reset, as many as the totals say.
    pub(super) fn live_ids(&mut self, next_id: u64, ids: &[u64], read_ns: u64) {
        // A swept space's allocations are not in the map because the sweep took them.
        for space in self.spaces.values_mut().filter(|space| !space.swept) {
            for id in space.free_missing(next_id, ids, read_ns) {
                self.closed_calls.insert(id, ClosedCall::Booked);
            }
        }
    }
}
