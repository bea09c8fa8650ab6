//! The call-path books of one address space: totals by function, allocations by id, and what
//! of the totals the allocations explain.
//!
//! Totals are the authority. Allocations say which site; where their records were lost, the
//! difference is the row `unattributed`, and it is never negative.

mod awaited;
mod devices;
mod missing;

use std::collections::hash_map::Entry;

use memtrace_common::{Amount, FreeReason, FunctionId, Totals};
use rustc_hash::{FxHashMap, FxHashSet};

use super::ages::FreedAges;
use super::cohorts::Cohorts;
use super::tensors::{Tensors, is_part};
use super::waiting::Waiting;
use crate::catalog;
use crate::record::{Call, StackKey};

/// One address space: new at exec, shared with a vfork child.
#[derive(Debug, Default)]
pub struct Space {
    /// Serial of the process that it belongs to.
    pub owner: Option<u32>,
    /// When it was closed by its owner's end or exec, monotonic ns.
    pub closed_ns: Option<u64>,
    /// When it was first heard of, monotonic ns.
    pub(super) first_ns: u64,
    /// Length of a window, ns.
    window_ns: u64,
    /// Running processes that share it with its owner.
    pub(super) sharers: u32,
    /// Whether `owner` was said by a process record, not guessed from a caller.
    pub(super) owner_certain: bool,
    /// Whether the kernel side was told that it is closed.
    pub(super) settled: bool,
    /// Whether its allocations may have been taken out of the kernel's live map.
    pub(super) swept: bool,
    totals: FxHashMap<FunctionId, Totals>,
    /// Functions of which calls were heard since their totals came.
    newer: FxHashSet<FunctionId>,
    sites: Vec<CallSite>,
    index: FxHashMap<(FunctionId, StackKey), usize>,
    live: FxHashMap<u64, LiveCall>,
    waiting: Waiting,
    /// Of a process that uses PyTorch's pool.
    tensors: Option<Box<Tensors>>,
}

/// One (function, stack) of an address space.
#[derive(Clone, Debug)]
pub struct CallSite {
    /// The function.
    pub function: FunctionId,
    /// Its stack.
    pub stack: StackKey,
    /// Allocated by calls whose record came.
    pub allocated: Amount,
    /// Of these: freed.
    pub freed: Amount,
    /// Of these: closed because the address was handed out again.
    pub freed_unseen: Amount,
    /// Of these: gone with their device's or their context's reset.
    pub closed: Amount,
    /// Calls that failed.
    pub failures: u64,
    /// First allocation, monotonic ns.
    pub first_ns: u64,
    /// The device of all that was allocated, `Some(None)` where it is not known or there are
    /// several; `None` while nothing was.
    device: Option<Option<u8>>,
    /// Oldest allocation that was live when the space was swept, monotonic ns.
    pub(super) oldest_ns: Option<u64>,
    /// Lowest live bytes since this was last looked at; objects where these have no bytes.
    pub low_bytes: u64,
    /// Whether its objects have no bytes.
    counted: bool,
    /// Frees by age.
    pub(super) ages: FreedAges,
    /// What became of what was allocated when.
    pub(super) cohorts: Cohorts,
}

impl CallSite {
    /// As the verdict looks at an amount of this site: where objects have no bytes, each is one.
    #[must_use]
    pub const fn weight(&self, amount: Amount) -> Amount {
        if self.counted { Amount { bytes: amount.count, ..amount } } else { amount }
    }

    /// What became of what was allocated when.
    #[must_use]
    pub const fn cohorts(&self) -> &Cohorts {
        &self.cohorts
    }

    /// The number of the device that all of it is on, or whose contexts it is bound to; `None`
    /// where that is not known, and where there are several.
    #[must_use]
    pub fn device(&self) -> Option<u8> {
        self.device.flatten()
    }

    /// Allocated and still there.
    #[must_use]
    pub fn live(&self) -> Amount {
        let left = self.freed.saturating_add(self.freed_unseen).saturating_add(self.closed);
        self.allocated.saturating_sub(left)
    }
}

