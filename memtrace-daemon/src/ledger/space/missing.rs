//! What left the books while nobody heard: after a loss, what the kernel's live map does not have.
//! Never moves the totals, which the kernel side keeps.

use memtrace_common::{FreeReason, FunctionId, Totals};
use rustc_hash::FxHashMap;

use super::{LiveCall, Space, sum};

impl Space {
    /// Books what the kernel's map, read from `read_ns` on, did not have although the books call
    /// it live: as freed, or as closed by a reset, as many as the totals say. `ids` is sorted.
    /// What is on a site, in the order of its ids.
    pub(in crate::ledger) fn free_missing(
        &mut self,
        next_id: u64,
        ids: &[u64],
        read_ns: u64,
    ) -> Vec<u64> {
        let older = |(id, call): &(&u64, &LiveCall)| **id < next_id && call.time_ns < read_ns;
        let live = self.live.iter().filter(older).map(|(id, _)| *id);
        let mut missing: Vec<u64> = live.filter(|id| ids.binary_search(id).is_err()).collect();
        let on_sites = missing.len();
        missing.extend(self.waiting.missing(next_id, ids, read_ns));
        if missing.is_empty() {
            return missing;
        }
        let mut closed = self.closed_unheard();
        let (sites, waiting) = missing.split_at_mut(on_sites);
        sites.sort_unstable();
        waiting.sort_unstable();
        for id in &missing {
            let reason = match self.function_of(*id).and_then(|of| closed.get_mut(&of)) {
                Some(left) if *left > 0 => {
                    *left -= 1;
                    FreeReason::Closed
                }
                _ => FreeReason::Freed,
            };
            if !self.free_awaited(*id, reason) {
                self.free(*id, reason, read_ns);
            }
        }
        missing.truncate(on_sites);
        missing
    }

    /// The function that made what is live under an id.
    fn function_of(&self, id: u64) -> Option<FunctionId> {
        let on_site = self.live.get(&id).and_then(|call| self.sites.get(call.site as usize));
        on_site.map(|site| site.function).or_else(|| self.waiting.function_of(id))
    }

    /// How many objects of each function resets have closed that nothing was heard of.
    fn closed_unheard(&self) -> FxHashMap<FunctionId, u64> {
        let sums = self.sums();
        let unheard = |(function, totals): (&FunctionId, &Totals)| {
            let heard = sum(&sums, *function).map_or(0, |sum| sum.closed.count);
            (*function, totals.closed.count.saturating_sub(heard))
        };
        let mut closed: FxHashMap<FunctionId, u64> = self.totals.iter().map(unheard).collect();
        for function in self.waiting.closed() {
            closed.entry(function).and_modify(|left| *left = left.saturating_sub(1));
        }
        closed
    }
}
