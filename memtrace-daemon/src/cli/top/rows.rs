//! Rows of the table: the dump's findings, worst first as the daemon sorted them, then its
//! sites by live bytes. Pure. All texts are escaped here, once, before anything is drawn.

use std::cmp::Reverse;
use std::collections::HashSet;

use super::wire::{Dump, Finding, Frame, Process, Site, from_the_users};
use crate::report::escape::escape;
use crate::report::{frames, words};

/// What makes a row the same row in the next dump. A site that becomes a finding stays itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Key {
    level: String,
    /// Of the first process, and its start: a pid is used again.
    process: (u32, u64),
    comm: String,
    domain: String,
    site: Option<String>,
    /// What tells sites without an id apart: the context, and the function's name.
    part: String,
}

/// Where in the dump a row is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// Which of the findings.
    Finding(usize),
    /// Which process, and which of its sites.
    Site(usize, usize),
}

/// A row.
#[derive(Clone, Debug)]
pub struct Row {
    pub key: Key,
    pub from: From,
    pub verdict: String,
    pub process: String,
    pub pids: String,
    pub domain: String,
    pub live_bytes: u64,
    /// Bytes a second.
    pub growth: Option<f64>,
    /// When memory will be gone, and which.
    pub exhausted_in: String,
    pub sure: String,
    /// The user's own function, and where it is.
    pub function: String,
}

impl Row {
    pub fn is_finding(&self) -> bool {
        matches!(self.from, From::Finding(_))
    }
}

/// What of a dump a finding is about.
pub struct Concerned<'a> {
    /// The running one, if a pid has been used twice.
    pub process: Option<&'a Process>,
    /// All of them.
    pub processes: Vec<&'a Process>,
    /// Rows of its site, at level `site`; else all rows of its domain.
    pub sites: Vec<&'a Site>,
}

impl<'a> Concerned<'a> {
    pub fn by(finding: &Finding, dump: &'a Dump) -> Self {
        let processes: Vec<&Process> =
            dump.processes.iter().filter(|one| finding.processes.contains(&one.pid)).collect();
        let sites = processes
            .iter()
            .flat_map(|process| &process.sites)
            .filter(|site| site.domain == finding.domain)
            .filter(|site| finding.level != "site" || site.id == finding.site)
            .collect();
        let process = processes.iter().copied().min_by_key(|process| process.ended);
        Self { process, processes, sites }
    }
}

/// All rows of a dump that hold memory, as found.
pub fn of(dump: &Dump) -> Vec<Row> {
    let mut rows: Vec<Row> = dump
        .findings
        .iter()
        .enumerate()
        .map(|(index, finding)| of_finding(finding, index, dump))
        .collect();
    let found: HashSet<Key> = rows.iter().map(|row| row.key.clone()).collect();
    let mut sites: Vec<Row> = vec![];
    for (index, process) in dump.processes.iter().enumerate() {
        let held = process.sites.iter().enumerate();
        let held = held.filter(|(_, site)| site.live_bytes > 0 || site.live_count > 0);
        sites.extend(held.map(|(number, site)| of_site(process, site, From::Site(index, number))));
    }
    sites.retain(|row| !found.contains(&row.key));
    sites.sort_by_key(|row| Reverse(row.live_bytes));
    rows.extend(sites);
    rows
}

