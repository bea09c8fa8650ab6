//! Letting go: what the kernel side may delete, and which ended processes are kept no longer.
//!
//! Nothing that is live is ever dropped: kernel memory of a process that is forgotten is folded
//! into the books of (ended, name, cgroup), and every term goes into the host's remainder.

use memtrace_common::FunctionId;
use rustc_hash::FxHashSet;

use super::accounts::Holder;
use super::{Effects, FoldedKey, Ledger, Space, terms};
use crate::catalog;
use crate::record::StackKey;

/// Processes are told of once a second until the telling succeeds. A space that no process has
/// called its own for this many reap times was left behind by an exec that was never told.
const UNCLAIMED: u64 = 5;

/// So many reap times a closed space waits for stacks that are still to be unwound.
const PATIENCE: u64 = 30;

impl Ledger {
    /// Looks at what has ended, once a tick.
    pub(super) fn reap(&mut self, now_ns: u64, effects: &mut Effects) {
        // First: what is asked for below is read once more, and must find its books at home.
        self.forget_old(now_ns);
        self.release_ended(now_ns, effects);
        self.close_unclaimed(now_ns);
        self.sweep_closed(now_ns, effects);
        self.reap_folded(effects);
        if self.stacks.len() >= self.prune_at {
            self.prune_stacks();
        }
    }

    /// Empty accounts of ended processes, and the processes themselves, leave the kernel's maps.
    fn release_ended(&mut self, now_ns: u64, effects: &mut Effects) {
        let reap_after_ns = self.config.reap_after_ns;
        for serial in &self.ended {
            let Some(process) = self.processes.get_mut(serial) else {
                continue;
            };
            let since_ns = process.ended_ns.unwrap_or(now_ns);
            if now_ns.saturating_sub(since_ns) < reap_after_ns {
                break;
            }
            for id in &process.accounts {
                if let Some(books) = self.accounts.get_mut(*id)
                    && !books.released
                    && books.account.live().is_zero()
                {
                    books.released = true;
                    effects.delete_accounts.push((books.account.slot, books.account.key));
                }
            }
            if !process.released
                && let Some(entry) = process.entry
            {
                process.released = true;
                effects.forget_processes.push((entry.key, *serial));
            }
        }
    }

    /// Spaces that nobody calls his own are closed, and let go once they are swept.
    fn close_unclaimed(&mut self, now_ns: u64) {
        let wait_ns = self.config.reap_after_ns.saturating_mul(UNCLAIMED);
        for id in std::mem::take(&mut self.ownerless) {
            let Some(space) = self.spaces.get_mut(&id) else {
                continue;
            };
            if space.owner.is_some() {
                continue;
            }
            if space.closed_ns.is_none() && now_ns.saturating_sub(space.first_ns) >= wait_ns {
                space.closed_ns = Some(now_ns);
                self.closing.push(id);
            }
            if space.done() {
                self.remove_space(id);
            } else {
                self.ownerless.push(id);
            }
        }
    }

    /// Closed spaces: at one tick the kernel side is asked for their last state, at the next
    /// one what they still hold is swept.
    fn sweep_closed(&mut self, now_ns: u64, effects: &mut Effects) {
        let mut closing = std::mem::take(&mut self.closing);
        closing.sort_unstable();
        closing.dedup();
        let mut waiting = Vec::new();
        // Once anything is in the common rows nobody can tell whose it is.
        let common = self.spaces.contains_key(&0);
        for id in closing {
            let Some(space) = self.spaces.get_mut(&id) else {
                continue;
            };
            let Some(since_ns) = space.closed_ns else {
                continue;
            };
            // Sweeping a space whose owner is only guessed could take live entries.
            let times = if space.owner_certain { 1 } else { UNCLAIMED };
            let wait_ns = self.config.reap_after_ns.saturating_mul(times);
            let waited_ns = now_ns.saturating_sub(since_ns);
            // Not for ever: a stack may never come.
            let awaits = space.awaited() > 0 && waited_ns < wait_ns.saturating_mul(PATIENCE);
            if waited_ns < wait_ns || awaits {
                waiting.push(id);
            } else if !space.settled {
                space.settled = true;
                effects.settle_spaces.push(id);
                waiting.push(id);
            } else if !space.swept && (common || space.holds() || space.has_called()) {
                space.sweep();
                effects.sweep_spaces.push(id);
            }
        }
        self.closing = waiting;
    }

    fn forget_old(&mut self, now_ns: u64) {
        let mut crowded = self.crowded_out();
        for serial in std::mem::take(&mut self.ended) {
            if self.is_old(serial, crowded.remove(&serial), now_ns) {
                self.forget(serial);
            } else {
                self.ended.push_back(serial);
            }
        }
    }

    /// Who ended and finds no room any more, the oldest first. Those who kept nothing go before
    /// those who did: a host where thousands of commands come and go must not hide the one that
    /// left memory behind.
    fn crowded_out(&self) -> FxHashSet<u32> {
        let excess = self.ended.len().saturating_sub(self.config.max_ended);
        if excess == 0 {
            return FxHashSet::default();
        }
        let (keepers, others): (Vec<u32>, Vec<u32>) =
            self.ended.iter().partition(|serial| self.kept_something(**serial));
        others.into_iter().chain(keepers).take(excess).collect()
    }

