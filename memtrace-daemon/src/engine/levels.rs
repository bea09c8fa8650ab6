//! Findings above the site: a process whose many sites grow a little each, and a service whose
//! workers grow, or grow until they die and are started again.

use memtrace_common::Domain;
use rustc_hash::FxHashMap;

use super::core::{Core, Setting};
use super::finding;
use super::row::Hushed;
use crate::ledger::{FoldedKey, text};
use crate::snapshot::{Evidence, Finding, Process, Verdict};
use crate::verdict::Judgement;

/// A process' finding says nothing new where findings of its sites explain this share of its
/// growth.
const EXPLAINED: f64 = 0.5;
/// A service's finding says nothing new where known sites have kept this share of what its processes
/// kept, those that have ended too: these may never have been old enough for a verdict of theirs.
const NEARLY: f64 = 0.9;

/// Whether growth at a level above the site is worth a finding.
fn is_news(core: &Core, domain: Domain, judgement: &Judgement) -> bool {
    let Judgement { verdict, confidence, .. } = judgement;
    matches!(verdict, Verdict::Leak | Verdict::Growing)
        && core.config.verdict.reports(domain, *verdict, *confidence)
}

/// Growth of the floor a second: bytes, or objects where these have none.
fn slope(evidence: &Evidence) -> Option<f64> {
    let bytes = evidence.slope_bytes_per_second.map(|slope| slope.value);
    let objects =
        evidence.slope_objects_per_second.filter(|_| evidence.floor_last_objects.is_some());
    bytes.or(objects)
}

pub(super) fn growth(judgement: &Judgement) -> f64 {
    slope(&judgement.evidence).unwrap_or(0.0)
}

/// Growth of one domain at the level below: what findings say of it, and what is hushed, a second.
pub(super) struct Below<'a> {
    pub(super) findings: &'a [Finding],
    pub(super) hushed: f64,
}

/// A finding about all sites of a process in a domain, if it says more than those of its sites do,
/// and than those that nobody wants to hear of.
pub(super) fn of_process(
    core: &Core,
    setting: &Setting,
    (process, serial, age): (&Process, u32, Option<f32>),
    domain: Domain,
    below: &Below<'_>,
    now_ns: u64,
) -> Option<Finding> {
    let mut judgement = core.verdicts.judge_process(serial, domain, now_ns)?;
    if domain == Domain::Cuda {
        core.pools.temper(serial, &mut judgement);
    }
    if !is_news(core, domain, &judgement) {
        return None;
    }
    let growth = growth(&judgement);
    let own = |finding: &&Finding| finding.level == "site" && finding.domain == domain.name();
    let slope = |finding: &Finding| slope(&finding.evidence);
    let explained: f64 =
        below.findings.iter().filter(own).filter_map(slope).map(|slope| slope.max(0.0)).sum();
    if explained + below.hushed >= growth * EXPLAINED {
        return None;
    }
    judgement.evidence.process_age_seconds = age;
    let many = process.sites.iter().filter(|site| site.domain == domain.name()).count();
    judgement.decided_by.push(format!("the sum over {many} sites, none of which explains it"));
    Some(Finding {
        level: "process",
        domain: domain.name(),
        processes: vec![process.pid],
        comm: process.comm.clone(),
        site: None,
        function: None,
        exhaustion: finding::exhaustion(&core.host, domain.name(), process.pid, growth),
        ..finding::of_judgement(setting, judgement)
    })
}

/// Findings about services, if they say more than those that nobody wants to hear of.
pub(super) fn of_services(
    core: &Core,
    setting: &Setting,
    hushed: &FxHashMap<(FoldedKey, Domain), Hushed>,
    now_ns: u64,
) -> Vec<Finding> {
    let mut services: Vec<(FoldedKey, Domain)> = core.verdicts.services().collect();
    services.sort_unstable();
    let pids = pids_by_service(core);
    let of = |(service, domain): (FoldedKey, Domain)| {
        let (mut judgement, [members, rising, ever]) =
            core.verdicts.judge_service(service, domain, now_ns)?;
        if domain == Domain::Cuda {
            let members = core.ledger.processes().filter(|one| one.service() == service);
            core.pools.temper_service(members.map(|one| one.serial), &mut judgement);
        }
        let growth = growth(&judgement);
        let known = |hushed: &Hushed| {
            let kept = hushed.kept as f64;
            hushed.growth >= growth * EXPLAINED || (kept > 0.0 && kept >= hushed.of as f64 * NEARLY)
        };
        if hushed.get(&(service, domain)).is_some_and(known) || !is_news(core, domain, &judgement) {
            return None;
        }
        let processes = pids.get(&service).cloned().unwrap_or_default();
        judgement.decided_by.push(match members {
            0 => format!("{ever} processes of this program so far, none now"),
            _ => format!("{rising} of {members} processes grow now; {ever} so far"),
        });
        let pid = processes.first().copied().unwrap_or(0);
        Some(Finding {
            level: "service",
            domain: domain.name(),
            comm: text(&service.comm),
            site: None,
            function: None,
            exhaustion: finding::exhaustion(&core.host, domain.name(), pid, growth),
            processes,
            ..finding::of_judgement(setting, judgement)
        })
    };
    services.into_iter().filter_map(of).collect()
}

fn pids_by_service(core: &Core) -> FxHashMap<FoldedKey, Vec<u32>> {
    let mut pids: FxHashMap<FoldedKey, Vec<u32>> = FxHashMap::default();
    for process in core.ledger.processes().filter(|process| !process.ended()) {
        pids.entry(process.service()).or_default().push(process.pid());
    }
    for pids in pids.values_mut() {
        pids.sort_unstable();
    }
    pids
}

#[cfg(test)]
mod tests {
    use crate::engine::rules::{cuda_malloc, world};
    use crate::engine::simulation::{Fate::Arrives, config};
    use crate::engine::{Core, CoreConfig, simulation::World};
    use crate::ledger::LedgerConfig;
    use crate::snapshot::Snapshot;
    use crate::verdict::VerdictConfig;

    /// Two workers of one service that leak at one site, for so many seconds each before they are
    /// started again.
    fn workers(mut world: World, lifetime: u64) -> Snapshot {
        let mut workers = [0, 1].map(|_| world.start(None, false, Arrives));
        for second in 1..=1_200 {
            for worker in workers {
                world.call(worker, cuda_malloc(), 2, 1 << 20, true, Arrives);
            }
            world.tick(1);
            if second % lifetime == 0 && second < 1_200 {
                world.totals(Arrives);
                workers.iter().for_each(|worker| world.end(*worker, Arrives));
                workers = [0, 1].map(|_| world.start(None, false, Arrives));
            }
        }
        world.totals(Arrives);
        world.snapshot()
    }

    fn levels(picture: &Snapshot) -> Vec<&str> {
        picture.findings.iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn a_known_site_makes_no_finding_of_its_process_or_its_service_either() {
        for lifetime in [1_200, 90] {
            let picture = workers(world(), lifetime);
            assert!(levels(&picture).contains(&"service"), "{lifetime}: {:?}", picture.findings);
            let known = picture.processes.iter().flat_map(|process| &process.sites);
            let known_sites = known.filter_map(|site| site.id).collect();
            let verdict = VerdictConfig { known_sites, ..VerdictConfig::default() };
            let mut world = world();
            world.core = Core::new(CoreConfig { verdict, ..config(LedgerConfig::default()) });
            let picture = workers(world, lifetime);
            assert_eq!(levels(&picture), [""; 0], "{lifetime}: {:?}", picture.findings);
        }
    }
}
