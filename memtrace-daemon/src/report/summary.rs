//! How the daemon fares, in a few lines: for `memtrace status` and `/api/v1/status`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::coverage::{layers_line, process_lines};
use super::escape::escape;
use super::text::{device_line, domain_lines, labelled, loss_lines, stopped};
use crate::human;
use crate::snapshot::{CoverageRow, Device, HostInfo, Layer, Loss, Snapshot, Terms};

/// Processes whose coverage is shown.
const PROCESSES: usize = 16;

/// What a person wants to know first.
#[derive(Clone, Debug, Serialize)]
pub struct Summary<'a> {
    /// Of memtrace.
    pub version: &'static str,
    /// When the snapshot was made.
    pub generated_at: Timestamp,
    /// When the probes were attached.
    pub attached_at: Timestamp,
    /// Since when tracing is stopped.
    pub stopped_at: Option<Timestamp>,
    /// The host.
    pub host: &'a HostInfo,
    /// Whether start-up attachment is done.
    pub ready: bool,
    /// Terms of conservation for the host, by domain name.
    pub domains: &'a BTreeMap<&'static str, Terms>,
    /// Losses by cause.
    pub loss: &'a BTreeMap<&'static str, Loss>,
    /// What is probed and what is not.
    pub coverage: &'a [CoverageRow],
    /// Names of the processes in it.
    #[serde(skip)]
    names: BTreeMap<u32, &'a str>,
    /// What was seen by which layer.
    pub layers: &'a [Layer],
    /// Kinds of memory that memtrace does not see.
    pub not_seen: &'a [String],
    /// Findings by verdict.
    pub findings: BTreeMap<&'static str, usize>,
    /// Processes on the books.
    pub processes: Count,
    /// Sites on the books.
    pub sites: usize,
    /// GPUs as NVML has them.
    pub devices: &'a [Device],
}

/// Processes on the books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Running.
    pub running: usize,
    /// Ended, and still to be seen.
    pub ended: usize,
}

impl<'a> Summary<'a> {
    /// Of a snapshot.
    #[must_use]
    pub fn of(snapshot: &'a Snapshot) -> Self {
        let mut findings = BTreeMap::new();
        for finding in &snapshot.findings {
            *findings.entry(finding.verdict.name()).or_default() += 1;
        }
        let ended = snapshot.processes.iter().filter(|process| process.ended).count();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            generated_at: snapshot.generated_at,
            attached_at: snapshot.attached_at,
            stopped_at: snapshot.stopped_at,
            host: &snapshot.host,
            ready: snapshot.runtime.ready,
            domains: &snapshot.domains,
            loss: &snapshot.loss,
            coverage: &snapshot.coverage,
            names: snapshot.names(),
            layers: &snapshot.layers,
            not_seen: &snapshot.not_seen,
            findings,
            processes: Count { running: snapshot.processes.len() - ended, ended },
            sites: snapshot.processes.iter().map(|process| process.sites.len()).sum(),
            devices: &snapshot.devices,
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self, width: Option<usize>) -> String {
        let mut lines = vec![];
        let mut say = |label, text: String| lines.extend(labelled(label, &text, width));
        let watched = self.generated_at.duration_since(self.attached_at).as_secs_f64();
        let ready = if self.ready { "ready" } else { "NOT READY: the probes are being attached" };
        say(
            "memtrace",
            format!(
                "{} on {} · Linux {} · {ready} · watching for {}",
                self.version,
                escape(&self.host.name),
                escape(&self.host.kernel),
                human::duration(watched),
            ),
        );
        if let Some(line) = stopped(self.stopped_at) {
            say("STOPPED", line);
        }
        let verdicts: Vec<_> =
            self.findings.iter().map(|(verdict, count)| format!("{count} {verdict}")).collect();
        say(
            "findings",
            if verdicts.is_empty() {
                "none".into()
            } else {
                format!("{}; `memtrace dump` shows them", verdicts.join(", "))
            },
        );
        let Count { running, ended } = self.processes;
        say(
            "books",
            format!(
                "{}, {} of ended ones, {}",
                human::counted(running as u64, "running process"),
                human::count(ended as u64),
                human::counted(self.sites as u64, "site"),
            ),
        );
        for device in self.devices {
            say("gpu", device_line(device));
        }
        let files = || self.coverage.iter().filter(|row| row.kind == "library");
        let attached = files().filter(|row| row.attached).count();
        let not = files().count() - attached;
        let mut coverage = format!("{} probed", human::counted(attached as u64, "file"));
        if not > 0 {
            coverage.push_str(&format!(", {not} not; a dump says which and why"));
        }
        say("coverage", coverage);
        if let Some(layers) = layers_line(self.layers) {
            say("seen by", layers);
        }
        lines.extend(loss_lines(self.loss, width));
        lines.push(String::new());
        lines.extend(domain_lines(self.domains, width));
        lines.push(String::new());
        let processes = process_lines(self.coverage, &self.names, PROCESSES, width);
        if !processes.is_empty() {
            lines.extend(processes);
            lines.push(String::new());
        }
        lines.join("\n")
    }
}
