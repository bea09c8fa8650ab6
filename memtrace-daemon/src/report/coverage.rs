//! Coverage for people: a table of the processes that run GPU libraries, and what was seen by
//! which layer.

use std::collections::BTreeMap;

use super::escape::escape;
use super::table::{Align, Table};
use crate::human;
use crate::snapshot::{CoverageRow, Layer};

/// A line for each process that runs a GPU library or has a GPU open, at most `most`, the least
/// seen first; nothing where there is none. `names` has the processes' names.
#[must_use]
pub fn process_lines(
    rows: &[CoverageRow],
    names: &BTreeMap<u32, &str>,
    most: usize,
    width: Option<usize>,
) -> Vec<String> {
    let mut processes: Vec<&CoverageRow> =
        rows.iter().filter(|row| row.kind == "process").collect();
    if processes.is_empty() {
        return vec![];
    }
    processes.sort_by_key(|row| {
        (["not", "partly", "probed"].iter().position(|s| *s == row.state()), row.pid)
    });
    let mut table = Table::new([
        ("PID", Align::Right),
        ("PROCESS", Align::Flexible(8)),
        ("PROBED", Align::Left),
        ("BY", Align::Left),
        ("SINCE", Align::Left),
        ("WHAT IS MISSING", Align::Flexible(20)),
    ]);
    for row in processes.iter().take(most) {
        let name = row.pid.and_then(|pid| names.get(&pid)).copied().unwrap_or_default();
        let since = row.attached_at.map(|at| at.strftime("%H:%M:%S UTC").to_string());
        table.row([
            row.pid.map(|pid| pid.to_string()).unwrap_or_default(),
            escape(name).into_owned(),
            row.state().to_owned(),
            row.layers.join("+"),
            since.unwrap_or_default(),
            row.reason.as_deref().map(escape).unwrap_or_default().into_owned(),
        ]);
    }
    let mut lines = table.lines(width);
    if let Some(hidden) = processes.len().checked_sub(most).filter(|hidden| *hidden > 0) {
        lines.push(format!("… and {}", human::counted(hidden as u64, "more process")));
    }
    lines
}

/// What was seen by which layer, in one sentence; `None` where nothing was.
#[must_use]
pub fn layers_line(layers: &[Layer]) -> Option<String> {
    let said: Vec<String> = layers
        .iter()
        .filter(|layer| layer.terms.seen.count > 0 || layer.failures > 0)
        .map(|layer| {
            let calls = human::counted(layer.terms.seen.count, "call");
            let live = human::bytes(layer.terms.live.bytes);
            format!("{} ({}) {}: {calls}, {live} live", layer.layer, layer.library, layer.domain)
        })
        .collect();
    (!said.is_empty()).then(|| said.join("; "))
}
