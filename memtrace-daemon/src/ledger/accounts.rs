//! Kernel accounts: by slot as the kernel side numbers them, and what was in a slot before.
//!
//! A slot is used again after its account was deleted; the old account's books stay with their
//! process. Counters only grow, so of two records of one account the larger one is the newer.

use std::cmp::Reverse;

use memtrace_common::{AGE_CLASSES, Account, AccountAgesRecord, AccountKey, UNATTRIBUTED_SLOT};
use rustc_hash::FxHashMap;
use slab::Slab;

use super::process::FoldedKey;
use crate::record::StackKey;

/// Whose books an account is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A process, by serial.
    Process(u32),
    /// Ended processes of one name, not kept one by one any more.
    Folded(FoldedKey),
    /// An interrupt.
    Interrupt,
    /// Nobody knows.
    Unknown,
}

/// One kernel account.
#[derive(Clone, Debug)]
pub struct AccountBooks {
    /// Its counters as last told.
    pub account: Account,
    /// Whose it is.
    pub holder: Holder,
    /// The whole kernel stack, of an exact account whose stack has come.
    pub stack: Option<StackKey>,
    /// Stacks that reached it, heaviest first.
    pub samples: Vec<StackSample>,
    /// Lowest live bytes since this was last looked at.
    pub low_bytes: u64,
    /// How old what is live is, as last told; `None` where it never was, as of a small account.
    pub live_ages: Option<LiveAges>,
    /// Whether the kernel side was told to delete it, or its slot has another account.
    pub released: bool,
    time_ns: u64,
}

/// Live bytes by age, as of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveAges {
    /// Which moment, monotonic ns.
    pub time_ns: u64,
    /// Bytes, in the classes of [`Account::ages`].
    pub bytes: [u64; AGE_CLASSES],
}

/// One stack seen at an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackSample {
    /// The kernel stack, from the call site outwards.
    pub kernel: StackKey,
    /// A user stack that called.
    pub user: Option<StackKey>,
    /// Bytes of growth that it stands for.
    pub weight: u64,
    /// Times taken.
    pub count: u64,
}

impl AccountBooks {
    /// The key of the stack that is its identity: its whole stack where it is exact, else
    /// its call site.
    #[must_use]
    pub fn identity(&self) -> Option<StackKey> {
        match self.account.key.detail {
            0 => Some(StackKey::kernel(&[self.account.key.call_site])),
            _ => self.stack,
        }
    }

    /// Whether it takes what found no account of its own.
    #[must_use]
    pub fn unattributed(&self) -> bool {
        self.account.slot == UNATTRIBUTED_SLOT
    }

    /// Adds a sample, keeping the `limit` heaviest.
    pub(super) fn add_sample(&mut self, sample: StackSample, limit: usize) {
        let known = self.samples.iter_mut().find(|known| known.kernel == sample.kernel);
        if let Some(known) = known {
            known.weight = known.weight.saturating_add(sample.weight);
            known.count += sample.count;
            known.user = known.user.or(sample.user);
        } else if self.samples.len() < limit {
            self.samples.push(sample);
        } else if let Some(lightest) = self.samples.last_mut()
            && lightest.weight < sample.weight
        {
            *lightest = sample;
        }
        self.samples.sort_by_key(|sample| Reverse(sample.weight));
    }
}

/// What became of an account's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// A new account, in no books yet.
    New(usize),
    /// The same account, with counters at least as large.
    Known(usize),
    /// An older state of the same account.
    Older(usize),
    /// An account that is gone.
    Gone,
}

/// All accounts, those that were in a slot before included.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    books: Slab<AccountBooks>,
    slots: FxHashMap<u32, Slot>,
    pub(super) replaced_live: u64,
}

/// What a slot holds; it is remembered after its books were let go, for records that are late.
#[derive(Clone, Copy, Debug)]
struct Slot {
    key: AccountKey,
    first_ns: u64,
    books: Option<usize>,
}

impl Accounts {
    pub(super) fn get(&self, id: usize) -> Option<&AccountBooks> {
        self.books.get(id)
    }

