//! Kernel accounts as parts of rows.

use memtrace_common::{AccountKey, Context, Domain, KMALLOC};

use super::core::Core;
use super::row::{Part, Place, RowId};
use crate::catalog;
use crate::ledger::{AccountBooks, site};
use crate::record::StackKey;
use crate::snapshot::{FrameKind, Frames, OWN_PROBES, Sample, Taken, TakenBy};
use crate::verdict::RowFacts;

/// An account as part of a row; `orphan_since_ns` is when its process ended.
pub(super) fn part(
    core: &Core,
    books: &AccountBooks,
    now_ns: u64,
    orphan_since_ns: Option<u64>,
) -> Part {
    let account = &books.account;
    let key = &account.key;
    let function = if books.unattributed() { KMALLOC } else { key.function() };
    let (api, domain) = catalog::name_and_domain(function).unwrap_or(("unknown", Domain::Kernel));
    let live = account.live();
    let facts = RowFacts {
        now_ns,
        live_bytes: live.bytes,
        allocated: account.allocated,
        freed: account.freed,
        first_ns: account.first_ns,
        orphan_since_ns,
        cohorts: None,
        unseen_frees: account.freed_unseen.count,
    };
    let (place, note) = place(core, books, domain, api);
    let frames = frames(core, books);
    let note = note.or_else(|| made_by_uprobes(&frames).then_some(OWN_PROBES));
    let oldest_ns = (account.oldest_ns != 0 && !live.is_zero()).then_some(account.oldest_ns);
    Part {
        id: RowId { function, context: context(key), place },
        domain,
        api,
        device: None,
        live,
        allocated: account.allocated,
        freed: account.freed,
        failures: 0,
        oldest_age_seconds: oldest_ns.map(|oldest| now_ns.saturating_sub(oldest) as f64 / 1e9),
        judgement: core.verdicts.judge(&books.row(), &facts),
        current: true,
        frames_sampled: key.detail == 0 && place != Place::Unattributed,
        stack: (!frames.is_empty()).then_some(Taken::whole(TakenBy::Kernel)),
        frames,
        samples: samples(core, books),
        note,
    }
}

/// The kernel keeps the return addresses of probed functions for us.
fn made_by_uprobes(frames: &Frames) -> bool {
    frames.iter().any(|frame| frame.symbol.as_deref() == Some("uprobe_notify_resume"))
}

fn context(key: &AccountKey) -> &'static str {
    key.context().unwrap_or(Context::Process).name()
}

fn place(
    core: &Core,
    books: &AccountBooks,
    domain: Domain,
    api: &str,
) -> (Place, Option<&'static str>) {
    if books.unattributed() {
        return (Place::Unattributed, Some("unattributed"));
    }
    let Some(stack) = books.identity() else {
        return (Place::Unseen(books.account.key.detail), Some("its stack was not seen"));
    };
    match core.ledger.stacks().digest(stack) {
        Some(digest) => (Place::Site(site::site_id(domain.name(), api, digest)), None),
        None => (Place::Raw(stack), None),
    }
}

/// The heaviest stack that has a name, else the call site alone.
fn frames(core: &Core, books: &AccountBooks) -> Frames {
    if books.unattributed() {
        return Frames::default();
    }
    let stacks = core.ledger.stacks();
    let call_site = StackKey::kernel(&[books.account.key.call_site]);
    let heaviest = books.samples.first().map(|sample| sample.kernel);
    let named = books.stack.or(heaviest).filter(|stack| stacks.digest(*stack).is_some());
    stacks.frames(named.unwrap_or(call_site), FrameKind::Kernel)
}

fn samples(core: &Core, books: &AccountBooks) -> Vec<Sample> {
    let stacks = core.ledger.stacks();
    let sample = |sample: &crate::ledger::StackSample| Sample {
        weight_bytes: sample.weight,
        count: sample.count,
        frames: stacks.frames(sample.kernel, FrameKind::Kernel),
        user_frames: sample
            .user
            .map(|user| stacks.frames(user, FrameKind::Native))
            .unwrap_or_default(),
    };
    books.samples.iter().map(sample).collect()
}
