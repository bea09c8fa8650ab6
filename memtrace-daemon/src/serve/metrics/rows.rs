//! From a snapshot to the rows and labels that metrics have.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::counters::{Counters, Row, RowKey};
use super::members::Members;
use crate::report::escape::escape;
use crate::report::frames::{from_the_users, name};
use crate::snapshot::{Process, Site, Snapshot};

/// Processes that have a series of their own.
pub const PROCESSES: usize = 100;
/// A label longer than this (C++ templates) helps nobody and fills the database.
const LABEL_BYTES: usize = 200;

/// A text that is safe and short enough for a label. The encoder escapes what the format
/// needs; this is for whoever prints the label later.
#[must_use]
pub fn label(text: &str) -> String {
    let mut safe = escape(text).into_owned();
    if safe.len() > LABEL_BYTES {
        let cut = (0..=LABEL_BYTES).rev().find(|at| safe.is_char_boundary(*at));
        safe.truncate(cut.unwrap_or_default());
    }
    safe
}

/// Whether books are in totals and metrics: user books of an ended process are history,
/// kernel memory outlives its process.
fn counted(process: &Process, domain: &str) -> bool {
    !process.ended || domain == "kernel"
}

/// The rows of all sites that metrics count.
#[must_use]
pub fn sites(snapshot: &Snapshot) -> Vec<Row> {
    let mut rows = vec![];
    for process in &snapshot.processes {
        let comm: Arc<str> = label(&process.comm).into();
        for site in process.sites.iter().filter(|site| counted(process, site.domain)) {
            rows.push(Row {
                key: RowKey {
                    who: (process.pid, process.start_ns),
                    domain: site.domain,
                    api: site.api,
                    context: site.context,
                    site: site.id,
                },
                comm: comm.clone(),
                function: function(site),
                live: site.live_bytes,
                counters: Counters { allocated: site.allocated_bytes, freed: site.freed_bytes },
            });
        }
    }
    rows
}

/// The user's own frame; of kernel frames only the symbol.
fn function(site: &Site) -> Arc<str> {
    match from_the_users(&site.frames).first() {
        Some(frame) => match &frame.symbol {
            Some(symbol) => label(symbol).into(),
            None => label(&name(frame)).into(),
        },
        None => site.api.into(),
    }
}

/// The labels of a process in one domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessLabels {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Its cgroup; empty where unknown.
    pub cgroup: String,
}

impl ProcessLabels {
    /// Those of a process.
    #[must_use]
    pub fn of(process: &Process) -> Self {
        Self {
            pid: process.pid,
            comm: label(&process.comm),
            cgroup: label(process.cgroup.as_deref().unwrap_or_default()),
        }
    }
}

/// Live bytes of processes, by domain and labels; the rest under `None`.
pub type ProcessSeries = BTreeMap<(&'static str, Option<ProcessLabels>), u64>;

/// Live bytes of processes. A process is a member in all its domains or in none; its size is
/// its largest domain, as domains are never added, or what NVML counts.
pub fn processes(snapshot: &Snapshot, members: &mut Members<ProcessLabels>) -> ProcessSeries {
    let mut live = BTreeMap::<(ProcessLabels, &'static str), u64>::new();
    for process in &snapshot.processes {
        let labels = ProcessLabels::of(process);
        for (domain, terms) in &process.domains {
            if counted(process, domain) {
                let bytes = live.entry((labels.clone(), *domain)).or_default();
                *bytes = bytes.saturating_add(terms.terms.live.bytes);
            }
        }
    }
    let mut sizes = BTreeMap::<ProcessLabels, u64>::new();
    let of_devices = snapshot.processes.iter().filter_map(|process| {
        let device = process.device?;
        Some((ProcessLabels::of(process), device.nvml_bytes?))
    });
    let of_books = live.iter().map(|((labels, _), bytes)| (labels.clone(), *bytes));
    for (labels, bytes) in of_books.chain(of_devices) {
        let size = sizes.entry(labels).or_default();
        *size = (*size).max(bytes);
    }
    members.update(&sizes);
    let mut series: ProcessSeries =
        snapshot.domains.keys().map(|domain| ((*domain, None), 0)).collect();
    for ((labels, domain), bytes) in live {
        let member = members.contains(&labels).then_some(labels);
        let shown = series.entry((domain, member)).or_default();
        *shown = shown.saturating_add(bytes);
    }
    series
}
