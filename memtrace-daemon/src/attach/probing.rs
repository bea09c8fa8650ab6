//! The two ways to attach to a file, behind one form: by `uprobe_multi`, and by perf events
//! where the kernel has no `uprobe_multi`.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use jiff::Timestamp;

use super::multi::MultiProgram;
use super::perf::{PerfLink, PerfProgram};
use super::usdt::{Firing, Place};

/// Attaches the call programs to points of a file.
pub trait Prober {
    /// Holds an attachment; dropping it detaches.
    type Link;

    /// Attaches to points (file offset, cookie) of an open file, in every process that runs
    /// it, now and later: at the functions' entry, or at their return.
    ///
    /// # Errors
    /// What the kernel said; nothing is attached then.
    fn attach(
        &self,
        file: BorrowedFd<'_>,
        points: &[(u64, u64)],
        return_probe: bool,
    ) -> io::Result<Self::Link>;

    /// Attaches to static probes (place, cookie) of an open file: in every process that runs it,
    /// now and later, or in one alone, where the kernel can tell processes apart.
    ///
    /// # Errors
    /// What the kernel said, or that it has no such program; nothing is attached then.
    fn attach_static(
        &mut self,
        file: BorrowedFd<'_>,
        places: &[(Place, u64)],
        process: Option<u32>,
    ) -> io::Result<Self::Link>;

    /// Forgets static probes that are not attached any more, by their cookies.
    fn forget_static(&mut self, cookies: &[u64]);

    /// The name of this way, for coverage.
    fn by(&self) -> &'static str;

    /// Since when what is attached now sees calls.
    fn since(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// The loaded call programs and how they are attached.
#[derive(Debug)]
pub enum Probing {
    /// By `uprobe_multi`.
    Multi {
        /// Runs at entry.
        entry: MultiProgram,
        /// Runs at return.
        returning: MultiProgram,
    },
    /// By perf events.
    Perf {
        /// Runs at entry.
        entry: PerfProgram,
        /// Runs at return.
        returning: PerfProgram,
    },
}

/// Holds the probes of one kind on one file; dropping it detaches.
#[derive(Debug)]
pub enum Link {
    /// One link for all points.
    Multi(OwnedFd),
    /// One for each point; some 110 ms each to close.
    Perf(Vec<PerfLink>),
}

/// Everything that is attached to libraries.
#[derive(Debug)]
pub struct Probers {
    calls: Probing,
    firing: Option<Firing>,
}

impl Probers {
    /// With `firing`, static probes too.
    #[must_use]
    pub const fn new(calls: Probing, firing: Option<Firing>) -> Self {
        Self { calls, firing }
    }
}

impl Prober for Probers {
    type Link = Link;

    fn attach(
        &self,
        file: BorrowedFd<'_>,
        points: &[(u64, u64)],
        return_probe: bool,
    ) -> io::Result<Link> {
        self.calls.attach(file, points, return_probe)
    }

    fn attach_static(
        &mut self,
        file: BorrowedFd<'_>,
        places: &[(Place, u64)],
        process: Option<u32>,
    ) -> io::Result<Link> {
        match &mut self.firing {
            Some(firing) => firing.attach(file, places, process),
            None => Err(io::Error::other("the program for static probes is not loaded")),
        }
    }

    fn forget_static(&mut self, cookies: &[u64]) {
        if let Some(firing) = &mut self.firing {
            firing.forget(cookies);
        }
    }

    fn by(&self) -> &'static str {
        self.calls.by()
    }
}

impl Probing {
    fn attach(
        &self,
        file: BorrowedFd<'_>,
        points: &[(u64, u64)],
        return_probe: bool,
    ) -> io::Result<Link> {
        match self {
            Self::Multi { entry, returning } => {
                let program = if return_probe { returning } else { entry };
                program.attach(file, points, return_probe).map(Link::Multi)
            }
            Self::Perf { entry, returning } => {
                let program = if return_probe { returning } else { entry };
                program.attach(file, points, return_probe).map(Link::Perf)
            }
        }
    }

    /// The name of this way, for coverage.
    #[must_use]
    pub const fn by(&self) -> &'static str {
        match self {
            Self::Multi { .. } => "uprobe_multi",
            Self::Perf { .. } => "perf_event",
        }
    }
}

/// The probes on one file. At the end those at entry go first: a call that is entered unseen
/// is nothing, a return that is not seen is a loss.
#[derive(Debug)]
pub(super) struct Probes<L> {
    _entry: L,
    _returning: L,
}

/// Probes, and the points (file offset, cookie) that they are on.
#[derive(Debug)]
pub(super) struct Probed<L> {
    pub(super) probes: Probes<L>,
    pub(super) points: Vec<(u64, u64)>,
}

