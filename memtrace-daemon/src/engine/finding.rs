//! Findings: rows that are news, with the time until memory is exhausted.

use super::core::Setting;
use super::host::HostFacts;
use crate::ledger::{ProcessBooks, text};
use crate::snapshot::{Exhaustion, Finding, Frame, Process, Site, Verdict};
use crate::verdict::{Judgement, Said};

/// A finding about one row.
pub(super) fn of_site(
    host: &HostFacts,
    setting: &Setting,
    process: &Process,
    site: Site,
    judgement: Judgement,
) -> Finding {
    let exhaustion = site
        .growth_bytes_per_second
        .and_then(|growth| exhaustion(host, site.domain, process.pid, growth));
    let function = site.frames.get(site.frames.own()).and_then(Frame::title);
    Finding {
        level: "site",
        domain: site.domain,
        processes: Some(process.pid).filter(|pid| *pid != 0).into_iter().collect(),
        comm: process.comm.clone(),
        site: site.id,
        function,
        exhaustion,
        ..of_judgement(setting, judgement)
    }
}

/// A judgement as a finding about nobody yet.
pub(super) fn of_judgement(setting: &Setting, judgement: Judgement) -> Finding {
    Finding {
        level: "",
        domain: "",
        processes: Vec::new(),
        comm: String::new(),
        site: None,
        function: None,
        verdict: judgement.verdict,
        confidence: judgement.confidence,
        since: setting.anchor.wall_of_monotonic(judgement.since_ns),
        exhaustion: None,
        evidence: judgement.evidence,
        decided_by: judgement.decided_by,
    }
}

/// A finding about something that was measured; `process` is `None` for the host.
pub(super) fn of_measured(
    host: &HostFacts,
    setting: &Setting,
    process: Option<&ProcessBooks>,
    said: Said,
) -> Finding {
    let Said { serial: _, gone, domain, judgement } = said;
    let pid = process.map_or(0, ProcessBooks::pid);
    // Address space is not memory that runs out.
    let exhaustion = judgement
        .growth_bytes_per_second
        .filter(|_| domain != "mmap")
        .and_then(|growth| exhaustion(host, domain, pid, growth));
    let entry = process.and_then(|process| process.entry);
    let who = process.map(|_| (pid, entry.map(|entry| text(&entry.comm)).unwrap_or_default()));
    let who = who.or(gone.map(|gone| (gone.pid, gone.comm)));
    let (pid, comm) = who.unzip();
    Finding {
        level: if pid.is_some() { "process" } else { "host" },
        domain,
        processes: pid.into_iter().collect(),
        comm: comm.unwrap_or_default(),
        exhaustion,
        ..of_judgement(setting, judgement)
    }
}

/// What memory of a domain runs out of first, and when; `None` where it does not grow.
pub(super) fn exhaustion(
    host: &HostFacts,
    domain: &'static str,
    pid: u32,
    growth_bytes_per_second: f64,
) -> Option<Exhaustion> {
    if growth_bytes_per_second <= 0.0 {
        return None;
    }
    let of_host = || Some((host.available_bytes?, "host".to_owned()));
    let of_cgroup = || {
        let limit = host.limits.get(&pid)?;
        Some((limit.available_bytes(), format!("cgroup {}", limit.cgroup)))
    };
    let of_device = || {
        let on = |(_, device): &(&u32, &super::host::Device)| device.of(pid).is_some();
        let only = || host.devices.iter().next().filter(|_| host.devices.len() == 1);
        let (index, device) = host.devices.iter().find(on).or_else(only)?;
        Some((device.free_bytes(), format!("cuda:{index}")))
    };
    let (free_bytes, of) = match domain {
        "kernel" | "heap" | "mmap" => {
            let both = [of_cgroup(), of_host()].into_iter().flatten();
            both.min_by_key(|(free_bytes, _)| *free_bytes)?
        }
        // A driver takes these pages, on nobody's account.
        "pinned" | "managed" | "host" => of_host()?,
        "cuda" | "torch" => of_device()?,
        _ => return None,
    };
    Some(Exhaustion { seconds: free_bytes as f64 / growth_bytes_per_second, of })
}

/// Sorts findings: the surest trouble first, then what runs out first.
pub(super) fn worst_first(findings: &mut [Finding]) {
    findings.sort_by(|a, b| {
        rank(a.verdict)
            .cmp(&rank(b.verdict))
            .then_with(|| seconds(a).total_cmp(&seconds(b)))
            .then_with(|| grown(b).cmp(&grown(a)))
            .then_with(|| (&a.processes, a.site).cmp(&(&b.processes, b.site)))
    });
}

fn rank(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Leak => 0,
        Verdict::Orphaned => 1,
        Verdict::Growing => 2,
        Verdict::Fragmentation => 3,
        Verdict::Unreliable => 4,
        Verdict::Plateau => 5,
        Verdict::Warming => 6,
        Verdict::Steady => 7,
    }
}

fn seconds(finding: &Finding) -> f64 {
    finding.exhaustion.as_ref().map_or(f64::INFINITY, |exhaustion| exhaustion.seconds)
}

fn grown(finding: &Finding) -> u64 {
    let evidence = &finding.evidence;
    evidence.floor_last_bytes.or(evidence.floor_last_objects).unwrap_or(0)
}
