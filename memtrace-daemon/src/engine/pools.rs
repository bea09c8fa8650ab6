//! PyTorch's pools: what the books have of them, for the rule on them and for the picture.

use memtrace_common::Domain;

use super::core::Core;
use crate::catalog;
use crate::ledger::{ProcessBooks, Space};
use crate::snapshot::{Frame, Pool};
use crate::verdict::PoolBooks;

/// What the file is called that PyTorch's pool is in: whoever calls cudaMalloc from it is the pool.
/// Only words about a process' own memory hang on it.
const POOL_FILE: &str = "libc10_cuda";

/// Whether a call whose innermost frame this is takes memory for the pool.
pub(super) fn is_pool(direct: Option<&Frame>) -> bool {
    let module = direct.and_then(|frame| frame.module.as_deref()).unwrap_or_default();
    module.rsplit('/').next().is_some_and(|file| file.starts_with(POOL_FILE))
}

impl Core {
    /// Looks at the pools of all running processes that have tensors on the books.
    pub(super) fn look_at_pools(&mut self, now_ns: u64) {
        let Self { pools, ledger, .. } = self;
        pools.retain(|serial| ledger.process(serial).is_some());
        let mut looks = Vec::new();
        for process in self.ledger.processes().filter(|process| !process.ended()) {
            let Some(entry) = process.entry else { continue };
            if let Some(space) = self.ledger.space(entry.space)
                && let Some(books) = self.pool_books(process, entry.space, space)
            {
                looks.push((process.serial, books));
            }
        }
        for (serial, books) in looks {
            self.pools.observe(now_ns, serial, books);
        }
    }

    /// The pool of a process as the books have it; of one that has ended, where the report is about
    /// it.
    pub(super) fn pool_of(&self, process: &ProcessBooks) -> Option<Pool> {
        let shown = !process.ended() || self.config.ledger.linger_ns.is_none();
        let id = process.entry.filter(|_| shown)?.space;
        Some(self.pool_books(process, id, self.ledger.space(id)?)?.pool())
    }

    fn pool_books(&self, process: &ProcessBooks, id: u32, space: &Space) -> Option<PoolBooks> {
        let tensors = space.tensors()?;
        let stacks = self.ledger.stacks();
        let of_pool = |function, stack| {
            catalog::name_and_domain(function).is_some_and(|(_, domain)| domain == Domain::Cuda)
                && is_pool(stacks.innermost(stack))
        };
        let sites = space.sites().iter().filter(|site| of_pool(site.function, site.stack));
        let from_start = self.config.domains.contains(&Domain::Torch);
        // An address space that was not its first began with an exec that was seen.
        let watched = !process.facts.before_attach || id != process.serial;
        let live = tensors.live();
        Some(PoolBooks {
            space: id,
            held_bytes: sites.map(|site| site.live().bytes).fold(0, u64::saturating_add),
            tensor_bytes: live.bytes,
            tensors: live.count,
            rounded_bytes: tensors.rounded_bytes(),
            most_bytes: tensors.most_bytes(),
            whole: from_start && watched,
        })
    }
}
