//! What is right to say about a variant.

use memtrace_common::Domain;
use memtrace_daemon::snapshot::Verdict;
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
}

impl Target {
    /// The subject of verdicts that it is.
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
}

impl Expectation {
    /// Whether a leak is what is expected.
    #[must_use]
    pub fn leaks(&self) -> bool {
        self.finals.contains(&Verdict::Leak)
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
/// Nothing that happened after start-up.
pub const STEADY: &[Verdict] = &[Verdict::Steady];
/// It is too early to tell.
pub const GROWING: &[Verdict] = &[Verdict::Growing];
/// Held by a worker whose parent was killed.
pub const ORPHANED: &[Verdict] = &[Verdict::Orphaned];
