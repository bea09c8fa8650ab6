//! From cumulative counters to the terms of conservation. Nothing here is ever guessed by
//! subtraction except `live`, which is what was followed and has not left.

use memtrace_common::{Account, Amount, Totals};

use crate::snapshot::Terms;

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

/// Terms of one row of call-path totals: what was live when its space closed is closed.
#[must_use]
pub fn of_totals(totals: &Totals, closed: bool) -> Terms {
    let held = totals.live();
    let nothing = Amount::default();
    let (live, closed) = if closed { (nothing, held) } else { (held, nothing) };
    Terms {
        seen: totals.seen,
        live,
        freed: totals.freed,
        closed,
        freed_unseen: totals.freed_unseen,
        dropped: totals.dropped,
    }
}
