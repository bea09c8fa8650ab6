//! Attachment by perf events, one a function and kind: the fallback below kernel 6.6.
//!
//! Works from kernel 5.15 (cookies). Closing one of them takes the kernel some 110 ms, at exit
//! too, and newer kernels ask for CAP_SYS_ADMIN: never used where `multi.rs` works.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use thiserror::Error;

use super::multi::descriptor_path;
use super::sys;
use super::usdt::Place;

/// Where the kernel describes its uprobe events.
const UPROBE_PMU: &str = "/sys/bus/event_source/devices/uprobe";

/// Why uprobe events cannot be used.
#[derive(Debug, Error)]
#[error("cannot read {path}: {source}; this kernel has no uprobe events (CONFIG_UPROBE_EVENTS)")]
pub struct PerfError {
    /// What was read.
    path: String,
    /// What came back.
    source: io::Error,
}

/// How this kernel numbers its uprobe events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UprobePmu {
    kind: u32,
    return_bit: u32,
    /// The lowest bit of the place of a counter; `None` where the kernel raises none.
    counter_bit: Option<u32>,
}

impl UprobePmu {
    /// Reads the numbers from sysfs.
    ///
    /// # Errors
    /// The file that cannot be read or does not hold a number.
    pub fn read() -> Result<Self, PerfError> {
        Self::read_from(Path::new(UPROBE_PMU))
    }

    fn read_from(directory: &Path) -> Result<Self, PerfError> {
        Ok(Self {
            kind: number(&directory.join("type"), "")?,
            return_bit: number(&directory.join("format/retprobe"), "config:")?,
            counter_bit: std::fs::read_to_string(directory.join("format/ref_ctr_offset"))
                .ok()
                .and_then(|text| {
                    text.trim().strip_prefix("config:")?.split('-').next()?.parse().ok()
                })
                .filter(|bit| *bit < 64),
        })
    }
}

/// The number in a file, after a prefix.
fn number(path: &Path, prefix: &str) -> Result<u32, PerfError> {
    let error = |source| PerfError { path: path.display().to_string(), source };
    let text = std::fs::read_to_string(path).map_err(error)?;
    text.trim()
        .strip_prefix(prefix)
        .and_then(|number| number.parse().ok())
        .filter(|number| prefix.is_empty() || *number < 64)
        .ok_or_else(|| error(io::ErrorKind::InvalidData.into()))
}

/// A program of type kprobe, as aya loads it, that is attached by perf events.
#[derive(Debug)]
pub struct PerfProgram {
    pmu: UprobePmu,
    program: OwnedFd,
}

/// One probed place. The link comes first: it is closed before its event.
#[derive(Debug)]
pub struct PerfLink {
    _link: OwnedFd,
    _event: OwnedFd,
}

impl PerfProgram {
    /// Takes a loaded program.
    #[must_use]
    pub const fn new(pmu: UprobePmu, program: OwnedFd) -> Self {
        Self { pmu, program }
    }

    /// The loaded program.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Attaches to points (file offset, cookie) of an open file, in every process that runs
    /// it, now and later. Dropping the links detaches, slowly.
    ///
    /// # Errors
    /// What the kernel said; nothing is attached then.
    pub fn attach(
        &self,
        file: BorrowedFd<'_>,
        points: &[(u64, u64)],
        return_probe: bool,
    ) -> io::Result<Vec<PerfLink>> {
        let path = descriptor_path(file)?;
        let config = if return_probe { 1 << self.pmu.return_bit } else { 0 };
        points
            .iter()
            .map(|&(offset, cookie)| {
                let event = sys::uprobe_event(self.pmu.kind, config, &path, offset)?;
                let link = sys::link_perf_event(self.fd(), event.as_fd(), cookie)?;
                Ok(PerfLink { _link: link, _event: event })
            })
            .collect()
    }
}

impl PerfProgram {
    /// Attaches to static probes (place, cookie) of an open file, in every process that runs it,
    /// now and later. Their semaphores are raised while the links are there.
    ///
    /// # Errors
    /// What the kernel said, or that it raises no semaphores; nothing is attached then.
    pub fn attach_static(
        &self,
        file: BorrowedFd<'_>,
        places: &[(Place, u64)],
    ) -> io::Result<Vec<PerfLink>> {
        let path = descriptor_path(file)?;
        let config = |place: &Place| {
            let Some(semaphore) = place.semaphore else { return Ok(0) };
            let bit = self.pmu.counter_bit.ok_or_else(|| {
                io::Error::new(io::ErrorKind::Unsupported, "this kernel raises no semaphores")
            })?;
            // What is beyond the field's 32 bits would be another place.
            let fits = u32::try_from(semaphore).map_err(|_| io::ErrorKind::InvalidInput)?;
            Ok::<u64, io::Error>(u64::from(fits) << bit)
        };
        let attach = |(place, cookie): &(Place, u64)| {
            let event = sys::uprobe_event(self.pmu.kind, config(place)?, &path, place.offset)?;
            let link = sys::link_perf_event(self.fd(), event.as_fd(), *cookie)?;
            Ok(PerfLink { _link: link, _event: event })
        };
        places.iter().map(attach).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_sysfs_writes_them() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("format")).unwrap();
        std::fs::write(directory.path().join("type"), "9\n").unwrap();
        let retprobe = directory.path().join("format/retprobe");
        std::fs::write(&retprobe, "config:0\n").unwrap();
        let pmu = UprobePmu::read_from(directory.path()).unwrap();
        assert_eq!(pmu, UprobePmu { kind: 9, return_bit: 0, counter_bit: None });
        std::fs::write(directory.path().join("format/ref_ctr_offset"), "config:32-63\n").unwrap();
        let pmu = UprobePmu::read_from(directory.path()).unwrap();
        assert_eq!(pmu, UprobePmu { kind: 9, return_bit: 0, counter_bit: Some(32) });
        std::fs::write(&retprobe, "config:64\n").unwrap();
        let error = UprobePmu::read_from(directory.path()).unwrap_err();
        assert!(error.to_string().contains("format/retprobe"));
    }
}
