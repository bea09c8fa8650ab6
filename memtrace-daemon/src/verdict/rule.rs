//! What every rule that tells leaks from the rest has in common: memtrace's own, and the simpler
//! ones that it is measured against.

use memtrace_common::Domain;

use super::Surroundings;
use crate::ledger::{FoldedKey, RowKey, RowSample};
use crate::snapshot::Verdict;

/// What a verdict is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// A row of the books: a site in one process.
    Row(RowKey),
    /// All sites of a process in one domain.
    Process(u32, Domain),
    /// All processes of one program in one cgroup, the ended ones among them.
    Service(FoldedKey, Domain),
}

/// Is called with a sample of each row that there is.
pub type EachRow<'a> = dyn FnMut(&RowSample<'_>) + 'a;

/// A rule: looks at the books once a second, and says what it makes of them.
pub trait Rule {
    /// Takes one look. `rows` calls back with a sample of each row that there is.
    fn observe(
        &mut self,
        now_ns: u64,
        surroundings: Surroundings,
        rows: &mut dyn FnMut(&mut EachRow<'_>),
    );

    /// What is said now, about everything that anything is said about.
    fn said(&self, each: &mut dyn FnMut(Subject, Verdict));
}
