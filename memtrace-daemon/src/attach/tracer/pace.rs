//! The totals of library functions as they are in the kernel, for who looks at them beside the
//! engine, and the books of whom probes are taken away from.

use std::os::fd::{AsFd, OwnedFd};

use aya::maps::{HashMap, Map, MapData};
use aya::programs::RawTracePoint;
use memtrace_common::{ProcessEntry, ProcessKey, Totals, TotalsKey};

use super::Tracer;
use super::access::{map_data, program};
use super::run::{FORGET, whose};
use crate::attach::{error::TracerError, plain::Plain, sys};

/// Reads totals by descriptors of its own.
pub struct Paces {
    forget: OwnedFd,
    totals: HashMap<MapData, Plain<TotalsKey>, Plain<Totals>>,
    processes: HashMap<MapData, Plain<ProcessKey>, Plain<ProcessEntry>>,
}

impl std::fmt::Debug for Paces {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Paces").finish_non_exhaustive()
    }
}

impl Paces {
    /// All rows of totals but those that belong to nobody.
    pub fn totals(&self, mut each: impl FnMut(&TotalsKey, &Totals)) {
        // A row that vanishes meanwhile is of somebody who has ended.
        for (Plain(key), Plain(totals)) in self.totals.iter().flatten() {
            if key.space != 0 {
                each(&key, &totals);
            }
        }
    }

    fn running(&self) -> impl Iterator<Item = ProcessEntry> {
        let all = self.processes.iter().flatten().map(|(_, Plain(entry))| entry);
        all.filter(|entry| !entry.ended())
    }

    /// The process that has an address space now.
    #[must_use]
    pub fn process_of(&self, space: u32) -> Option<u32> {
        self.running().find(|entry| entry.space == space).map(|entry| entry.key.tgid)
    }

    /// Books that nobody sees any more what becomes of the memory of a process whose pointers are
    /// of a class.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn forget(&self, pid: u32, class: u8) -> Result<(), TracerError> {
        for entry in self.running().filter(|entry| entry.key.tgid == pid) {
            sys::bpf_prog_test_run(self.forget.as_fd(), &whose(entry.space, class))
                .map_err(|source| TracerError::Run { name: FORGET, source })?;
        }
        Ok(())
    }
}

impl Tracer {
    /// Reads totals beside this.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn paces(&mut self) -> Result<Paces, TracerError> {
        let forget: &mut RawTracePoint = program(&mut self.ebpf, FORGET)?;
        let forget =
            forget.fd().map_err(|source| TracerError::Program { name: FORGET, source })?.as_fd();
        let forget = forget
            .try_clone_to_owned()
            .map_err(|source| TracerError::Run { name: FORGET, source })?;
        let map = |name: &'static str| {
            let map = self.ebpf.map(name).and_then(map_data).ok_or(TracerError::Absent(name))?;
            let fd = map.fd().as_fd().try_clone_to_owned();
            let fd = fd.map_err(|source| TracerError::Run { name, source })?;
            MapData::from_fd(fd).map_err(|source| TracerError::Map { name, source })
        };
        let typed = |name| move |source| TracerError::Map { name, source };
        let (totals, processes) = (map("mt_totals")?, map("mt_processes")?);
        Ok(Paces {
            forget,
            totals: HashMap::try_from(Map::HashMap(totals)).map_err(typed("mt_totals"))?,
            processes: HashMap::try_from(Map::HashMap(processes)).map_err(typed("mt_processes"))?,
        })
    }
}