/// What of a function's totals no site explains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Allocated.
    pub allocated: Amount,
    /// Freed.
    pub freed: Amount,
    /// Live, or held at the end.
    pub live: Amount,
    /// Failed calls.
    pub failures: u64,
}

impl Gap {
    /// Whether the sites explain everything.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Clone, Copy, Debug)]
struct LiveCall {
    site: u32,
    device: Option<u8>,
    bytes: u64,
    time_ns: u64,
}

/// What the sites of one function add up to.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    allocated: Amount,
    freed: Amount,
    freed_unseen: Amount,
    closed: Amount,
    failures: u64,
}

impl Sum {
    fn live(&self) -> Amount {
        let left = self.freed.saturating_add(self.freed_unseen).saturating_add(self.closed);
        self.allocated.saturating_sub(left)
    }
}

fn sum(sums: &[(FunctionId, Sum)], function: FunctionId) -> Option<&Sum> {
    sums.iter().find(|(of, _)| *of == function).map(|(_, sum)| sum)
}

/// What is remembered of an id that left the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosedCall {
    /// Its free is booked at its site.
    Booked,
    /// Its free came before its allocation.
    Early(FreeReason),
}

impl Space {
    pub(super) fn new(first_ns: u64, window_ns: u64) -> Self {
        Self { first_ns, window_ns, ..Self::default() }
    }

    fn window(&self, time_ns: u64) -> u32 {
        u32::try_from(time_ns / self.window_ns.max(1)).unwrap_or(u32::MAX)
    }

    /// Totals by function. A call's record comes at once, totals once a second: what the sites
    /// have heard of since then is in them.
    pub fn totals(&self) -> impl Iterator<Item = (FunctionId, Totals)> {
        let sums = self.sums();
        let told: Vec<_> = self
            .totals
            .iter()
            .map(|(function, totals)| {
                (*function, self.lift(*function, totals, sum(&sums, *function)))
            })
            .collect();
        let nothing = Totals::default();
        let untold = sums.into_iter().filter(|(function, _)| !self.totals.contains_key(function));
        let untold = untold
            .map(move |(function, sum)| (function, self.lift(function, &nothing, Some(&sum))));
        told.into_iter().chain(untold)
    }

    /// Totals, and what the sites know beyond them.
    fn lift(&self, function: FunctionId, totals: &Totals, sum: Option<&Sum>) -> Totals {
        let mut lifted = *totals;
        let Some(sum) = sum.filter(|_| self.newer.contains(&function)) else { return lifted };
        let beyond = sum.allocated.saturating_sub(totals.allocated);
        lifted.seen = totals.seen.saturating_add(beyond);
        lifted.allocated = totals.allocated.saturating_add(beyond);
        let most = |sum: Amount, total: Amount| total.saturating_add(sum.saturating_sub(total));
        let left = (
            most(sum.freed, totals.freed),
            most(sum.freed_unseen, totals.freed_unseen),
            most(sum.closed, totals.closed),
        );
        let gone = left.0.saturating_add(left.1).saturating_add(left.2);
        // How something left may have been guessed after a loss: not against the totals.
        if gone.count <= lifted.allocated.count && gone.bytes <= lifted.allocated.bytes {
            (lifted.freed, lifted.freed_unseen, lifted.closed) = left;
        }
        lifted.failures = totals.failures.max(sum.failures);
        lifted
    }

    /// Sums over the sites by function. A process uses few functions: a list is faster than a
    /// table, and this is asked for of every space once a second.
    fn sums(&self) -> Vec<(FunctionId, Sum)> {
        let mut sums: Vec<(FunctionId, Sum)> = Vec::new();
        for site in &self.sites {
            let at = sums.iter().position(|(function, _)| *function == site.function);
            let at = at.unwrap_or_else(|| {
                sums.push((site.function, Sum::default()));
                sums.len() - 1
            });
            let Some((_, sum)) = sums.get_mut(at) else { continue };
            sum.allocated = sum.allocated.saturating_add(site.allocated);
            sum.freed = sum.freed.saturating_add(site.freed);
            sum.freed_unseen = sum.freed_unseen.saturating_add(site.freed_unseen);
            sum.closed = sum.closed.saturating_add(site.closed);
            sum.failures += site.failures;
        }
        sums
    }

