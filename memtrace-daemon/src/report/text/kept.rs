//! What was kept at exit: memory that ended processes had not given back.
//!
//! Of user domains it is what they still held at their end, which the system then took back;
//! kernel memory is still there.

use std::io;

use memtrace_common::Amount;

use super::{Page, called, more, stack};
use crate::human;
use crate::report::table::{Align, Table};
use crate::snapshot::{OWN_PROBES, Process, Site, Snapshot};

/// (Process, domain) pairs that are shown.
const SHOWN: usize = 10;
/// Sites of each that are shown.
const SITES: usize = 3;
/// Rows whose sites are shown whatever their size; below, only those that are worth it.
const DETAILED: usize = 3;
/// Kernel memory below this is what any end of a process leaves behind for a while, bytes.
const WORTH_A_STACK: u64 = 4_096;

pub(super) fn write(snapshot: &Snapshot, page: &mut Page<'_>) -> io::Result<()> {
    let ended: Vec<&Process> = snapshot.processes.iter().filter(|process| process.ended).collect();
    let mut kept: Vec<(&Process, &'static str, Amount)> = ended
        .iter()
        .flat_map(|process| {
            process.domains.keys().map(move |name| (*process, *name, held(process, name)))
        })
        .filter(|(_, _, held)| !held.is_zero())
        .collect();
    if ended.is_empty() {
        return Ok(());
    }
    page.heading("KEPT AT EXIT")?;
    if kept.is_empty() {
        let who = if ended.len() == 1 { "the process that ended" } else { "processes that ended" };
        page.line(&format!("  nothing: {who} gave back all that was followed"))?;
        return own_cost(&ended, page);
    }
    kept.sort_by_key(|(process, name, held)| (std::cmp::Reverse(held.bytes), process.pid, *name));
    let mut table = Table::new([
        ("PROCESS", Align::Flexible(14)),
        ("PID", Align::Right),
        ("DOMAIN", Align::Left),
        ("KEPT", Align::Right),
        ("BYTES", Align::Right),
        ("OBJECTS", Align::Right),
        ("", Align::Left),
    ]);
    for (process, name, held) in kept.iter().take(SHOWN) {
        table.row([
            called(process),
            process.pid.to_string(),
            (*name).into(),
            human::bytes(held.bytes),
            human::count(held.bytes),
            human::count(held.count),
            if *name == "kernel" { "still there" } else { "held at its end" }.into(),
        ]);
    }
    let mut lines = table.lines(page.width).into_iter();
    for head in lines.by_ref().take(1) {
        page.line(&head)?;
    }
    for (index, (line, (process, name, held))) in lines.zip(&kept).enumerate() {
        page.line(&line)?;
        if index < DETAILED || *name != "kernel" || held.bytes >= WORTH_A_STACK {
            sites(snapshot, process, name, page)?;
        }
    }
    match kept.len().saturating_sub(SHOWN) {
        0 => {}
        hidden => page.line(&more(hidden, "row"))?,
    }
    own_cost(&ended, page)
}

/// What a process held at its end, or what is still there, by its sites; without what
/// tracing itself costs.
fn held(process: &Process, domain: &str) -> Amount {
    let sites = process.sites.iter().filter(|site| site.domain == domain && !is_own(site));
    sum(sites)
}

/// Says what the probes cost the processes that ended, if anything of it is left.
fn own_cost(ended: &[&Process], page: &mut Page<'_>) -> io::Result<()> {
    let own = sum(ended.iter().flat_map(|process| &process.sites).filter(|site| is_own(site)));
    if own.is_zero() {
        return Ok(());
    }
    let (bytes, objects) = (human::bytes(own.bytes), human::counted(own.count, "object"));
    page.line(&format!("  apart from {bytes} in {objects} {OWN_PROBES}"))
}

fn is_own(site: &Site) -> bool {
    site.note == Some(OWN_PROBES)
}

fn sum<'a>(sites: impl Iterator<Item = &'a Site>) -> Amount {
    sites.fold(Amount::default(), |sum, site| {
        sum.saturating_add(Amount { count: site.live_count, bytes: site.live_bytes })
    })
}

fn sites(
    snapshot: &Snapshot,
    process: &Process,
    domain: &str,
    page: &mut Page<'_>,
) -> io::Result<()> {
    let mut rows: Vec<&Site> = process
        .sites
        .iter()
        .filter(|site| site.domain == domain && !is_own(site) && site.live_count > 0)
        .collect();
    rows.sort_by_key(|site| std::cmp::Reverse((site.live_bytes, site.live_count)));
    for site in rows.iter().take(SITES) {
        let id = site.id.map_or_else(String::new, |id| format!("  site {id:016x}"));
        let context = match site.context {
            "interrupt" => " in an interrupt",
            "worker" => " in a kernel thread",
            _ => "",
        };
        // A stack that stands above under its finding is not repeated.
        let found = snapshot.findings.iter().any(|finding| {
            site.id.is_some()
                && finding.site == site.id
                && finding.domain == domain
                && finding.processes.contains(&process.pid)
        });
        page.line(&format!(
            "    {} in {} by {}{context}{id}{}",
            human::bytes(site.live_bytes),
            human::counted(site.live_count, "object"),
            site.api,
            if found { ", stack above" } else { "" },
        ))?;
        if !found {
            stack::write(site, 6, page)?;
        }
    }
    match rows.len().saturating_sub(SITES) {
        0 => Ok(()),
        hidden => page.line(&format!("    {}", more(hidden, "site"))),
    }
}
