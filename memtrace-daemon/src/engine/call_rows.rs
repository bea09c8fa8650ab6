//! Call sites of address spaces as parts of rows, and what no site explains.

use memtrace_common::{Amount, Domain, FunctionId};

use super::core::Core;
use super::pools::is_pool;
use super::row::{Part, Place, RowId};
use crate::catalog;
use crate::ledger::{Gap, Space, site};
use crate::snapshot::{FrameKind, Frames};
use crate::verdict::{Judgement, RowFacts};

const CONTEXT: &str = "process";

/// An address space, and how its owner stands to it.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) id: u32,
    pub(super) space: &'a Space,
    /// Whether what is in it is shown as live: it is open, or its owner ended with it.
    pub(super) shown: bool,
}

/// All parts of an address space.
pub(super) fn parts(core: &Core, view: View<'_>, now_ns: u64, mut each: impl FnMut(Part)) {
    let View { id, space, shown } = view;
    let closed_ns = space.closed_ns;
    let until_ns = closed_ns.unwrap_or(now_ns);
    let note = (!shown).then_some("closed by exec");
    // Where whoever has ended stays until the report, the report is about them.
    let current = closed_ns.is_none() || (shown && core.config.ledger.linger_ns.is_none());
    let oldest = space.oldest();
    for (position, site) in space.sites().iter().enumerate() {
        let Some((api, domain)) = catalog::name_and_domain(site.function) else {
            continue;
        };
        let live = if shown { site.live() } else { Amount::default() };
        let facts = RowFacts {
            now_ns: until_ns,
            live_bytes: site.weight(live).bytes,
            allocated: site.weight(site.allocated),
            freed: site.weight(site.freed),
            first_ns: site.first_ns,
            orphan_since_ns: None,
            cohorts: Some(site.cohorts()),
            unseen_frees: site.freed_unseen.count,
        };
        let stacks = core.ledger.stacks();
        let place = match stacks.digest(site.stack) {
            Some(digest) => Place::Site(site::site_id(domain.name(), api, digest)),
            None => Place::Raw(site.stack),
        };
        let frames = stacks.frames(site.stack, FrameKind::Native);
        let mut judgement = core.verdicts.judge(&site.row(id), &facts);
        if domain == Domain::Cuda
            && let Some(owner) = space.owner
            && is_pool(frames.first())
        {
            core.pools.temper(owner, &mut judgement);
        }
        let age = |oldest: &u64| until_ns.saturating_sub(*oldest) as f64 / 1e9;
        each(Part {
            id: RowId { function: site.function, context: CONTEXT, place },
            domain,
            api,
            device: site.device(),
            live,
            allocated: site.allocated,
            freed: site.freed,
            failures: site.failures,
            oldest_age_seconds: oldest.get(&position).filter(|_| shown).map(age),
            judgement,
            current,
            frames_sampled: false,
            stack: stacks.taken(site.stack),
            frames,
            samples: Vec::new(),
            note,
        });
    }
    for (function, gap) in space.gaps() {
        if let Some((api, domain)) = catalog::name_and_domain(function) {
            each(unattributed(function, api, domain, &gap, shown));
        }
    }
}

fn unattributed(
    function: FunctionId,
    api: &'static str,
    domain: Domain,
    gap: &Gap,
    shown: bool,
) -> Part {
    Part {
        id: RowId { function, context: CONTEXT, place: Place::Unattributed },
        domain,
        api,
        device: None,
        live: if shown { gap.live } else { Amount::default() },
        allocated: gap.allocated,
        freed: gap.freed,
        failures: gap.failures,
        oldest_age_seconds: None,
        judgement: Judgement::default(),
        current: false,
        frames_sampled: false,
        stack: None,
        frames: Frames::default(),
        samples: Vec::new(),
        note: Some("unattributed"),
    }
}