    /// Sites, in the order of their first calls.
    #[must_use]
    pub fn sites(&self) -> &[CallSite] {
        &self.sites
    }

    pub(super) fn sites_mut(&mut self) -> &mut [CallSite] {
        &mut self.sites
    }

    /// Whether anything was ever booked here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.totals.is_empty() && self.sites.is_empty()
    }

    /// Whether its last state was asked for and what it held was swept.
    pub(super) fn done(&self) -> bool {
        self.settled && (self.swept || !self.holds())
    }

    /// Whether any call of its process was heard of: it may have contexts in the kernel's live map
    /// that are in no counter.
    pub(super) fn has_called(&self) -> bool {
        !self.totals.is_empty()
    }

    /// Whether anything is live by the totals or by the sites.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.live.is_empty() || self.totals.values().any(|totals| !totals.live().is_zero())
    }

    /// When the oldest live allocation of each site was made, monotonic ns, by position in
    /// [`Self::sites`].
    #[must_use]
    pub fn oldest(&self) -> FxHashMap<usize, u64> {
        let mut oldest: FxHashMap<usize, u64> = self
            .sites
            .iter()
            .enumerate()
            .filter_map(|(position, site)| Some((position, site.oldest_ns?)))
            .collect();
        for call in self.live.values() {
            let time = oldest.entry(call.site as usize).or_insert(call.time_ns);
            *time = call.time_ns.min(*time);
        }
        oldest
    }

    /// What of each function's totals the sites do not explain.
    #[must_use]
    pub fn gaps(&self) -> Vec<(FunctionId, Gap)> {
        let sums = self.sums();
        let mut gaps: Vec<_> = self
            .totals
            .iter()
            .map(|(function, totals)| {
                let sum = sum(&sums, *function);
                let totals = self.lift(*function, totals, sum);
                let explained = sum.copied().unwrap_or_default();
                let allocated = totals.allocated.saturating_sub(explained.allocated);
                let live = totals.live().saturating_sub(explained.live());
                let gap = Gap {
                    allocated,
                    freed: totals.freed.saturating_sub(explained.freed),
                    // Where frees are booked before their totals come, nothing is missing.
                    live: Amount {
                        count: live.count.min(allocated.count),
                        bytes: live.bytes.min(allocated.bytes),
                    },
                    failures: totals.failures.saturating_sub(explained.failures),
                };
                (*function, gap)
            })
            .filter(|(_, gap)| !gap.is_zero())
            .collect();
        gaps.sort_by_key(|(function, _)| *function);
        gaps
    }

    /// Takes totals in, unless they are older than what is known.
    pub(super) fn accept(&mut self, function: FunctionId, totals: &Totals) {
        let known = self.totals.entry(function).or_default();
        if events(totals) >= events(known) {
            *known = *totals;
            self.newer.remove(&function);
            if is_part(function.into()) && totals.seen.count > 0 {
                // All closed as unseen: nobody looks at them any more.
                if totals.live().is_zero() && !totals.freed_unseen.is_zero() {
                    self.tensors = None;
                } else {
                    self.tensors.get_or_insert_default().told(totals.live());
                }
            }
        }
    }

    /// Notes a tensor that was given or taken back, before its stack is known.
    pub(super) fn tensor(&mut self, function: u32, bytes: u64, given: bool) {
        if is_part(function) {
            let tensors = self.tensors.get_or_insert_default();
            if given { tensors.given(bytes) } else { tensors.taken(bytes) }
        }
    }

    /// Tensors in PyTorch's pool; `None` where it has none.
    #[must_use]
    pub fn tensors(&self) -> Option<&Tensors> {
        self.tensors.as_deref()
    }

    /// Books an allocation; false where its id is live already.
    pub(super) fn allocate(&mut self, call: &Call, function: FunctionId, stack: StackKey) -> bool {
        let (id, bytes, time_ns, device) = (call.id, call.bytes, call.time_ns, call.device());
        let window = self.window(time_ns);
        let Entry::Vacant(entry) = self.live.entry(id) else { return false };
        let position = position(&mut self.sites, &mut self.index, (function, stack), time_ns);
        if let Some(site) = self.sites.get_mut(position) {
            site.allocated = site.allocated.saturating_add(Amount { count: 1, bytes });
            site.first_ns = site.first_ns.min(time_ns);
            site.device = match site.device {
                None => Some(device),
                Some(known) => Some(known.filter(|_| known == device)),
            };
            let weight = site.weight(Amount { count: 1, bytes }).bytes;
            site.cohorts.allocated(window, weight);
        }
        // No process has so many sites.
        let site = u32::try_from(position).unwrap_or(u32::MAX);
        entry.insert(LiveCall { site, device, bytes, time_ns });
        self.heard(function);
        true
    }

    /// Books a failed call at its site.
    pub(super) fn fail(&mut self, function: FunctionId, stack: StackKey, time_ns: u64) {
        let position = position(&mut self.sites, &mut self.index, (function, stack), time_ns);
        if let Some(site) = self.sites.get_mut(position) {
            site.failures += 1;
        }
    }

    /// Notes that a call of a function was heard: its sites may be ahead of its totals.
    pub(super) fn heard(&mut self, function: FunctionId) {
        self.newer.insert(function);
    }

    /// Books a free; false where the id is not live.
    pub(super) fn free(&mut self, id: u64, reason: FreeReason, time_ns: u64) -> bool {
        let Some(call) = self.live.remove(&id) else {
            return false;
        };
        let window = self.window(call.time_ns);
        if let Some(site) = self.sites.get_mut(call.site as usize) {
            let term = match reason {
                FreeReason::Freed => &mut site.freed,
                FreeReason::FreedUnseen => &mut site.freed_unseen,
                FreeReason::Closed => &mut site.closed,
            };
            *term = term.saturating_add(Amount { count: 1, bytes: call.bytes });
            site.low_bytes = site.low_bytes.min(site.weight(site.live()).bytes);
            let weight = site.weight(Amount { count: 1, bytes: call.bytes }).bytes;
            site.cohorts.freed(window, weight);
            // What a reset takes says nothing of how long anything is kept.
            if reason != FreeReason::Closed {
                site.ages.freed(time_ns.saturating_sub(call.time_ns), self.window_ns);
            }
        }
        true
    }

    /// Forgets the single allocations; the sites keep what they held. Nothing more comes.
    pub(super) fn sweep(&mut self) {
        for (position, time_ns) in self.oldest() {
            if let Some(site) = self.sites.get_mut(position) {
                site.oldest_ns = Some(time_ns);
            }
        }
        self.live = FxHashMap::default();
        self.waiting = Waiting::default();
        self.swept = true;
    }
}

