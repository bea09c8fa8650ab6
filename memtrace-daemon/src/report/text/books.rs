//! The host's books by domain, and whether they add up.

use std::collections::BTreeMap;
use std::io;

use super::Page;
use crate::human;
use crate::report::table::{Align, Table};
use crate::snapshot::{Device, Snapshot, Terms};

pub(super) fn write(snapshot: &Snapshot, page: &mut Page<'_>) -> io::Result<()> {
    page.heading("BOOKS since attach: seen = live + freed + closed + freed unseen + dropped")?;
    let domains = snapshot.domains.iter().map(|(name, terms)| (*name, *terms));
    for line in domain_lines(&domains.collect(), page.width) {
        page.line(&line)?;
    }
    for device in &snapshot.devices {
        page.labelled("gpu", &device_line(device))?;
        for process in device.processes.iter().filter(|process| process.gone) {
            let unknown = || "an unknown part".to_owned();
            let used = process.used_bytes.map_or_else(unknown, human::bytes);
            page.labelled("", &format!("{used} of it for pid {}, which has ended", process.pid))?;
        }
    }
    page.line("")
}

/// What NVML counts on a GPU, and how much of it the books explain.
#[must_use]
pub fn device_line(device: &Device) -> String {
    let Device { index, total_bytes, used_bytes, traced_bytes, untraced_bytes, .. } = device;
    let (used, total) = (human::bytes(*used_bytes), human::bytes(*total_bytes));
    let whose = match traced_bytes.zip(*untraced_bytes) {
        Some((traced, untraced)) => {
            let untraced = human::about_bytes(untraced as f64);
            format!("{} traced, {untraced} not", human::bytes(traced))
        }
        None => "how much of it is traced is not known".to_owned(),
    };
    format!("{index}: {used} of {total} in use by NVML; {whose}")
}

/// One line a domain that has seen anything, after a head; domains are never added.
#[must_use]
pub fn domain_lines(domains: &BTreeMap<&str, Terms>, width: Option<usize>) -> Vec<String> {
    let mut table = Table::new([
        ("DOMAIN", Align::Left),
        ("SEEN", Align::Right),
        ("LIVE", Align::Right),
        ("OBJECTS", Align::Right),
        ("FREED", Align::Right),
        ("CLOSED", Align::Right),
        ("FREED UNSEEN", Align::Right),
        ("DROPPED", Align::Right),
        ("", Align::Flexible(10)),
    ]);
    let mut quiet = vec![];
    for (name, terms) in domains {
        if *terms == Terms::default() {
            quiet.push(*name);
            continue;
        }
        table.row([
            (*name).to_owned(),
            human::bytes(terms.seen.bytes),
            human::bytes(terms.live.bytes),
            human::count(terms.live.count),
            human::bytes(terms.freed.bytes),
            human::bytes(terms.closed.bytes),
            human::bytes(terms.freed_unseen.bytes),
            human::bytes(terms.dropped.bytes),
            if terms.conserved() { String::new() } else { "DOES NOT ADD UP".into() },
        ]);
    }
    let mut lines = if quiet.len() == domains.len() { vec![] } else { table.lines(width) };
    if !quiet.is_empty() {
        lines.extend(super::indented(&format!("nothing seen in {}", quiet.join(", ")), 0, width));
    }
    lines
}
