//! What is right to say about a variant.

use memtrace_common::Domain;
use memtrace_daemon::snapshot::{Finding, Snapshot, Verdict};
use memtrace_daemon::verdict::Subject;

use crate::world::{ProcessId, SiteId, World};

/// What an expectation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A site of a process.
    Site(SiteId),
    /// A process in one domain.
    Process(ProcessId, Domain),
    /// All processes of the program of this one, in one domain.
    Service(ProcessId, Domain),
    /// What is measured of a process, in the domain that its finding has.
    Measured(ProcessId, Domain),
    /// What is measured of the host, and nobody owns.
    Host,
}

impl Target {
    /// The subject of verdicts that it is; what is measured is none.
    #[must_use]
    pub fn subject(self, world: &World) -> Option<Subject> {
        match self {
            Self::Site(site) => world.look(site).map(|site| Subject::Row(site.row)),
            Self::Process(process, domain) => {
                Some(Subject::Process(world.process(process).0, domain))
            }
            Self::Service(process, domain) => {
                Some(Subject::Service(world.service(process), domain))
            }
            Self::Measured(..) | Self::Host => None,
        }
    }

    /// Whether it is measured, not booked.
    #[must_use]
    pub const fn is_measured(self) -> bool {
        matches!(self, Self::Measured(..) | Self::Host)
    }

    /// Whether a finding is about it, where it is measured.
    fn is_in(self, finding: &Finding, world: &World) -> bool {
        match self {
            Self::Measured(process, domain) => {
                let (_, pid) = world.process(process);
                // What the books say of a process says how old it is.
                finding.level == "process"
                    && finding.evidence.process_age_seconds.is_none()
                    && finding.domain == domain.name()
                    && finding.processes.contains(&pid)
            }
            Self::Host => finding.level == "host" && finding.domain == "host",
            Self::Site(_) | Self::Process(..) | Self::Service(..) => false,
        }
    }
}

/// What must be said in the end. Beside this, nothing that does not lose memory may ever be
/// called a leak.
#[derive(Clone, Copy, Debug)]
pub struct Expectation {
    /// About what.
    pub target: Target,
    /// Any of these verdicts is right.
    pub finals: &'static [Verdict],
    /// What the finding must say in so many words, where it is measured; empty for whatever.
    pub words: &'static str,
}

impl Expectation {
    /// Whether a leak is what is expected.
    #[must_use]
    pub fn leaks(&self) -> bool {
        self.finals.contains(&Verdict::Leak)
    }

    /// What a picture says of what is measured: of several findings one that is not right, or
    /// else the one in the right words.
    #[must_use]
    pub fn finding<'a>(&self, world: &World, picture: &'a Snapshot) -> Option<&'a Finding> {
        let findings = picture.findings.iter();
        let about_it = findings.filter(|finding| self.target.is_in(finding, world));
        about_it.max_by_key(|finding| {
            (!self.finals.contains(&finding.verdict), self.is_worded(finding))
        })
    }

    /// Whether a finding says what it must.
    #[must_use]
    pub fn is_worded(&self, finding: &Finding) -> bool {
        self.words.is_empty() || finding.decided_by.iter().any(|line| line.contains(self.words))
    }
}

/// It loses memory.
pub const LEAK: &[Verdict] = &[Verdict::Leak];
/// It loses memory of the kernel, and its process has ended.
pub const LEFT: &[Verdict] = &[Verdict::Leak, Verdict::Orphaned];
/// Live bytes are bounded: whether they were seen to grow first is a matter of when.
pub const BOUNDED: &[Verdict] = &[Verdict::Steady, Verdict::Plateau];
/// Grew after start-up, by far more than it had, and then held.
pub const PLATEAU: &[Verdict] = &[Verdict::Plateau];
/// Nothing that happened after start-up. Of what is measured: that nothing is said.
pub const STEADY: &[Verdict] = &[Verdict::Steady];
/// It is too early to tell.
pub const GROWING: &[Verdict] = &[Verdict::Growing];
/// Held by a worker whose parent was killed, or by nobody any more.
pub const ORPHANED: &[Verdict] = &[Verdict::Orphaned];
/// Held by a process, and by nothing that it has allocated.
pub const FRAGMENTATION: &[Verdict] = &[Verdict::Fragmentation];
