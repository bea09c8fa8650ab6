//! What the books ask for: names of stacks, facts about processes, and what the kernel side
//! may let go. The ledger only says it; the engine does it, and a replay does none of it.

use memtrace_common::{AccountKey, ProcessKey, TotalsKey};

use crate::record::RawStack;

/// What a record made necessary. All empty for most records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Stacks to be named; each is asked for once.
    pub stacks: Vec<RawStack>,
    /// Processes to be described (`Observation::ProcessFacts`): new ones, and after exec.
    pub unfamiliar: Vec<Unfamiliar>,
    /// Accounts of ended processes without live memory, to be deleted from the kernel's maps.
    /// Whoever deletes reads the account once more: if it has live memory again it stays, and
    /// either way what was read is a record to be applied.
    pub delete_accounts: Vec<(u32, AccountKey)>,
    /// Closed address spaces whose allocations are still in the kernel's live map.
    pub sweep_spaces: Vec<u32>,
    /// Rows of call-path totals of processes that ended; read once more before deleting.
    pub delete_totals: Vec<TotalsKey>,
    /// Processes that ended a while ago, to be deleted from the kernel's maps.
    pub forget_processes: Vec<(ProcessKey, u32)>,
}

/// A process that nobody has described yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfamiliar {
    /// Its serial.
    pub serial: u32,
    /// Its thread group id in the initial pid namespace.
    pub tgid: u32,
}

impl Effects {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            stacks,
            unfamiliar,
            delete_accounts,
            sweep_spaces,
            delete_totals,
            forget_processes,
        } = self;
        stacks.is_empty()
            && unfamiliar.is_empty()
            && delete_accounts.is_empty()
            && sweep_spaces.is_empty()
            && delete_totals.is_empty()
            && forget_processes.is_empty()
    }
}
