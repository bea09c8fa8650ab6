//! What could make the report wrong, a line each: loss, sampling, coverage, what is not seen.

use std::collections::BTreeMap;
use std::io;

use memtrace_common::LossCause;

use super::{Page, called, labelled, more};
use crate::human;
use crate::report::coverage::{layers_line, process_lines};
use crate::report::escape::escape;
use crate::snapshot::{
    CoverageRow, Loss, Pool, Process, ProcessTerms, RECORDING_GAP, STOPPED, Snapshot,
};

/// Rows of coverage that are not covered and shown.
const SHOWN: usize = 8;

pub(super) fn write(snapshot: &Snapshot, page: &mut Page<'_>) -> io::Result<()> {
    let causes = snapshot.loss.iter().map(|(cause, loss)| (*cause, *loss)).collect();
    for line in loss_lines(&causes, page.width) {
        page.line(&line)?;
    }
    if let Some(calls) = odd_calls(snapshot) {
        page.labelled("calls", &calls)?;
    }
    pools(&snapshot.processes, page)?;
    page.labelled("sampling", &sampling(snapshot))?;
    coverage(&snapshot.coverage, page)?;
    if let Some(layers) = layers_line(&snapshot.layers) {
        page.labelled("seen by", &layers)?;
    }
    let processes = process_lines(&snapshot.coverage, &snapshot.names(), SHOWN, page.width);
    for line in processes {
        page.line(&line)?;
    }
    if !snapshot.not_seen.is_empty() {
        let kinds: Vec<_> = snapshot.not_seen.iter().map(|kind| escape(kind)).collect();
        page.labelled("not seen", &kinds.join("; "))?;
    }
    Ok(())
}

/// What was lost, one line a cause; or one line that says that nothing was.
#[must_use]
pub fn loss_lines(loss: &BTreeMap<&str, Loss>, width: Option<usize>) -> Vec<String> {
    let mut lines = vec![];
    for (cause, loss) in loss.iter().filter(|(_, loss)| loss.count > 0) {
        let bytes = loss.bytes.map(|bytes| format!(", {}", human::bytes(bytes)));
        let text = format!(
            "{cause}: {}{}: {}",
            human::counted(loss.count, "time"),
            bytes.unwrap_or_default(),
            meaning(cause)
        );
        lines.extend(labelled(if lines.is_empty() { "lost" } else { "" }, &text, width));
    }
    if lines.is_empty() {
        lines = labelled("lost", "nothing", width);
    }
    lines
}

/// What a cause did to the report.
pub(in crate::report) fn meaning(cause: &str) -> &'static str {
    match LossCause::ALL.into_iter().find(|known| known.name() == cause) {
        Some(LossCause::RingFull) => "totals stayed exact, some stacks are unattributed",
        Some(LossCause::LiveMapFull) => {
            "these allocations were seen but not followed; larger [maps] follow them"
        }
        Some(LossCause::AccountMapFull) => "booked as unattributed; more [maps] accounts name them",
        Some(LossCause::InflightFull) => "calls nested too deep, not booked",
        Some(LossCause::MissedReturn) => "calls that never returned (longjmp, end of a thread)",
        Some(LossCause::Recursion) => "kernel events inside our own handler, not booked",
        Some(LossCause::UnreadablePointer) => "arguments in memory that could not be read",
        Some(LossCause::Implausible) => "sizes that cannot be true, not booked",
        Some(LossCause::UnknownProcess) => "events of processes that could not be named",
        Some(LossCause::StackBudget) => "stacks taken the cheap way, possibly incomplete",
        Some(LossCause::RateCeiling) => "probes taken away for a while, too frequent",
        None if cause == RECORDING_GAP => {
            "records that could not be written in time; all verdicts are less sure for it"
        }
        None if cause == STOPPED => {
            "tracing was stopped: what came and went meanwhile is on no books"
        }
        None => "see the documentation",
    }
}

