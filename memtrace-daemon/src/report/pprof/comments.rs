//! What a reader of a profile should know beside its samples: whose it is, what its values are,
//! and what is not whole. `pprof -comments` prints them.

use std::collections::BTreeMap;

use crate::human;
use crate::report::filter::Filter;
use crate::report::text::{meaning, sampling, subject};
use crate::snapshot::{Site, Snapshot};

/// Rows of one kind that are listed; a profile is no place for hundreds.
const SHOWN: usize = 8;

pub(super) fn lines(snapshot: &Snapshot, filter: &Filter) -> Vec<String> {
    let host = &snapshot.host;
    let mut lines = vec![
        format!(
            "memtrace {} on {}, Linux {}, {}; attached at {}",
            env!("CARGO_PKG_VERSION"),
            host.name,
            host.kernel,
            host.arch,
            snapshot.attached_at,
        ),
        "live: of running processes now, of ended ones what they held at their end; alloc: since \
         attach; domains (label `domain`) are never to be added"
            .into(),
    ];
    if !filter.is_empty() {
        lines.push(format!("only {filter}"));
    }
    for (cause, loss) in snapshot.loss.iter().filter(|(_, loss)| loss.count > 0) {
        let bytes = loss.bytes.map(|bytes| format!(", {}", human::counted(bytes, "byte")));
        let (times, bytes) = (human::counted(loss.count, "time"), bytes.unwrap_or_default());
        lines.push(format!("lost: {cause}, {times}{bytes}: {}", meaning(cause)));
    }
    lines.extend(without_stack(snapshot));
    lines.extend(incomplete(snapshot));
    lines.push(format!("sampling: {}", sampling(snapshot)));
    let not: Vec<_> = snapshot.coverage.iter().filter(|row| !row.attached).collect();
    lines.extend(not.iter().take(SHOWN).map(|row| {
        let reason = row.reason.as_deref().unwrap_or("for a reason that is not known");
        format!("not covered: {}: {reason}", subject(row))
    }));
    if not.len() > SHOWN {
        lines.push(format!("not covered: {} more", not.len() - SHOWN));
    }
    lines.extend(snapshot.not_seen.iter().map(|kind| format!("not seen: {kind}")));
    lines
}

fn sites(snapshot: &Snapshot) -> impl Iterator<Item = &Site> {
    snapshot.processes.iter().flat_map(|process| &process.sites)
}

/// Live bytes without a stack, by domain.
fn without_stack(snapshot: &Snapshot) -> impl Iterator<Item = String> {
    let mut domains = BTreeMap::<&str, u64>::new();
    for site in sites(snapshot).filter(|site| site.frames.is_empty() && site.live_bytes > 0) {
        let sum = domains.entry(site.domain).or_default();
        *sum = sum.saturating_add(site.live_bytes);
    }
    domains.into_iter().map(|(domain, bytes)| {
        format!("without a stack: {} of {domain}", human::counted(bytes, "byte"))
    })
}

/// Sites whose stacks are not whole, by the reason.
fn incomplete(snapshot: &Snapshot) -> impl Iterator<Item = String> {
    let mut reasons = BTreeMap::<&str, u64>::new();
    for stack in sites(snapshot).filter_map(|site| site.stack.as_ref()) {
        if let Some(reason) = stack.incomplete.as_deref() {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    reasons.into_iter().take(SHOWN).map(|(reason, count)| {
        format!("stack incomplete: {}: {reason}", human::counted(count, "site"))
    })
}
