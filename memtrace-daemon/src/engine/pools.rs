//! PyTorch's pools: what the books have of them, for the rule on them and for the picture.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memtrace_common::Domain;

use super::core::Core;
use crate::catalog;
use crate::ledger::{CallSite, ProcessBooks, RowKey, Space};
use crate::snapshot::{Frame, Pool, Verdict};
use crate::verdict::{PoolBooks, Rule as _, Subject};

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
        let mut looks = BTreeMap::new();
        for process in self.ledger.processes().filter(|process| !process.ended()) {
            let Some(entry) = process.entry else { continue };
            if let Some(space) = self.ledger.space(entry.space)
                && let Some(books) = self.pool_books(process, entry.space, space)
            {
                looks.insert(process.serial, books);
            }
        }
        // Of who has ended the last word stays; of tensors that nobody looks at any more none does.
        let ledger = &self.ledger;
        let ended = |serial| ledger.process(serial).is_some_and(ProcessBooks::ended);
        self.pools.retain(|serial| looks.contains_key(&serial) || ended(serial));
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

    /// Whether a process runs in this address space.
    #[must_use]
    pub fn runs(&self, serial: u32, space: u32) -> bool {
        let process = self.ledger.process(serial).filter(|process| !process.ended());
        process.and_then(|process| process.entry).is_some_and(|entry| entry.space == space)
    }

    /// Running processes whose pool grows: serial, thread group id, address space. Those whose
    /// growing sites hold most come first.
    #[must_use]
    pub fn restless_pools(&self) -> Vec<(u32, u32, u32)> {
        let mut grown: BTreeMap<(u32, u32, u32), u64> = BTreeMap::new();
        self.verdicts.said(&mut |subject, verdict| {
            if matches!(verdict, Verdict::Growing | Verdict::Leak)
                && let Some((whose, bytes)) = self.growing_pool(subject)
            {
                let sum = grown.entry(whose).or_default();
                *sum = sum.saturating_add(bytes);
            }
        });
        let mut grown: Vec<_> = grown.into_iter().collect();
        grown.sort_by_key(|(_, bytes)| Reverse(*bytes));
        grown.into_iter().map(|(whose, _)| whose).collect()
    }

    /// Whose pool a subject that grows is a part of, and what it holds, bytes.
    fn growing_pool(&self, subject: Subject) -> Option<((u32, u32, u32), u64)> {
        match subject {
            Subject::Row(key @ RowKey::Call { space: id, .. }) => {
                let space = self.ledger.space(id)?;
                let site = space.sites().iter().find(|site| site.row(id) == key)?;
                let serial = space.owner.filter(|serial| self.runs(*serial, id))?;
                let pid = self.ledger.process(serial)?.pid();
                let bytes = site.live().bytes;
                self.takes_for_pool(site).then_some(((serial, pid, id), bytes))
            }
            // Many sites, each too small to be one of the above.
            Subject::Process(serial, Domain::Cuda) => {
                let process = self.ledger.process(serial)?;
                let id = process.entry.filter(|entry| self.runs(serial, entry.space))?.space;
                let sites = self.ledger.space(id)?.sites().iter();
                let held =
                    sites.filter(|site| self.takes_for_pool(site)).map(|one| one.live().bytes);
                let bytes = held.fold(0, u64::saturating_add);
                (bytes > 0).then_some(((serial, process.pid(), id), bytes))
            }
            Subject::Row(_) | Subject::Process(..) | Subject::Service(..) => None,
        }
    }

    /// Whether a site's calls take device memory for a pool.
    fn takes_for_pool(&self, site: &CallSite) -> bool {
        catalog::name_and_domain(site.function).is_some_and(|(_, domain)| domain == Domain::Cuda)
            && is_pool(self.ledger.stacks().innermost(site.stack))
    }

    fn pool_books(&self, process: &ProcessBooks, id: u32, space: &Space) -> Option<PoolBooks> {
        let tensors = space.tensors()?;
        let sites = space.sites().iter().filter(|site| self.takes_for_pool(site));
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