/// The position of a site, of a new one where it is new.
fn position(
    sites: &mut Vec<CallSite>,
    index: &mut FxHashMap<(FunctionId, StackKey), usize>,
    (function, stack): (FunctionId, StackKey),
    time_ns: u64,
) -> usize {
    *index.entry((function, stack)).or_insert_with(|| {
        sites.push(CallSite {
            function,
            stack,
            allocated: Amount::default(),
            freed: Amount::default(),
            freed_unseen: Amount::default(),
            closed: Amount::default(),
            failures: 0,
            device: None,
            oldest_ns: None,
            first_ns: time_ns,
            low_bytes: 0,
            counted: catalog::name_and_domain(function).is_some_and(|(_, of)| of.is_counted()),
            ages: FreedAges::default(),
            cohorts: Cohorts::default(),
        });
        sites.len() - 1
    })
}

/// How many events totals have counted.
fn events(totals: &Totals) -> u64 {
    let Totals {
        seen,
        allocated,
        freed,
        freed_unseen,
        dropped,
        closed,
        failures,
        failed_frees,
        unknown_frees,
        empty,
        implausible,
        reported: _,
    } = totals;
    let amounts =
        [seen, allocated, freed, freed_unseen, dropped, closed].map(|amount| amount.count);
    let calls = [*failures, *failed_frees, *unknown_frees, *empty, *implausible];
    amounts.into_iter().chain(calls).fold(0, u64::wrapping_add)
}
