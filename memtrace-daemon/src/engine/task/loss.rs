//! What was lost on the way, and what is read again because of it.

use memtrace_common::{LossCause, LossCounter};

use super::Engine;
use crate::attach::tracer::Tracer;
use crate::engine::todo::report;
use crate::host;
use crate::record::{Observation, Record};

impl Engine {
    /// Takes in what was lost up to now.
    pub(super) fn look_for_loss(&mut self) {
        let mut counters = match self.parts.tracer.loss() {
            Ok(counters) => counters,
            Err(error) => return report("read the loss counters", Err(error)),
        };
        if let Some(budget) = counters.get_mut(LossCause::StackBudget as usize) {
            budget.count += self.parts.stacks.status().not_unwound;
        }
        if let Some(ceiling) = counters.get_mut(LossCause::RateCeiling as usize) {
            ceiling.count += self.parts.attacher.as_ref().map_or(0, |attacher| attacher.rests());
        }
        if counters == self.loss {
            return;
        }
        let ring_full = |counters: &[LossCounter]| {
            counters.get(LossCause::RingFull as usize).map_or(0, |counter| counter.count)
        };
        self.reconcile |= ring_full(&counters) != ring_full(&self.loss);
        self.loss.clone_from(&counters);
        let now_ns = host::clock::monotonic_ns();
        self.apply(&Record::Observation { now_ns, observation: Observation::Loss(counters) });
    }

    /// Closes library allocations whose free was lost on the way. The ids are read first and
    /// the totals and the ring after them, so that whatever was given before has been taken in,
    /// and how much of what is gone a reset took.
    pub(super) fn read_live_ids(&mut self) {
        let now_ns = host::clock::monotonic_ns();
        match self.parts.tracer.live_ids() {
            Ok((next_id, ids)) => {
                self.take_in("flush the kernel's counters", Tracer::flush);
                self.drain_all();
                self.reconcile = false;
                // What is still to be unwound is looked at once more when it has come.
                let awaited = self.core.awaited() as u64;
                self.reconcile_at = (awaited > 0).then(|| self.core.unwound() + awaited);
                let observation = Observation::LiveIds { next_id, ids };
                self.apply(&Record::Observation { now_ns, observation });
            }
            Err(error) => report("read the live map", Err(error)),
        }
    }
}
