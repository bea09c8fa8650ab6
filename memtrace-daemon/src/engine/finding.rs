//! Findings: rows that are news, with the time until memory is exhausted.

use super::core::Setting;
use super::host::HostFacts;
use crate::snapshot::{Exhaustion, Finding, Frame, Process, Site, Verdict};
use crate::verdict::Judgement;

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

/// What memory of a domain runs out of, and when; `None` where it does not grow.
pub(super) fn exhaustion(
    host: &HostFacts,
    domain: &'static str,
    pid: u32,
    growth_bytes_per_second: f64,
) -> Option<Exhaustion> {
    if growth_bytes_per_second <= 0.0 {
        return None;
    }
    let (free_bytes, of) = match domain {
        "kernel" | "pinned" | "managed" | "heap" | "mmap" => {
            (host.available_bytes?, "host".to_owned())
        }
        "cuda" => {
            let on = |(_, device): &(&u32, &super::host::Device)| {
                device.processes.iter().any(|(user, _)| *user == pid)
            };
            let only = || host.devices.iter().next().filter(|_| host.devices.len() == 1);
            let (index, device) = host.devices.iter().find(on).or_else(only)?;
            (device.free_bytes(), format!("cuda:{index}"))
        }
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
    finding.evidence.floor_last_bytes.unwrap_or(0)
}
