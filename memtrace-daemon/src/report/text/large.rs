//! What is merely large: sites of running processes by live bytes that no finding is about.

use std::collections::BTreeSet;
use std::io;

use super::{Page, called, stack};
use crate::human;
use crate::report::frames::headline;
use crate::report::table::{Align, Table};
use crate::snapshot::{Process, Site, Snapshot};

/// Enough to see what a host is used for.
const SHOWN: usize = 10;
/// Up to so many sites have their stacks: then the dump is of few, and asks for them.
const WITH_STACKS: usize = 3;

pub(super) fn write(snapshot: &Snapshot, page: &mut Page<'_>) -> io::Result<()> {
    let found: BTreeSet<(u32, Option<u64>, &str)> = snapshot
        .findings
        .iter()
        .filter(|finding| finding.level == "site")
        .flat_map(|finding| {
            finding.processes.iter().map(|pid| (*pid, finding.site, finding.domain))
        })
        .collect();
    let mut rows: Vec<(&Process, &Site)> = snapshot
        .processes
        .iter()
        .filter(|process| !process.ended)
        .flat_map(|process| process.sites.iter().map(move |site| (process, site)))
        .filter(|(_, site)| site.live_bytes > 0)
        .filter(|(process, site)| !found.contains(&(process.pid, site.id, site.domain)))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    rows.sort_by_key(|(_, site)| std::cmp::Reverse(site.live_bytes));
    page.heading("LARGEST, AND NOT A FINDING")?;
    let mut table = Table::new([
        ("PROCESS", Align::Flexible(14)),
        ("PID", Align::Right),
        ("DOMAIN", Align::Left),
        ("LIVE", Align::Right),
        ("OBJECTS", Align::Right),
        ("GROWTH", Align::Right),
        ("VERDICT", Align::Left),
        ("WHERE", Align::Flexible(20)),
    ]);
    for (process, site) in rows.iter().take(SHOWN) {
        table.row([
            called(process),
            process.pid.to_string(),
            site.domain.into(),
            human::bytes(site.live_bytes),
            human::count(site.live_count),
            site.growth_bytes_per_second.map_or_else(|| "?".into(), human::growth),
            site.verdict.name().into(),
            headline(site),
        ]);
    }
    let mut lines = table.lines(page.width).into_iter();
    for head in lines.by_ref().take(1) {
        page.line(&head)?;
    }
    for (line, (_, site)) in lines.zip(&rows) {
        page.line(&line)?;
        if rows.len() <= WITH_STACKS && !site.frames.is_empty() {
            stack::write(site, 4, page)?;
        }
    }
    match rows.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        hidden => page.line(&super::more(hidden, "site")),
    }
}
