//! One line a finding, worst first as the engine sorted them, then its stack and its evidence.

use std::io;

use super::{Page, called, indented, more, stack};
use crate::human;
use crate::report::escape::escape;
use crate::report::table::{Align, Table};
use crate::report::words;
use crate::snapshot::{Evidence, Finding, Process, Site, Snapshot};

/// More findings than this are one cause seen many times; the dump has them all.
const SHOWN: usize = 20;

pub(super) fn write(snapshot: &Snapshot, page: &mut Page<'_>) -> io::Result<()> {
    if snapshot.findings.is_empty() {
        page.heading("FINDINGS")?;
        return page.line("  none: nothing grows without bound so far");
    }
    page.line("")?;
    let mut table = Table::new([
        ("VERDICT", Align::Left),
        ("PROCESS", Align::Flexible(14)),
        ("PID", Align::Right),
        ("DOMAIN", Align::Left),
        ("LIVE", Align::Right),
        ("GROWTH", Align::Right),
        ("EXHAUSTED IN", Align::Flexible(12)),
        ("SURE", Align::Right),
    ]);
    let shown: Vec<_> =
        snapshot.findings.iter().take(SHOWN).map(|finding| Shown::of(finding, snapshot)).collect();
    for shown in &shown {
        table.row(shown.cells());
    }
    let mut lines = table.lines(page.width).into_iter();
    for head in lines.by_ref().take(1) {
        page.line(&head)?;
    }
    for (line, shown) in lines.zip(&shown) {
        page.line(&line)?;
        shown.details(page)?;
    }
    let hidden = snapshot.findings.len().saturating_sub(SHOWN);
    if hidden > 0 {
        page.line(&more(hidden, "finding"))?;
    }
    Ok(())
}

/// A finding and what of the snapshot belongs to it.
struct Shown<'a> {
    finding: &'a Finding,
    process: Option<&'a Process>,
    /// Rows of the site, for a finding about a site.
    rows: Vec<&'a Site>,
    live: u64,
    growth: Option<f64>,
}

impl<'a> Shown<'a> {
    fn of(finding: &'a Finding, snapshot: &'a Snapshot) -> Self {
        let concerned: Vec<&Process> = snapshot
            .processes
            .iter()
            .filter(|process| finding.processes.contains(&process.pid))
            .collect();
        let rows: Vec<&Site> = concerned
            .iter()
            .flat_map(|process| &process.sites)
            .filter(|site| site.domain == finding.domain)
            .filter(|site| finding.level != "site" || site.id == finding.site)
            .collect();
        let live = match finding.level {
            "site" => rows.iter().map(|site| site.live_bytes).sum(),
            "host" => snapshot.domains.get(finding.domain).map_or(0, |terms| terms.live.bytes),
            _ => concerned
                .iter()
                .filter_map(|process| process.domains.get(finding.domain))
                .map(|domain| domain.terms.live.bytes)
                .sum(),
        };
        let growth =
            rows.iter().filter_map(|site| site.growth_bytes_per_second).reduce(|a, b| a + b);
        // The running one, if a pid has been used twice.
        let process = concerned.iter().copied().min_by_key(|process| process.ended);
        let rows = if finding.level == "site" { rows } else { vec![] };
        Self { finding, process, rows, live, growth }
    }

    fn cells(&self) -> [String; 8] {
        let finding = self.finding;
        let name = match (finding.level, self.process) {
            ("host", _) => "the host".into(),
            ("service", _) | (_, None) => escape(&finding.comm).into_owned(),
            (_, Some(process)) => called(process),
        };
        [
            finding.verdict.name().to_uppercase(),
            name,
            words::pids(&finding.processes),
            finding.domain.into(),
            human::bytes(self.live),
            self.growth.map_or_else(|| "?".into(), human::growth),
            words::exhausted_in(
                finding.exhaustion.as_ref().map(|end| (end.seconds, end.of.as_str())),
                finding.verdict.name(),
            ),
            finding.confidence.map_or_else(|| "?".into(), |sure| format!("{sure:.2}")),
        ]
    }

    fn details(&self, page: &mut Page<'_>) -> io::Result<()> {
        match self.rows.first() {
            Some(site) => stack::write(site, 4, page)?,
            None => {
                if let Some(function) = &self.finding.function {
                    page.line(&format!("    {}", escape(function)))?;
                }
            }
        }
        let mut facts = vec![];
        facts.extend(self.kept());
        facts.extend(floors(&self.finding.evidence));
        facts.extend(self.finding.site.map(|site| format!("site {site:016x}")));
        if !facts.is_empty() {
            for line in indented(&facts.join("; "), 4, page.width) {
                page.line(&line)?;
            }
        }
        for reason in &self.finding.decided_by {
            for line in indented(&format!("· {}", escape(reason)), 4, page.width) {
                page.line(&line)?;
            }
        }
        Ok(())
    }

    /// How much of what was allocated is still there, for a finding about a site.
    fn kept(&self) -> Option<String> {
        let live: u64 = self.rows.iter().map(|site| site.live_count).sum();
        let all: u64 = self.rows.iter().map(|site| site.allocations).sum();
        let oldest = self.rows.iter().filter_map(|site| site.oldest_age_seconds).reduce(f64::max);
        words::kept(live, all, oldest)
    }
}

fn floors(evidence: &Evidence) -> Option<String> {
    let (first, last) = (evidence.floor_first_bytes?, evidence.floor_last_bytes?);
    let Evidence { windows, window_seconds, rising_windows, .. } = *evidence;
    Some(words::floors(first, last, windows, f64::from(window_seconds), rising_windows))
}