fn of_finding(finding: &Finding, index: usize, dump: &Dump) -> Row {
    let Concerned { process, processes, sites } = Concerned::by(finding, dump);
    let host = finding.level == "host";
    let live_bytes = match finding.level.as_str() {
        "site" => sites.iter().map(|site| site.live_bytes).sum(),
        "host" => dump.domains.get(&finding.domain).map_or(0, |terms| terms.live.bytes),
        _ => processes
            .iter()
            .filter_map(|process| process.domains.get(&finding.domain))
            .map(|terms| terms.live.bytes)
            .sum(),
    };
    let site = sites.first().filter(|_| finding.level == "site");
    let key = match (process, site) {
        (Some(process), Some(site)) => site_key(process, site),
        _ => Key {
            level: finding.level.clone(),
            process: process.map_or((0, 0), |process| (process.pid, process.start_ns)),
            comm: finding.comm.clone(),
            domain: finding.domain.clone(),
            site: finding.site.clone(),
            part: String::new(),
        },
    };
    Row {
        key,
        from: From::Finding(index),
        verdict: escape(&finding.verdict).to_uppercase(),
        process: match process {
            _ if host => "the host".into(),
            Some(process) if finding.level != "service" => called(process),
            _ => escape(&finding.comm).into_owned(),
        },
        pids: words::pids(&finding.processes),
        domain: escape(&finding.domain).into_owned(),
        live_bytes,
        growth: sites.iter().filter_map(|site| site.growth_bytes_per_second).reduce(|a, b| a + b),
        exhausted_in: words::exhausted_in(
            finding.exhaustion.as_ref().map(|end| (end.seconds, end.of.as_str())),
            &finding.verdict,
        ),
        sure: finding.confidence.map_or_else(|| "?".into(), |sure| format!("{sure:.2}")),
        function: match (site, &finding.function) {
            (Some(site), _) => function(site),
            (None, Some(function)) => escape(function).into_owned(),
            (None, None) => String::new(),
        },
    }
}

fn of_site(process: &Process, site: &Site, from: From) -> Row {
    Row {
        key: site_key(process, site),
        from,
        verdict: escape(&site.verdict).into_owned(),
        process: called(process),
        pids: if process.pid == 0 { "–".into() } else { process.pid.to_string() },
        domain: escape(&site.domain).into_owned(),
        live_bytes: site.live_bytes,
        growth: site.growth_bytes_per_second,
        exhausted_in: String::new(),
        sure: site.confidence.map(|sure| format!("{sure:.2}")).unwrap_or_default(),
        function: function(site),
    }
}

fn site_key(process: &Process, site: &Site) -> Key {
    let part = match site.id {
        Some(_) => site.context.clone(),
        None => format!("{} {} {}", site.context, site.api, function(site)),
    };
    Key {
        level: "site".into(),
        process: (process.pid, process.start_ns),
        comm: process.comm.clone(),
        domain: site.domain.clone(),
        site: site.id.clone(),
        part,
    }
}

pub fn called(process: &Process) -> String {
    words::process(process.cmdline.as_deref(), &process.comm, process.ended)
}

/// The user's own function and where it is, or why there is none.
fn function(site: &Site) -> String {
    let Some(frame) = from_the_users(&site.frames).first().map(Frame::shown) else {
        return escape(site.note.as_deref().unwrap_or(frames::NOT_NAMED)).into_owned();
    };
    if let (None, None, Some(reason)) = (&frame.symbol, &frame.module, &frame.reason) {
        return escape(reason).into_owned();
    }
    let name = frames::name(&frame);
    match (&frame.file, frame.line) {
        (Some(file), Some(line)) => {
            let file = file.rsplit('/').next().unwrap_or(file);
            format!("{name} {}:{line}", escape(file))
        }
        _ => name,
    }
}

/// Whether a lower-case text is in a row, or is a function of its stack.
pub fn has(row: &Row, dump: &Dump, text: &str) -> bool {
    let within = |part: &str| part.to_lowercase().contains(text);
    let named = |frames: &[Frame]| frames.iter().any(|f| f.symbol.as_deref().is_some_and(within));
    let cells = [&row.verdict, &row.process, &row.pids, &row.domain, &row.function];
    cells.into_iter().any(|cell| within(cell))
        || match row.from {
            From::Finding(index) => dump.findings.get(index).is_some_and(|finding| {
                finding.level == "site"
                    && Concerned::by(finding, dump).sites.iter().any(|site| named(&site.frames))
            }),
            From::Site(process, site) => {
                let process = dump.processes.get(process);
                process.and_then(|process| process.sites.get(site)).is_some_and(|site| {
                    named(&site.frames)
                        || site.sample.as_ref().is_some_and(|one| named(&one.user_frames))
                })
            }
        }
}
