//! The books as the verdict looks at them: one sample a row and tick.

use memtrace_common::{Amount, FunctionId};

use super::Ledger;

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

/// One row at one tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSample {
    /// Which row.
    pub key: RowKey,
    /// Lowest live bytes since the last tick.
    pub low_bytes: u64,
    /// Live bytes now.
    pub live_bytes: u64,
    /// Allocated since attach.
    pub allocated: Amount,
    /// Freed since attach.
    pub freed: Amount,
    /// First allocation, monotonic ns.
    pub first_ns: u64,
    /// Whether its space is closed: what it says does not change any more.
    pub frozen: bool,
}

impl Ledger {
    /// Gives one sample of each row, and starts the next tick's lowest mark.
    pub fn sample_rows(&mut self, mut each: impl FnMut(RowSample)) {
        for books in self.accounts.iter_mut() {
            let account = &books.account;
            let live_bytes = account.live().bytes;
            if books.released && live_bytes == 0 {
                continue;
            }
            each(RowSample {
                key: books.row(),
                low_bytes: books.low_bytes,
                live_bytes,
                allocated: account.allocated,
                freed: account.freed,
                first_ns: account.first_ns,
                frozen: false,
            });
            books.low_bytes = live_bytes;
        }
        for (id, space) in &mut self.spaces {
            let frozen = space.closed_ns.is_some();
            for site in space.sites_mut() {
                let live_bytes = site.live().bytes;
                each(RowSample {
                    key: site.row(*id),
                    low_bytes: site.low_bytes,
                    live_bytes,
                    allocated: site.allocated,
                    freed: site.freed,
                    first_ns: site.first_ns,
                    frozen,
                });
                site.low_bytes = live_bytes;
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