/// Calls that moved no bytes, and that a reader may wonder about; `None` if there were none.
fn odd_calls(snapshot: &Snapshot) -> Option<String> {
    let mut sums = [0u64; 5];
    for process in &snapshot.processes {
        for domain in process.domains.values() {
            let ProcessTerms {
                terms: _,
                failures,
                failed_frees,
                unknown_frees,
                empty,
                implausible,
            } = &**domain;
            let counts = [failures, failed_frees, unknown_frees, empty, implausible];
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum = sum.saturating_add(*count);
            }
        }
    }
    let said: Vec<String> = sums
        .into_iter()
        .zip([
            "failed to allocate",
            "failed to free",
            "freed what is not on the books (it was there before them)",
            "gave a null pointer",
            "gave a size that cannot be true",
        ])
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{} {what}", human::count(count)))
        .collect();
    (!said.is_empty()).then(|| said.join(", "))
}

/// What PyTorch's pools hold beside their tensors, a line each.
fn pools(processes: &[Process], page: &mut Page<'_>) -> io::Result<()> {
    let of = |process: &'_ Process| Some((called(process), process.pid, process.pool?));
    let mut pools: Vec<_> = processes.iter().filter_map(of).collect();
    pools.sort_by_key(|(_, _, pool)| std::cmp::Reverse(pool.cached_bytes));
    for (index, (name, pid, pool)) in pools.iter().take(SHOWN).enumerate() {
        let Pool { held_bytes, tensor_bytes, tensors, most_bytes, cached_bytes, whole } = pool;
        let from_before = if *whole { "" } else { " or belong to tensors from before" };
        let text = format!(
            "{name} pid {pid}: the pool holds {}, {} {} (at most {} so far); {} are cached: \
             torch.cuda.empty_cache() gives them back, but for what is in parts of segments\
             {from_before}",
            human::bytes(*held_bytes),
            human::counted(*tensors, "live tensor"),
            human::bytes(*tensor_bytes),
            human::bytes(*most_bytes),
            human::bytes(*cached_bytes),
        );
        page.labelled(if index == 0 { "pytorch" } else { "" }, &text)?;
    }
    match pools.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        hidden => page.labelled("", &more(hidden, "pool")),
    }
}

/// Whether every allocation is followed, and every stack taken.
pub(in crate::report) fn sampling(snapshot: &Snapshot) -> String {
    let sites = || snapshot.processes.iter().flat_map(|process| &process.sites);
    let followed = sites().filter(|site| site.sampling > 1.0).count();
    let factor = sites().map(|site| site.sampling).fold(1.0, f64::max);
    let stacks = sites().filter(|site| site.frames_sampled).count();
    let mut said = match followed {
        0 => "none, every allocation is followed".to_owned(),
        n => format!(
            "{}, up to 1 allocation in {factor:.0} is followed",
            human::counted(n as u64, "site")
        ),
    };
    if stacks > 0 {
        let sites = human::counted(stacks as u64, "site");
        said.push_str(&format!("; kernel stacks of {sites} are samples (--exact walks every one)"));
    }
    said
}

fn coverage(rows: &[CoverageRow], page: &mut Page<'_>) -> io::Result<()> {
    let covered: Vec<String> = rows
        .iter()
        .filter(|row| row.attached && row.kind == "library")
        .map(|row| {
            let missing = match row.missing.len() {
                0 => String::new(),
                n => format!(", {n} not exported"),
            };
            let functions = human::counted(row.functions.len() as u64, "function");
            format!("{} ({functions}{missing})", subject(row))
        })
        .collect();
    let said = match covered.as_slice() {
        [] => "no library is probed: no process maps one that the catalog knows".to_owned(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    };
    page.labelled("covered", &said)?;
    // Processes have a table of their own.
    let not: Vec<&CoverageRow> =
        rows.iter().filter(|row| !row.attached && row.kind == "library").collect();
    for (index, row) in not.iter().take(SHOWN).enumerate() {
        let reason = row.reason.as_deref().unwrap_or("for a reason that is not known");
        page.labelled(
            if index == 0 { "not covered" } else { "" },
            &format!("{}: {}", subject(row), escape(reason)),
        )?;
    }
    match not.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        hidden => page.labelled("", &more(hidden, "row")),
    }
}

/// What a row is about: the library by its path, or the process.
pub(in crate::report) fn subject(row: &CoverageRow) -> String {
    let name = row.path.as_deref().or(row.library.as_deref());
    let name = name.map(|name| escape(name).into_owned());
    match (name, row.pid) {
        (Some(name), Some(pid)) if !row.attached => format!("{name} in pid {pid}"),
        (Some(name), _) => name,
        (None, Some(pid)) => format!("pid {pid}"),
        (None, None) => row.kind.to_owned(),
    }
}
