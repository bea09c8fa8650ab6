//! The books: who allocated what, what of it was given back, and whether the sums agree.
//!
//! Pure: the ledger does no I/O and reads no clock; what it knows came in as records, so the
//! same records give the same books. The kernel side is the authority: its counters are
//! cumulative and come whole, so a record that is lost or late makes a number late, never wrong.

mod accounts;
mod ages;
mod apply;
mod calls;
mod cohorts;
mod config;
mod effects;
mod lives;
mod process;
mod reap;
mod recent;
mod rows;
pub mod site;
mod space;
mod stacks;
mod tensors;
mod terms;
mod waiting;

pub use accounts::{AccountBooks, Holder, LiveAges, StackSample};
pub use ages::FreedAges;
pub use cohorts::{Cohort, Cohorts};
pub use config::LedgerConfig;
pub use effects::{Effects, Unfamiliar};
pub use process::{Facts, Folded, FoldedKey, ProcessBooks, text};
pub use rows::{RowKey, RowSample};
pub use space::{CallSite, Gap, Space};
pub use stacks::Stacks;
pub use tensors::Tensors;
pub use terms::{of_account, of_totals};

use std::collections::BTreeMap;

use memtrace_common::{Domain, FunctionId};
use rustc_hash::FxHashMap;

use crate::snapshot::Terms;
use accounts::Accounts;
use recent::Recent;
use space::ClosedCall;

/// Ids of library allocations that left the books lately, so that a record that comes twice or
/// out of order moves nothing twice. The ring buffer keeps order; this is for the exceptions.
const RECENT_CALLS: usize = 4_096;
/// Processes and spaces that were let go lately: what still comes of them is no new process.
const RECENT_PROCESSES: usize = 4_096;

/// The books of all processes.
#[derive(Debug)]
pub struct Ledger {
    config: LedgerConfig,
    processes: FxHashMap<u32, ProcessBooks>,
    /// Ended processes that are still kept, in the order of their ends.
    ended: std::collections::VecDeque<u32>,
    folded: FxHashMap<FoldedKey, Folded>,
    accounts: Accounts,
    /// Accounts of nobody: interrupts, and processes that have no name.
    interrupt: Vec<usize>,
    unknown: Vec<usize>,
    spaces: FxHashMap<u32, Space>,
    /// Spaces that came with totals or calls before any process said that they are its own.
    ownerless: Vec<u32>,
    /// Spaces that were closed and are still to be swept from the kernel's maps.
    closing: Vec<u32>,
    stacks: Stacks,
    /// How many stacks it takes until those that nobody has are let go.
    prune_at: usize,
    /// Terms of what is not kept any more, so that the host's equation still holds.
    remainder: BTreeMap<Domain, Terms>,
    /// Of it, what library functions had in closed spaces, and their failures.
    past: BTreeMap<FunctionId, (Terms, u64)>,
    closed_calls: Recent<u64, ClosedCall>,
    forgotten_spaces: Recent<u32, ()>,
    forgotten_processes: Recent<u32, FoldedKey>,
    /// Calls whose stacks came after them.
    unwound: u64,
    faults: Faults,
}

/// What should not happen and did: each is a fault of memtrace, not of what it watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A slot of an account with live memory was given to another account.
    pub replaced_live: u64,
    /// Stacks that found no room in the table of stacks; their memory is `unattributed`.
    pub refused_stacks: u64,
}

impl Ledger {
    /// Empty books.
    #[must_use]
    pub fn new(config: LedgerConfig) -> Self {
        Self {
            stacks: Stacks::new(config.max_stacks),
            prune_at: config.max_stacks / 2,
            config,
            processes: FxHashMap::default(),
            ended: std::collections::VecDeque::new(),
            folded: FxHashMap::default(),
            accounts: Accounts::default(),
            interrupt: Vec::new(),
            unknown: Vec::new(),
            spaces: FxHashMap::default(),
            ownerless: Vec::new(),
            closing: Vec::new(),
            remainder: BTreeMap::new(),
            past: BTreeMap::new(),
            closed_calls: Recent::new(RECENT_CALLS),
            forgotten_spaces: Recent::new(RECENT_PROCESSES),
            forgotten_processes: Recent::new(RECENT_PROCESSES),
            unwound: 0,
            faults: Faults::default(),
        }
    }

    /// Processes whose books are kept, in no particular order.
    pub fn processes(&self) -> impl Iterator<Item = &ProcessBooks> {
        self.processes.values()
    }

    /// One process.
    #[must_use]
    pub fn process(&self, serial: u32) -> Option<&ProcessBooks> {
        self.processes.get(&serial)
    }

    /// What is left of ended processes that are not kept any more.
    pub fn folded(&self) -> impl Iterator<Item = (&FoldedKey, &Folded)> {
        self.folded.iter()
    }

    /// A kernel account.
    #[must_use]
    pub fn account(&self, id: usize) -> Option<&AccountBooks> {
        self.accounts.get(id)
    }

    /// All kernel accounts.
    pub fn accounts(&self) -> impl Iterator<Item = &AccountBooks> {
        self.accounts.iter()
    }

    /// Accounts of memory taken in interrupts.
    #[must_use]
    pub fn interrupt_accounts(&self) -> &[usize] {
        &self.interrupt
    }

    /// Accounts whose process is not known, and the one that takes what found no account.
    #[must_use]
    pub fn unknown_accounts(&self) -> &[usize] {
        &self.unknown
    }

    /// The call-path books of an address space.
    #[must_use]
    pub fn space(&self, space: u32) -> Option<&Space> {
        self.spaces.get(&space)
    }

    /// All address spaces.
    pub fn spaces(&self) -> impl Iterator<Item = (u32, &Space)> {
        self.spaces.iter().map(|(id, space)| (*id, space))
    }

    /// The stacks and their names.
    #[must_use]
    pub fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    /// What should not have happened.
    #[must_use]
    pub fn faults(&self) -> Faults {
        Faults { refused_stacks: self.stacks.refused(), ..self.faults }
    }
}
