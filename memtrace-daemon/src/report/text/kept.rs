//! What was kept at exit: memory that ended processes had not given back.
//!
//! Of user domains it is what they still held at their end, which the system then took back;
//! kernel memory is still there.

use std::io;

use super::{Page, called, more, stack};
use crate::report::human;
use crate::report::table::{Align, Table};
use crate::snapshot::{Process, Site, Snapshot, Terms};

/// (Process, domain) pairs that are shown.
const SHOWN: usize = 10;
/// Sites of each that are shown.
const SITES: usize = 3;

pub(super) fn write(snapshot: &Snapshot, page: &mut Page<'_>) -> io::Result<()> {
    let ended: Vec<&Process> = snapshot.processes.iter().filter(|process| process.ended).collect();
    let mut kept: Vec<(&Process, &'static str, &Terms)> = ended
        .iter()
        .flat_map(|process| {
            process.domains.iter().map(move |(name, domain)| (*process, *name, &domain.terms))
        })
        .filter(|(_, _, terms)| !terms.live.is_zero())
        .collect();
    if ended.is_empty() {
        return Ok(());
    }
    page.heading("KEPT AT EXIT")?;
    if kept.is_empty() {
        let who = if ended.len() == 1 { "the process that ended" } else { "processes that ended" };
        return page.line(&format!("  nothing: {who} gave back all that was followed"));
    }
    kept.sort_by_key(|(process, name, terms)| {
        (std::cmp::Reverse(terms.live.bytes), process.pid, *name)
    });
    let mut table = Table::new([
        ("PROCESS", Align::Flexible(14)),
        ("PID", Align::Right),
        ("DOMAIN", Align::Left),
        ("KEPT", Align::Right),
        ("BYTES", Align::Right),
        ("OBJECTS", Align::Right),
        ("", Align::Left),
    ]);
    for (process, name, terms) in kept.iter().take(SHOWN) {
        table.row([
            called(process),
            process.pid.to_string(),
            (*name).into(),
            human::bytes(terms.live.bytes),
            human::count(terms.live.bytes),
            human::count(terms.live.count),
            if *name == "kernel" { "still there" } else { "held at its end" }.into(),
        ]);
    }
    let mut lines = table.lines(page.width).into_iter();
    for head in lines.by_ref().take(1) {
        page.line(&head)?;
    }
    for (line, (process, name, _)) in lines.zip(&kept) {
        page.line(&line)?;
        sites(snapshot, process, name, page)?;
    }
    match kept.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        hidden => page.line(&more(hidden, "row")),
    }
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
        .filter(|site| site.domain == domain && (site.live_bytes > 0 || site.live_count > 0))
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