    pub(super) fn get_mut(&mut self, id: usize) -> Option<&mut AccountBooks> {
        self.books.get_mut(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &AccountBooks> {
        self.books.iter().map(|(_, books)| books)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut AccountBooks> {
        self.books.iter_mut().map(|(_, books)| books)
    }

    /// Takes a record's counters in. The holder of a new account is left for the caller.
    pub(super) fn accept(&mut self, time_ns: u64, account: &Account) -> Accepted {
        let Some(slot) = self.slots.get(&account.slot).copied() else {
            return Accepted::New(self.insert(time_ns, account));
        };
        if slot.key != account.key {
            if account.first_ns < slot.first_ns {
                return Accepted::Gone;
            }
            return Accepted::New(self.replace(slot, time_ns, account));
        }
        let Some(id) = slot.books else {
            if account.first_ns > slot.first_ns {
                return Accepted::New(self.insert(time_ns, account));
            }
            return Accepted::Gone;
        };
        let Some(known) = self.books.get_mut(id) else {
            return Accepted::Gone;
        };
        // The same key in the same slot after it was deleted: the first allocation is a later
        // one. `last_ns` is of a coarse clock and can lie before `first_ns`.
        if account.first_ns > known.account.first_ns.max(known.account.last_ns) {
            return Accepted::New(self.replace(slot, time_ns, account));
        }
        let (old, new) = (events(&known.account), events(account));
        if new < old || (new == old && time_ns < known.time_ns) {
            return Accepted::Older(id);
        }
        if new > old {
            known.released = false;
        }
        known.account = *account;
        known.time_ns = time_ns;
        known.low_bytes = known.low_bytes.min(account.live().bytes);
        Accepted::Known(id)
    }

    /// Takes in how old what is live at an account is. What is told of an account that the slot
    /// does not have any more, or of an earlier moment, says nothing.
    pub(super) fn accept_ages(&mut self, told: &AccountAgesRecord) {
        let books = self.slots.get(&told.slot).and_then(|slot| slot.books);
        let Some(books) = books.and_then(|id| self.books.get_mut(id)) else { return };
        let same = books.account.key == told.key && books.account.first_ns == told.first_ns;
        let older = books.live_ages.is_some_and(|known| known.time_ns > told.scanned_ns);
        if same && !older {
            books.live_ages = Some(LiveAges { time_ns: told.scanned_ns, bytes: told.bytes });
        }
    }

    fn replace(&mut self, slot: Slot, time_ns: u64, account: &Account) -> usize {
        if let Some(old) = slot.books.and_then(|id| self.books.get_mut(id)) {
            old.released = true;
            self.replaced_live += u64::from(!old.account.live().is_zero());
        }
        self.insert(time_ns, account)
    }

    fn insert(&mut self, time_ns: u64, account: &Account) -> usize {
        let id = self.books.insert(AccountBooks {
            account: *account,
            holder: Holder::Unknown,
            stack: None,
            samples: Vec::new(),
            low_bytes: account.live().bytes,
            live_ages: None,
            released: false,
            time_ns,
        });
        let slot = Slot { key: account.key, first_ns: account.first_ns, books: Some(id) };
        self.slots.insert(account.slot, slot);
        id
    }

    /// Lets an account's books go; its slot remembers that they are gone.
    pub(super) fn remove(&mut self, id: usize) -> Option<AccountBooks> {
        let books = self.books.try_remove(id)?;
        if let Some(slot) = self.slots.get_mut(&books.account.slot)
            && slot.books == Some(id)
        {
            slot.books = None;
        }
        Some(books)
    }
}

/// How many events an account's counters have counted.
fn events(account: &Account) -> u64 {
    let Account { seen, allocated, freed, freed_unseen, dropped, .. } = account;
    [seen, allocated, freed, freed_unseen, dropped]
        .into_iter()
        .fold(0, |sum, amount| sum.wrapping_add(amount.count))
}

#[cfg(test)]
mod tests {
    use memtrace_common::Amount;

    use super::*;

    const KEY: AccountKey =
        AccountKey { call_site: 7, detail: 0, serial: 1, context_and_function: 0 };

    fn account(first_ns: u64, count: u64) -> Account {
        let amount = Amount { count, bytes: 64 * count };
        let key = KEY;
        Account {
            key,
            slot: 3,
            seen: amount,
            allocated: amount,
            first_ns,
            last_ns: first_ns,
            ..Account::default()
        }
    }

    fn ages(first_ns: u64, scanned_ns: u64, young: u64) -> AccountAgesRecord {
        let mut told =
            AccountAgesRecord { key: KEY, slot: 3, first_ns, scanned_ns, ..Default::default() };
        told.bytes[0] = young;
        told
    }

    #[test]
    fn ages_are_the_last_ones_told_of_that_very_account() {
        let mut accounts = Accounts::default();
        // Of an account that nobody told of.
        accounts.accept_ages(&ages(5, 10, 1));
        let Accepted::New(id) = accounts.accept(10, &account(5, 1)) else { panic!() };
        let young = |accounts: &Accounts, id| {
            let books: &AccountBooks = accounts.get(id).unwrap();
            books.live_ages.map(|ages| (ages.time_ns, ages.bytes[0]))
        };
        assert_eq!(young(&accounts, id), None);
        accounts.accept_ages(&ages(5, 20, 64));
        accounts.accept_ages(&ages(5, 15, 32));
        // Of the slot's next account, before that is known, and of another key.
        accounts.accept_ages(&ages(30, 40, 128));
        let other = AccountKey { call_site: 8, ..KEY };
        accounts.accept_ages(&AccountAgesRecord { key: other, ..ages(5, 50, 256) });
        assert_eq!(young(&accounts, id), Some((20, 64)));
        // New counters leave them as they are; the slot's next account begins without.
        accounts.accept(21, &account(5, 2));
        assert_eq!(young(&accounts, id), Some((20, 64)));
        let Accepted::New(next) = accounts.accept(31, &account(30, 1)) else { panic!() };
        assert_eq!((young(&accounts, next), young(&accounts, id)), (None, Some((20, 64))));
        accounts.remove(next);
        accounts.accept_ages(&ages(30, 50, 1));
        assert_eq!(young(&accounts, id), Some((20, 64)));
    }
}
