//! Letting go: what the kernel side may delete, and which ended processes are kept no longer.
//!
//! Nothing that is live is ever dropped: kernel memory of a process that is forgotten is folded
//! into the books of (ended, name, cgroup), and every term goes into the host's remainder.

use memtrace_common::{FunctionId, TotalsKey};
use rustc_hash::FxHashSet;

use super::accounts::Holder;
use super::{Effects, FoldedKey, Ledger, Space, terms};
use crate::catalog;
use crate::record::StackKey;

/// Beyond this many times the limit, ended processes are let go however young they are.
const FLOOD: usize = 4;

impl Ledger {
    /// Looks at what has ended, once a tick.
    pub(super) fn reap(&mut self, now_ns: u64, effects: &mut Effects) {
        self.release_ended(now_ns, effects);
        self.sweep_closed(now_ns, effects);
        self.forget_old(now_ns, effects);
        self.reap_folded(effects);
        if self.stacks.len() >= self.prune_at {
            self.prune_stacks();
        }
    }

    fn settled(&self, since_ns: u64, now_ns: u64) -> bool {
        now_ns.saturating_sub(since_ns) >= self.config.reap_after_ns
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

    fn sweep_closed(&mut self, now_ns: u64, effects: &mut Effects) {
        let mut waiting = Vec::new();
        for id in std::mem::take(&mut self.closing) {
            let Some(since_ns) = self.spaces.get(&id).and_then(|space| space.closed_ns) else {
                continue;
            };
            if !self.settled(since_ns, now_ns) {
                waiting.push(id);
                continue;
            }
            let Some(space) = self.spaces.get_mut(&id) else {
                continue;
            };
            if space.owner.is_none() {
                // Its owner was forgotten before it was heard of.
                self.settle_space(id, effects);
            } else {
                // Sweeping a space whose owner is only guessed could take live entries.
                if space.owner_certain {
                    release_space(id, space, effects);
                } else {
                    waiting.push(id);
                }
            }
        }
        self.closing = waiting;
    }

    fn forget_old(&mut self, now_ns: u64, effects: &mut Effects) {
        while let Some(serial) = self.ended.front().copied() {
            let Some(process) = self.processes.get(&serial) else {
                self.ended.pop_front();
                continue;
            };
            let since_ns = process.ended_ns.unwrap_or(now_ns);
            let expired = self
                .config
                .linger_ns
                .is_some_and(|linger_ns| now_ns.saturating_sub(since_ns) >= linger_ns);
            let crowded = self.ended.len() > self.config.max_ended;
            let flooded = self.ended.len() > self.config.max_ended.saturating_mul(FLOOD);
            if !(expired || flooded || (crowded && self.settled(since_ns, now_ns))) {
                return;
            }
            self.ended.pop_front();
            self.forget(serial, effects);
        }
    }

    fn forget(&mut self, serial: u32, effects: &mut Effects) {
        let Some(process) = self.processes.remove(&serial) else {
            return;
        };
        let key = process.folded_key();
        self.forgotten_processes.insert(serial, key);
        if let (false, Some(entry)) = (process.released, process.entry) {
            effects.forget_processes.push((entry.key, serial));
        }
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
            self.settle_space(id, effects);
        }
    }

    /// Moves a closed space's terms to the host's remainder.
    fn settle_space(&mut self, id: u32, effects: &mut Effects) {
        let Some(mut space) = self.spaces.remove(&id) else {
            return;
        };
        self.forgotten_spaces.insert(id, ());
        if space.owner_certain || space.owner.is_none() {
            release_space(id, &mut space, effects);
        }
        for (function, totals) in space.totals() {
            if let Some(domain) = domain_of(function) {
                let terms = terms::of_totals(totals, true);
                self.remainder.entry(domain).or_default().add(&terms);
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

/// Lets the kernel side drop a closed space's allocations and totals.
fn release_space(id: u32, space: &mut Space, effects: &mut Effects) {
    if space.swept {
        return;
    }
    if space.holds() {
        effects.sweep_spaces.push(id);
        space.sweep();
    }
    effects.delete_totals.extend(
        space.totals().map(|(function, _)| TotalsKey { space: id, function: u32::from(function) }),
    );
}

fn domain_of(function: FunctionId) -> Option<memtrace_common::Domain> {
    catalog::name_and_domain(function).map(|(_, domain)| domain)
}
