//! Call-path records into the books: totals, allocations, failures and frees.

use memtrace_common::{AllocationRecord, FreeReason, FreeRecord, FunctionId, Totals, TotalsKey};

use super::Ledger;
use super::apply::used;
use super::space::{ClosedCall, Space};
use super::stacks::Need;
use crate::record::{StackKey, StackOrigin};

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
            Space::new(time_ns)
        });
        space.accept(function, totals);
        if space.closed_ns.is_some() && !space.swept && space.holds() {
            self.closing.push(key.space);
        }
    }

    /// Finds the space and the stack of a call; `None` where they are not kept.
    fn place(&mut self, call: &AllocationRecord) -> Option<(FunctionId, StackKey)> {
        let function = FunctionId::try_from(call.function).ok()?;
        let swept = self.spaces.get(&call.space).is_some_and(|space| space.swept);
        if swept || self.forgotten_spaces.get(&call.space).is_some() {
            return None;
        }
        let time_ns = call.header.time_ns;
        let space = self.spaces.entry(call.space).or_insert_with(|| {
            self.ownerless.push(call.space);
            Space::new(time_ns)
        });
        if space.owner.is_none() && call.serial != 0 {
            self.own(call.space, call.serial, false, time_ns);
        }
        let frames = used(&call.user, call.user_frames);
        let stack = StackKey::user(call.space, frames);
        let origin = StackOrigin::User { tgid: call.tgid, serial: call.serial, space: call.space };
        self.stacks.want(stack, origin, frames, Need::Identity).then_some((function, stack))
    }

    pub(super) fn allocation_record(&mut self, call: &AllocationRecord) {
        let early = match self.closed_calls.get(&call.id) {
            Some(ClosedCall::Booked) => return,
            Some(ClosedCall::Early(reason)) => Some(*reason),
            None => None,
        };
        let Some((function, stack)) = self.place(call) else {
            return;
        };
        let Some(space) = self.spaces.get_mut(&call.space) else {
            return;
        };
        let new = space.allocate(call.id, function, stack, call.bytes, call.header.time_ns);
        if let (true, Some(reason)) = (new, early) {
            space.free(call.id, reason);
            self.closed_calls.insert(call.id, ClosedCall::Booked);
        }
    }

    pub(super) fn failure_record(&mut self, call: &AllocationRecord) {
        if let Some((function, stack)) = self.place(call)
            && let Some(space) = self.spaces.get_mut(&call.space)
        {
            space.fail(function, stack, call.header.time_ns);
        }
    }

    pub(super) fn free_record(&mut self, free: &FreeRecord) {
        let reason = match free.reason {
            reason if reason == FreeReason::FreedUnseen as u32 => FreeReason::FreedUnseen,
            _ => FreeReason::Freed,
        };
        let booked = self.spaces.get_mut(&free.space).is_some_and(|space| {
            let booked = space.free(free.id, reason);
            if booked && let Ok(function) = FunctionId::try_from(free.function) {
                space.heard(function);
            }
            booked
        });
        if booked {
            self.closed_calls.insert(free.id, ClosedCall::Booked);
        } else if self.closed_calls.get(&free.id).is_none() {
            self.closed_calls.insert(free.id, ClosedCall::Early(reason));
        }
    }

    /// After a loss: what the kernel's live map does not have was freed unheard.
    pub(super) fn live_ids(&mut self, next_id: u64, ids: &[u64], read_ns: u64) {
        // A swept space's allocations are not in the map because the sweep took them.
        for space in self.spaces.values_mut().filter(|space| !space.swept) {
            for id in space.missing(next_id, ids, read_ns) {
                space.free(id, FreeReason::Freed);
                self.closed_calls.insert(id, ClosedCall::Booked);
            }
        }
    }
}
