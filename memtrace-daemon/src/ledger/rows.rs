//! The books as the verdict looks at them: one sample a row and tick.

use memtrace_common::{Amount, Domain, FunctionId};

use super::Ledger;
use super::accounts::{Holder, LiveAges};
use super::ages::FreedAges;
use super::cohorts::Cohorts;
use super::process::{FoldedKey, ProcessBooks};
use crate::catalog;

/// What makes a row the same from tick to tick: raw keys, which do not change when a stack
/// gets its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowKey {
    /// A kernel account.
    Account {
        /// Serial of the process that took the memory.
        serial: u32,
        /// Context and function as the account has them.
        context_and_function: u32,
        /// The call site.
        call_site: u64,
        /// 0, or the hash of the stack.
        detail: u64,
    },
    /// A call site of an address space.
    Call {
        /// The space.
        space: u32,
        /// The function.
        function: FunctionId,
        /// The stack.
        stack: u64,
    },
}

/// One row at one tick. Where objects have no bytes, each counts as one.
#[derive(Clone, Copy, Debug)]
pub struct RowSample<'a> {
    /// Which row.
    pub key: RowKey,
    /// What kind of memory.
    pub domain: Domain,
    /// Whose it is: serial of the process; 0 where that is nobody, or nobody any more.
    pub owner: u32,
    /// What its owner has in common with others of the same program.
    pub service: FoldedKey,
    /// When its owner ended, monotonic ns.
    pub owner_ended_ns: Option<u64>,
    /// Lowest live bytes since the last tick.
    pub low_bytes: u64,
    /// Live now.
    pub live: Amount,
    /// Allocated since attach.
    pub allocated: Amount,
    /// Freed since attach.
    pub freed: Amount,
    /// Frees by the age of what was freed.
    pub ages: FreedAges,
    /// What became of what was allocated when, where every single object is followed.
    pub cohorts: Option<&'a Cohorts>,
    /// How old what is live is, where it is not: kernel memory, as last looked up.
    pub live_ages: Option<LiveAges>,
    /// First allocation, monotonic ns.
    pub first_ns: u64,
    /// Whether its space is closed: what it says does not change any more.
    pub frozen: bool,
}

impl Ledger {
    /// Gives one sample of each row, and starts the next tick's lowest mark.
    pub fn sample_rows(&mut self, each: &mut dyn FnMut(&RowSample<'_>)) {
        let processes = &self.processes;
        let owner = |serial: u32| {
            let process = processes.get(&serial);
            let service = process.map(ProcessBooks::service).unwrap_or_default();
            (serial, service, process.and_then(|process| process.ended_ns))
        };
        for books in self.accounts.iter_mut() {
            let account = &books.account;
            let live = account.live();
            if books.released && live.bytes == 0 {
                continue;
            }
            let (owner, service, owner_ended_ns) = match books.holder {
                Holder::Process(serial) => owner(serial),
                Holder::Folded(service) => (0, service, Some(0)),
                Holder::Interrupt | Holder::Unknown => (0, FoldedKey::default(), None),
            };
            each(&RowSample {
                key: books.row(),
                domain: Domain::Kernel,
                owner,
                service,
                owner_ended_ns,
                low_bytes: books.low_bytes,
                live,
                allocated: account.allocated,
                freed: account.freed,
                ages: FreedAges::of(account.ages),
                cohorts: None,
                live_ages: books.live_ages,
                first_ns: account.first_ns,
                frozen: false,
            });
            books.low_bytes = live.bytes;
        }
        for (id, space) in &mut self.spaces {
            let frozen = space.closed_ns.is_some();
            let (owner, service, owner_ended_ns) = owner(space.owner.unwrap_or(0));
            for site in space.sites_mut() {
                let Some((_, domain)) = catalog::name_and_domain(site.function) else {
                    continue;
                };
                let live = site.weight(site.live());
                each(&RowSample {
                    key: site.row(*id),
                    domain,
                    owner,
                    service,
                    owner_ended_ns,
                    low_bytes: site.low_bytes,
                    live,
                    allocated: site.weight(site.allocated),
                    freed: site.weight(site.freed),
                    ages: site.ages,
                    cohorts: Some(&site.cohorts),
                    live_ages: None,
                    first_ns: site.first_ns,
                    frozen,
                });
                site.low_bytes = live.bytes;
            }
        }
    }
}

impl super::AccountBooks {
    /// The row that this account is.
    #[must_use]
    pub fn row(&self) -> RowKey {
        let key = &self.account.key;
        RowKey::Account {
            serial: key.serial,
            context_and_function: key.context_and_function,
            call_site: key.call_site,
            detail: key.detail,
        }
    }
}

impl super::CallSite {
    /// The row that this site is in its address space.
    #[must_use]
    pub fn row(&self, space: u32) -> RowKey {
        RowKey::Call { space, function: self.function, stack: self.stack.0 }
    }
}