    /// Whether anything of a process is live, or was when it ended.
    fn kept_something(&self, serial: u32) -> bool {
        self.processes.get(&serial).is_some_and(|process| {
            let mut accounts = process.accounts.iter().filter_map(|id| self.accounts.get(*id));
            let mut spaces = process.spaces.iter().filter_map(|id| self.spaces.get(id));
            accounts.any(|books| !books.account.live().is_zero()) || spaces.any(Space::holds)
        })
    }

    /// Whether a process' time is over. It is kept until the kernel side was asked for its last
    /// counters, and while somebody else runs in its memory.
    fn is_old(&self, serial: u32, crowded: bool, now_ns: u64) -> bool {
        let Some(process) = self.processes.get(&serial) else {
            return true;
        };
        let age_ns = now_ns.saturating_sub(process.ended_ns.unwrap_or(now_ns));
        let expired = self.config.linger_ns.is_some_and(|linger_ns| age_ns >= linger_ns);
        let mut spaces = process.spaces.iter().filter_map(|id| self.spaces.get(id));
        process.released && (expired || crowded) && spaces.all(Space::done)
    }

    fn forget(&mut self, serial: u32) {
        let Some(process) = self.processes.remove(&serial) else {
            return;
        };
        let key = process.service();
        self.forgotten_processes.insert(serial, key);
        for id in process.accounts {
            self.fold(id, key);
        }
        if let Some(folded) = self.folded.get_mut(&key) {
            folded.cgroup = process.facts.cgroup.or(folded.cgroup.take());
            let ended_boot_ns = process.entry.map_or(0, |entry| entry.ended_ns);
            folded.ended_boot_ns = folded.ended_boot_ns.max(ended_boot_ns);
            folded.ended_ns = folded.ended_ns.max(process.ended_ns.unwrap_or(0));
        }
        for id in process.spaces {
            self.remove_space(id);
        }
    }

    /// Moves a closed space's terms to the host's remainder.
    fn remove_space(&mut self, id: u32) {
        let Some(space) = self.spaces.remove(&id) else {
            return;
        };
        self.forgotten_spaces.insert(id, ());
        for (function, totals) in space.totals() {
            if let Some(domain) = domain_of(function) {
                let terms = terms::of_totals(&totals, true);
                self.remainder.entry(domain).or_default().add(&terms);
                let (past, failures) = self.past.entry(function).or_default();
                past.add(&terms);
                *failures = failures.saturating_add(totals.failures);
            }
        }
    }

    /// An account of a process that is forgotten: kept where anything is live, or where the
    /// kernel side may still have it.
    fn fold(&mut self, id: usize, key: FoldedKey) {
        let Some(books) = self.accounts.get_mut(id) else {
            return;
        };
        if books.released && books.account.live().is_zero() {
            self.settle_account(id);
            return;
        }
        books.holder = Holder::Folded(key);
        self.folded.entry(key).or_default().accounts.push(id);
    }

    /// Folded accounts go once the kernel side was told to delete them and a tick has passed
    /// without their coming back to life.
    fn reap_folded(&mut self, effects: &mut Effects) {
        let mut gone = Vec::new();
        for folded in self.folded.values_mut() {
            folded.accounts.retain(|id| {
                let Some(books) = self.accounts.get_mut(*id) else {
                    return false;
                };
                if !books.account.live().is_zero() {
                    return true;
                }
                if books.released {
                    gone.push(*id);
                    return false;
                }
                books.released = true;
                effects.delete_accounts.push((books.account.slot, books.account.key));
                true
            });
        }
        self.folded.retain(|_, folded| !folded.accounts.is_empty());
        for id in gone {
            self.settle_account(id);
        }
    }

    /// Moves an account's terms to the host's remainder.
    fn settle_account(&mut self, id: usize) {
        if let Some(books) = self.accounts.remove(id) {
            let domain =
                domain_of(books.account.key.function()).unwrap_or(memtrace_common::Domain::Kernel);
            let terms = terms::of_account(&books.account);
            self.remainder.entry(domain).or_default().add(&terms);
        }
    }

    /// Lets go of the stacks that no books have any more.
    fn prune_stacks(&mut self) {
        let mut used = FxHashSet::default();
        for books in self.accounts.iter() {
            used.insert(StackKey::kernel(&[books.account.key.call_site]));
            used.extend(books.stack);
            for sample in &books.samples {
                used.insert(sample.kernel);
                used.extend(sample.user);
            }
        }
        for space in self.spaces.values() {
            used.extend(space.sites().iter().map(|site| site.stack));
        }
        self.stacks.retain(&used);
        // Not at every tick, where everything is in use.
        let limit = self.config.max_stacks;
        self.prune_at = (limit / 2).max(self.stacks.len() + limit / 8);
    }
}

fn domain_of(function: FunctionId) -> Option<memtrace_common::Domain> {
    catalog::name_and_domain(function).map(|(_, domain)| domain)
}
