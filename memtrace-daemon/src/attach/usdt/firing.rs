//! The program that runs where static probes fire, and its map of where their arguments are.

use std::io;
use std::os::fd::BorrowedFd;

use aya::maps::{HashMap, MapData, MapError};
use memtrace_common::UsdtPoint;

use super::Place;
use crate::attach::multi::MultiProgram;
use crate::attach::perf::PerfProgram;
use crate::attach::plain::Plain;
use crate::attach::probing::Link;

/// That an entry must not be there yet (`BPF_NOEXIST`).
const NOT_THERE: u64 = 1;

/// The kernel's map of where arguments are, by attach cookie.
#[derive(Debug)]
pub struct PointMap(HashMap<MapData, u64, Plain<UsdtPoint>>);

impl PointMap {
    pub(in crate::attach) const fn new(map: HashMap<MapData, u64, Plain<UsdtPoint>>) -> Self {
        Self(map)
    }
}

/// The loaded program, and how it is attached.
#[derive(Debug)]
pub enum FiringProgram {
    /// By `uprobe_multi`.
    Multi(MultiProgram),
    /// By perf events, which cannot be told to leave other processes alone.
    Perf(PerfProgram),
}

/// Attaches to static probes.
#[derive(Debug)]
pub struct Firing {
    program: FiringProgram,
    points: PointMap,
}

impl Firing {
    /// The program and its map.
    #[must_use]
    pub const fn new(program: FiringProgram, points: PointMap) -> Self {
        Self { program, points }
    }

    /// Attaches to places of an open file, as [`crate::attach::probing::Prober`] says.
    ///
    /// # Errors
    /// What the kernel said; nothing is attached then.
    pub fn attach(
        &mut self,
        file: BorrowedFd<'_>,
        places: &[(Place, u64)],
        process: Option<u32>,
    ) -> io::Result<Link> {
        // First: a place that fires before its arguments are known is not booked.
        // What is known already is another link's, which goes on.
        let mut new = Vec::new();
        for (place, cookie) in places {
            match self.points.0.insert(cookie, Plain(place.point), NOT_THERE) {
                Ok(()) => new.push(*cookie),
                Err(MapError::SyscallError(error))
                    if error.io_error.raw_os_error() == Some(libc::EEXIST) => {}
                Err(error) => {
                    self.forget(&new);
                    return Err(io::Error::other(format!("no room for static probes: {error}")));
                }
            }
        }
        let attached = match &self.program {
            FiringProgram::Multi(program) => {
                program.attach_static(file, places, process).map(Link::Multi)
            }
            FiringProgram::Perf(program) => program.attach_static(file, places).map(Link::Perf),
        };
        attached.inspect_err(|_| self.forget(&new))
    }

    /// Forgets places that are not attached any more.
    pub fn forget(&mut self, cookies: &[u64]) {
        for cookie in cookies {
            match self.points.0.remove(cookie) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(MapError::SyscallError(error))
                    if error.io_error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => tracing::warn!("cannot forget a static probe: {error}"),
            }
        }
    }
}