/// Attaches to all points of a file, at entry and return, or if the kernel takes offence at
/// one of them, to those that it takes one by one.
pub(super) fn probe<P: Prober>(
    prober: &P,
    file: BorrowedFd<'_>,
    mut points: Vec<(u64, u64)>,
) -> io::Result<Probed<P::Link>> {
    // Returns first: a call that is entered between the two steps is not seen at all, instead
    // of being entered and never returned from.
    let both = |points: &[(u64, u64)]| {
        let returning = prober.attach(file, points, true)?;
        let entry = prober.attach(file, points, false)?;
        io::Result::Ok(Probes { _entry: entry, _returning: returning })
    };
    let error = match both(&points) {
        Ok(probes) => return Ok(Probed { probes, points }),
        Err(error) => error,
    };
    if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
        return Err(error);
    }
    points.retain(|point| both(&[*point]).is_ok());
    if points.is_empty() {
        return Err(error);
    }
    Ok(Probed { probes: both(&points)?, points })
}

/// What to do about an attachment that the kernel refused.
pub(super) fn explain(error: &io::Error, by: &str) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) if by == "perf_event" => {
            format!(
                "the kernel refused the probes: {error}; they need CAP_PERFMON, newer kernels ask for CAP_SYS_ADMIN"
            )
        }
        Some(libc::EPERM | libc::EACCES) => {
            format!("the kernel refused the probes: {error}; they need CAP_BPF and CAP_PERFMON")
        }
        _ => format!("the kernel refused the probes: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::attach::elf::open;
    use crate::attach::perf::UprobePmu;
    use crate::attach::symbols;
    use crate::attach::test_programs::Counter;
    use crate::catalog::{Function, library_functions};

    // The test program is the file that is probed: nobody else runs it. A function for each
    // test, because they run at the same time.
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn mt_test_probed_multi(argument: u64) -> u64 {
        std::hint::black_box(argument).wrapping_mul(3)
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn mt_test_probed_perf(argument: u64) -> u64 {
        std::hint::black_box(argument).wrapping_mul(5)
    }

    fn own_point(symbol: &'static str) -> (std::fs::File, u64) {
        let file = open(std::path::Path::new("/proc/self/exe")).unwrap();
        let function = Function { symbol, ..library_functions()[0] };
        let found = symbols::find(&file, [&function], true).unwrap();
        (file, found.points[0].1)
    }

    fn check(
        probing: &Probing,
        entries: &Counter,
        returns: &Counter,
        (symbol, probed): (&'static str, extern "C" fn(u64) -> u64),
    ) {
        let (file, offset) = own_point(symbol);
        let call = |times| {
            for n in 0..times {
                std::hint::black_box(probed(n));
            }
        };
        let returning = probing.attach(file.as_fd(), &[(offset, 6)], true).unwrap();
        let entry = probing.attach(file.as_fd(), &[(offset, 5)], false).unwrap();
        drop(file);
        call(7);
        assert_eq!((entries.count(5), returns.count(6)), (7, 7));
        drop((entry, returning));
        call(7);
        assert_eq!((entries.count(5), returns.count(6)), (7, 7));
        let error = probing.attach(std::io::stdin().as_fd(), &[(0, 1)], false);
        assert!(error.is_err());
    }

    fn counters(multi: bool) -> (Counter, Counter, OwnedFd, OwnedFd) {
        let (entries, returns) = (Counter::load(multi), Counter::load(multi));
        let (entry, returning) =
            (entries.program.try_clone().unwrap(), returns.program.try_clone().unwrap());
        (entries, returns, entry, returning)
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn uprobe_multi_sees_every_call_until_it_is_dropped() {
        let (entries, returns, entry, returning) = counters(true);
        let probing = Probing::Multi {
            entry: MultiProgram::from_fd(entry),
            returning: MultiProgram::from_fd(returning),
        };
        check(&probing, &entries, &returns, ("mt_test_probed_multi", mt_test_probed_multi));
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn perf_events_see_every_call_until_they_are_dropped() {
        let (entries, returns, entry, returning) = counters(false);
        let pmu = UprobePmu::read().unwrap();
        let probing = Probing::Perf {
            entry: PerfProgram::new(pmu, entry),
            returning: PerfProgram::new(pmu, returning),
        };
        check(&probing, &entries, &returns, ("mt_test_probed_perf", mt_test_probed_perf));
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn the_call_programs_load_for_uprobe_multi_and_attach_to_a_library() {
        use crate::attach::options::Options;
        use crate::attach::tracer::Tracer;

        let mut tracer =
            Tracer::load(&Options::new(vec![memtrace_common::Domain::Cuda], 2)).unwrap();
        let probing = tracer.probing().unwrap();
        assert_eq!(probing.by(), "uprobe_multi");
        let directory = tempfile::tempdir().unwrap();
        let path = crate::attach::test_files::Library::default().build(directory.path(), "lib.so");
        let file = open(&path).unwrap();
        let found = symbols::find(&file, library_functions(), false).unwrap();
        let points: Vec<(u64, u64)> = found
            .points
            .iter()
            .map(|(function, offset)| (*offset, memtrace_common::cookie(1, *function)))
            .collect();
        let probing = Probers::new(probing, None);
        let probed = probe(&probing, file.as_fd(), points.clone()).unwrap();
        assert_eq!(probed.points, points);
    }
}
