//! From cumulative counters to the terms of conservation. Nothing here is ever guessed by
//! subtraction except `live`, which is what was followed and has not left.

use std::collections::BTreeMap;

use memtrace_common::{Account, Amount, Domain, FunctionId, Totals};

use super::Ledger;
use crate::catalog;
use crate::snapshot::Terms;

impl Ledger {
    /// Terms of the whole host by domain: all accounts, all address spaces, and what is not
    /// kept any more.
    #[must_use]
    pub fn host_terms(&self) -> BTreeMap<Domain, Terms> {
        let mut host = self.remainder.clone();
        let kernel = host.entry(Domain::Kernel).or_default();
        for books in self.accounts.iter() {
            kernel.add(&of_account(&books.account));
        }
        for space in self.spaces.values() {
            for (function, totals) in space.totals() {
                if let Some((_, domain)) = catalog::name_and_domain(function) {
                    let closed = space.closed_ns.is_some();
                    host.entry(domain).or_default().add(&of_totals(&totals, closed));
                }
            }
        }
        host
    }
}

impl Ledger {
    /// Terms and failures of each library function, of all address spaces and of those that are
    /// not kept any more; a function more than once.
    pub fn function_terms(&self, each: &mut dyn FnMut(FunctionId, &Terms, u64)) {
        for (function, (terms, failures)) in &self.past {
            each(*function, terms, *failures);
        }
        for space in self.spaces.values() {
            for (function, totals) in space.totals() {
                let terms = of_totals(&totals, space.closed_ns.is_some());
                each(function, &terms, totals.failures);
            }
        }
    }
}

/// Terms of one kernel account: never closed, whoever ends.
#[must_use]
pub fn of_account(account: &Account) -> Terms {
    Terms {
        seen: account.seen,
        live: account.live(),
        freed: account.freed,
        closed: Amount::default(),
        freed_unseen: account.freed_unseen,
        dropped: account.dropped,
    }
}

/// Terms of one row of call-path totals: what was live when its space closed is closed, beside
/// what resets closed before.
#[must_use]
pub fn of_totals(totals: &Totals, closed: bool) -> Terms {
    let held = totals.live();
    let nothing = Amount::default();
    let (live, ended) = if closed { (nothing, held) } else { (held, nothing) };
    Terms {
        seen: totals.seen,
        live,
        freed: totals.freed,
        closed: totals.closed.saturating_add(ended),
        freed_unseen: totals.freed_unseen,
        dropped: totals.dropped,
    }
}
