//! Rows of coverage: what a person is told about each file and process that is probed or is not.

use jiff::Timestamp;
use memtrace_common::FunctionId;

use super::inspect::Inspection;
use super::libraries::{Found, NotInspected};
use crate::catalog::{booked, library_function};
use crate::snapshot::CoverageRow;

/// A row for a file, before it is known whether it is attached.
pub(super) fn row(found: &Found, inspection: &Inspection) -> CoverageRow {
    let library = inspection.library.map_or_else(|| libraries(inspection), |l| Some(l.name.into()));
    CoverageRow {
        kind: "library",
        path: path(found),
        build_id: inspection.description.build_id.clone(),
        file: Some(inspection.identity.display()),
        pid: found.pid,
        // Of a file that a person named, only libraries that it has something of are missing
        // anything.
        missing: missing(inspection, library.as_deref().unwrap_or_default()),
        library,
        ..empty()
    }
}

/// The row once probes are on it.
pub(super) fn attached(
    row: CoverageRow,
    now: Timestamp,
    by: &'static str,
    functions: &[FunctionId],
) -> CoverageRow {
    let functions = functions.iter().filter_map(|id| library_function(*id));
    CoverageRow {
        attached: true,
        attached_at: Some(now),
        by: Some(by),
        functions: functions.map(|function| function.symbol.to_owned()).collect(),
        ..row
    }
}

/// The row of a file that is not attached, or not any more.
pub(super) fn refused(row: CoverageRow, reason: String) -> CoverageRow {
    CoverageRow {
        attached: false,
        attached_at: None,
        by: None,
        functions: Vec::new(),
        reason: Some(reason),
        ..row
    }
}

/// The row of a mapped file that could not be looked at.
pub(super) fn unread(found: &Found, library: &str, why: &NotInspected) -> CoverageRow {
    CoverageRow {
        library: Some(library.to_owned()),
        path: path(found),
        pid: found.pid,
        reason: Some(why.to_string()),
        ..empty()
    }
}

/// The row of a process that could not be looked into.
#[must_use]
pub fn process(pid: u32, reason: String) -> CoverageRow {
    CoverageRow { kind: "process", pid: Some(pid), reason: Some(reason), ..empty() }
}

fn path(found: &Found) -> Option<String> {
    (!found.path.is_empty()).then(|| text(&found.path))
}

/// Bytes as text; what is not UTF-8 is escaped.
fn text(bytes: &[u8]) -> String {
    bytes.utf8_chunks().fold(String::new(), |mut text, chunk| {
        text.push_str(chunk.valid());
        text + &chunk.invalid().escape_ascii().to_string()
    })
}

/// Names of the libraries whose functions were found, by comma.
fn libraries(inspection: &Inspection) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    let points = inspection.points.points.iter().map(|(id, _)| *id);
    let found = points.chain(inspection.places.places.iter().map(|place| place.function));
    for function in found.filter_map(library_function) {
        if !names.contains(&function.library.name) {
            names.push(function.library.name);
        }
    }
    Some(names.join(",")).filter(|names| !names.is_empty())
}

fn missing(inspection: &Inspection, libraries: &str) -> Vec<String> {
    let (points, places) = (&inspection.points.missing, &inspection.places.missing);
    booked()
        .filter(|one| points.contains(&one.symbol) || places.contains(&one.symbol))
        .filter(|function| libraries.split(',').any(|name| name == function.library.name))
        .map(|function| function.symbol.to_owned())
        .collect()
}

fn empty() -> CoverageRow {
    CoverageRow {
        kind: "library",
        library: None,
        path: None,
        build_id: None,
        file: None,
        pid: None,
        attached: false,
        attached_at: None,
        by: None,
        functions: Vec::new(),
        missing: Vec::new(),
        reason: None,
    }
}
