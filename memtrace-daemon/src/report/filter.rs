//! Which part of a snapshot somebody wants to see.

use std::borrow::Cow;
use std::fmt;

use memtrace_common::Domain;

use super::escape::escape;
use crate::snapshot::{Finding, Process, Snapshot};

/// The kernel keeps this many bytes of a process' name, so a longer one is cut before it is
/// compared.
const COMM_BYTES: usize = 15;

/// Conditions that all must hold; the default lets everything through.
///
/// What is said about the host as a whole (coverage, loss, what is not seen) stays; its terms
/// stay too, those of other domains apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this process.
    pub pid: Option<u32>,
    /// Only processes of this name, as the kernel has it.
    pub comm: Option<String>,
    /// Only this domain.
    pub domain: Option<Domain>,
    /// Only this site.
    pub site: Option<u64>,
}

impl fmt::Display for Filter {
    /// The conditions in words: `pid 12, domain cuda`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, comm, domain, site } = self;
        let conditions = [
            pid.map(|pid| format!("pid {pid}")),
            comm.as_ref().map(|comm| format!("command {}", escape(comm))),
            domain.map(|domain| format!("domain {}", domain.name())),
            site.map(|site| format!("site {site:016x}")),
        ];
        f.write_str(&conditions.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

impl Filter {
    /// Whether everything is let through.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { pid, comm, domain, site } = self;
        pid.is_none() && comm.is_none() && domain.is_none() && site.is_none()
    }

    /// The snapshot with only what is wanted.
    #[must_use]
    pub fn apply<'a>(&self, snapshot: &'a Snapshot) -> Cow<'a, Snapshot> {
        if self.is_empty() {
            return Cow::Borrowed(snapshot);
        }
        let processes: Vec<Process> =
            snapshot.processes.iter().filter_map(|process| self.process(process)).collect();
        let findings = snapshot.findings.iter().filter(|finding| self.finding(finding));
        let mut domains = snapshot.domains.clone();
        domains.retain(|name, _| self.domain(name));
        Cow::Owned(Snapshot {
            schema: snapshot.schema,
            generated_at: snapshot.generated_at,
            attached_at: snapshot.attached_at,
            stopped_at: snapshot.stopped_at,
            host: snapshot.host.clone(),
            domains,
            coverage: snapshot.coverage.clone(),
            not_seen: snapshot.not_seen.clone(),
            layers: snapshot.layers.clone(),
            latency: snapshot.latency.clone(),
            devices: snapshot.devices.clone(),
            loss: snapshot.loss.clone(),
            findings: findings.cloned().collect(),
            processes,
            runtime: snapshot.runtime.clone(),
        })
    }

    fn process(&self, process: &Process) -> Option<Process> {
        if self.pid.is_some_and(|pid| pid != process.pid) || !self.comm(&process.comm) {
            return None;
        }
        if self.domain.is_none() && self.site.is_none() {
            return Some(process.clone());
        }
        let sites: Vec<_> = process
            .sites
            .iter()
            .filter(|site| self.domain(site.domain))
            .filter(|site| self.site.is_none() || site.id == self.site)
            .cloned()
            .collect();
        let mut domains = process.domains.clone();
        domains.retain(|name, _| self.domain(name));
        let wanted = if self.site.is_some() { !sites.is_empty() } else { !domains.is_empty() };
        wanted.then(|| Process {
            pid: process.pid,
            start_ns: process.start_ns,
            ppid: process.ppid,
            comm: process.comm.clone(),
            cmdline: process.cmdline.clone(),
            cgroup: process.cgroup.clone(),
            ended: process.ended,
            ended_at: process.ended_at,
            baseline: process.baseline,
            measured: process.measured,
            device: process.device,
            pool: process.pool,
            domains,
            devices: process.devices.clone(),
            sites,
        })
    }

    fn finding(&self, finding: &Finding) -> bool {
        self.pid.is_none_or(|pid| finding.processes.contains(&pid))
            && self.comm(&finding.comm)
            && self.domain(finding.domain)
            && (self.site.is_none() || finding.site == self.site)
    }

    fn domain(&self, name: &str) -> bool {
        self.domain.is_none_or(|domain| domain.name() == name)
    }

    fn comm(&self, name: &str) -> bool {
        self.comm.as_ref().is_none_or(|wanted| {
            wanted == name
                || wanted.len() > COMM_BYTES
                    && wanted.as_bytes().get(..COMM_BYTES) == Some(name.as_bytes())
        })
    }
}
