//! Rows of coverage: what a person is told about each file and process that is probed or is not.

use jiff::Timestamp;
use memtrace_common::{Family, FunctionId};

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
        layers: layers(inspection),
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

/// What is known of a process' calls, put together from the rows of its files.
#[derive(Debug, Default)]
pub(super) struct Reach {
    libraries: Vec<String>,
    layers: Vec<String>,
    since: Option<Timestamp>,
    by: Option<&'static str>,
    any: bool,
    said: Vec<String>,
}

impl Reach {
    /// A file of it is probed, for this process since then.
    pub(super) fn add(&mut self, row: &CoverageRow, since: Timestamp) {
        self.any = true;
        let new = |all: &mut Vec<String>, more: &[String]| {
            all.extend(more.iter().filter(|one| !all.contains(one)).cloned().collect::<Vec<_>>());
        };
        new(&mut self.libraries, row.library.as_slice());
        new(&mut self.layers, &row.layers);
        self.since = Some(self.since.map_or(since, |earlier| earlier.min(since)));
        self.by = self.by.or(row.by);
    }

    /// A file of it is not probed.
    pub(super) fn without(&mut self, row: &CoverageRow) {
        self.any = true;
        let reason = row.reason.as_deref().unwrap_or("not probed");
        self.say(format!("{}: {reason}", file_name(row)));
    }

    pub(super) fn say(&mut self, words: String) {
        self.said.push(words);
    }

    /// Whether it has no file that there is something to say of.
    pub(super) const fn is_empty(&self) -> bool {
        !self.any
    }

    /// Whether the driver's calls are seen, and there is no file of a runtime.
    pub(super) fn has_driver_alone(&self) -> bool {
        self.layers == ["driver"] && self.said.is_empty()
    }

    /// The row of the process.
    pub(super) fn row(self, pid: u32) -> CoverageRow {
        let Self { libraries, layers, since, by, any: _, said } = self;
        CoverageRow {
            kind: "process",
            pid: Some(pid),
            attached: since.is_some(),
            attached_at: since,
            by,
            library: (!libraries.is_empty()).then(|| libraries.join(",")),
            layers,
            reason: (!said.is_empty()).then(|| said.join("; ")),
            ..empty()
        }
    }
}

/// What a file is called in a sentence.
pub(super) fn file_name(row: &CoverageRow) -> String {
    let name = row.path.as_deref().and_then(|path| path.rsplit('/').next());
    name.or(row.library.as_deref()).unwrap_or("a library").to_owned()
}

/// The row of a process that could not be looked into.
#[must_use]
pub fn process(pid: u32, reason: String) -> CoverageRow {
    CoverageRow::of_process(pid, reason)
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

/// Which layers its functions are of.
fn layers(inspection: &Inspection) -> Vec<String> {
    let own = inspection.points.points.iter().filter_map(|(id, _)| library_function(*id));
    let all = inspection.library.into_iter().chain(own.map(|function| function.library));
    let mut layers: Vec<String> = Vec::new();
    for library in all {
        let static_runtime = inspection.searched && library.family == Family::CudaRuntime;
        let layer = if static_runtime { "static" } else { library.family.layer() };
        if !layers.iter().any(|known| known == layer) {
            layers.push(layer.to_owned());
        }
    }
    layers
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
        layers: Vec::new(),
        reason: None,
    }
}
