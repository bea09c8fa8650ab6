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
///
/// Nobody says on which of its devices a process grows: the one that has least left, of those that
/// it is on, is the soonest that can run out.
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
        let on = host.devices.iter().filter(|(_, device)| device.now.has(pid));
        let only = || host.devices.iter().next().filter(|_| host.devices.len() == 1);
        let fullest = on.min_by_key(|(_, device)| device.free_bytes());
        let (index, device) = fullest.or_else(only)?;
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::record::{DeviceMemory, Observation};

    fn exhausted(devices: Vec<DeviceMemory>, pid: u32) -> Option<(f64, String)> {
        let mut host = HostFacts::default();
        for device in devices {
            host.observe(0, &Observation::Device(device), BTreeMap::new);
        }
        exhaustion(&host, "cuda", pid, 2.0).map(|exhaustion| (exhaustion.seconds, exhaustion.of))
    }

    fn device(index: u32, free_bytes: u64, pids: &[u32]) -> DeviceMemory {
        DeviceMemory {
            index,
            total_bytes: 1_000,
            free_bytes: Some(free_bytes),
            processes: pids.iter().map(|pid| (*pid, 1)).collect(),
            ..DeviceMemory::default()
        }
    }

    #[test]
    fn a_process_on_several_devices_runs_out_of_the_fullest_that_it_is_on() {
        let untold = DeviceMemory { untold: vec![9], ..device(3, 20, &[]) };
        let all = vec![device(0, 500, &[7]), device(1, 300, &[7, 8]), device(2, 100, &[8]), untold];
        assert_eq!(exhausted(all.clone(), 7), Some((150.0, "cuda:1".to_owned())));
        assert_eq!(exhausted(all.clone(), 8), Some((50.0, "cuda:2".to_owned())));
        assert_eq!(exhausted(all.clone(), 9), Some((10.0, "cuda:3".to_owned())));
        assert_eq!(exhausted(all, 6), None, "it may be on any");
        let only = vec![device(4, 500, &[])];
        assert_eq!(exhausted(only, 6), Some((250.0, "cuda:4".to_owned())));
    }
}
