//! Coverage as a reader sees it: the rows that attaching made, and what the books know beside: who
//! is left out, who allocates without a call that is seen, and what was seen by which layer.

use std::collections::BTreeMap;

use memtrace_common::{Domain, ProcessFlags};

use super::core::Core;
use crate::catalog;
use crate::ledger::ProcessBooks;
use crate::snapshot::{CoverageRow, Layer};
use crate::verdict::{no_device_calls, no_heap_calls};

/// All rows of coverage.
pub(super) fn rows(core: &Core) -> Vec<CoverageRow> {
    let mut rows = core.host.coverage.clone();
    let mut places: BTreeMap<u32, usize> = BTreeMap::new();
    for (place, row) in rows.iter().enumerate().filter(|(_, row)| row.kind == "process") {
        places.extend(row.pid.map(|pid| (pid, place)));
    }
    let mut running: Vec<&ProcessBooks> =
        core.ledger.processes().filter(|process| !process.ended()).collect();
    running.sort_unstable_by_key(|process| process.serial);
    for process in running {
        let flags = process.entry.map_or(0, |entry| entry.flags);
        let place = places.get(&process.pid()).copied();
        let row = place.and_then(|place| rows.get_mut(place));
        if flags & ProcessFlags::EXCLUDED != 0 {
            if let Some(row) = row {
                let reason = Some("left out by the configuration".to_owned());
                *row = CoverageRow {
                    attached: false,
                    attached_at: None,
                    by: None,
                    reason,
                    ..row.clone()
                };
            }
            continue;
        }
        let Some(silence) = silence(core, process) else { continue };
        match row {
            Some(row) => {
                let said = row.reason.take().map_or(String::new(), |reason| reason + "; ");
                row.reason = Some(said + &silence);
            }
            None => rows.push(CoverageRow::of_process(process.pid(), silence)),
        }
    }
    rows
}

/// What a process takes without any call that is seen.
fn silence(core: &Core, process: &ProcessBooks) -> Option<String> {
    let on = |domain: Domain| core.config.domains.contains(&domain);
    let flags = process.entry.map_or(0, |entry| entry.flags);
    if flags & (ProcessFlags::KERNEL_THREAD | ProcessFlags::SELF) != 0 || process.pid() == 0 {
        return None;
    }
    let mut said = Vec::new();
    // What it had before the books began is its baseline.
    let baseline = process.facts.device_bytes.unwrap_or(0);
    let device = core.host.device_bytes(process.pid()).unwrap_or(0).saturating_sub(baseline);
    let worth = core.config.verdict.min_bytes_of(Domain::Cuda).max(1);
    if on(Domain::Cuda) && device >= worth && device_calls(core, process) == 0 {
        said.push(no_device_calls(device));
    }
    if let Some(grown) = core.processes.silent(process.serial).filter(|_| on(Domain::Heap)) {
        said.push(no_heap_calls(grown));
    }
    (!said.is_empty()).then(|| said.join("; "))
}

/// Calls of a process that were about device memory.
fn device_calls(core: &Core, process: &ProcessBooks) -> u64 {
    let spaces = process.spaces.iter().filter_map(|id| core.ledger.space(*id));
    let totals = spaces.flat_map(|space| space.totals());
    let of_device = totals.filter(|(function, _)| {
        let domain = catalog::name_and_domain(*function).map(|(_, domain)| domain);
        matches!(domain, Some(Domain::Cuda | Domain::Managed))
    });
    of_device.map(|(_, totals)| totals.seen.count.saturating_add(totals.failures)).sum()
}

/// What was seen by which layer: each call under the name that it was booked by, the outermost.
pub(super) fn layers(core: &Core) -> Vec<Layer> {
    let mut layers: BTreeMap<(&'static str, &'static str, Domain), Layer> = BTreeMap::new();
    core.ledger.function_terms(&mut |function, terms, failures| {
        let Some(function) = catalog::library_function(function) else { return };
        let layer = function.library.family.layer();
        let row = layers.entry((layer, function.library.name, function.domain));
        let row = row.or_insert_with(|| Layer {
            layer,
            library: function.library.name,
            domain: function.domain.name(),
            ..Layer::default()
        });
        row.terms.add(terms);
        row.failures = row.failures.saturating_add(failures);
    });
    layers.into_values().collect()
}
