//! Programs that user space runs, and what the kernel counts of all of them.

use std::os::fd::AsFd;

use aya::{
    maps::{Array, MapData},
    programs::{Program, ProgramFd, RawTracePoint},
};
use memtrace_common::{FunctionId, Latency, LossCause, LossCounter, PointerClass};

use super::{
    Tracer,
    access::{program, typed},
};
use crate::attach::{error::TracerError, misses, plain::Plain, sys};
use crate::catalog;

/// Books that nobody sees any more what becomes of memory: [`whose`].
pub(super) const FORGET: &str = "mt_forget";

/// Its arguments: an address space, and the class of the pointers.
pub(super) const fn whose(space: u32, class: u8) -> [u64; 2] {
    [space as u64, class as u64]
}

impl Tracer {
    /// Has the kernel side send what has changed; whether the ring buffer took all of it. If
    /// not, it goes on where it is called again.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn flush(&mut self) -> Result<bool, TracerError> {
        Ok(self.run("mt_flush", &[])? == 0)
    }

    /// Has the kernel side find the oldest live object of each account, and sum live bytes by age
    /// of those that hold at least `min_bytes` (`u64::MAX`: of none). How many of these found no
    /// room for it.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn scan_ages(&mut self, min_bytes: u64) -> Result<u32, TracerError> {
        self.run("mt_scan_ages", &[min_bytes])
    }

    /// Has the kernel side send what the last scan summed; whether the ring buffer took all of
    /// it. If not, it goes on where it is called again.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn send_ages(&mut self) -> Result<bool, TracerError> {
        Ok(self.run("mt_send_ages", &[])? == 0)
    }

    /// Clears a closed address space out of the live map.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn sweep(&mut self, space: u32) -> Result<(), TracerError> {
        self.run("mt_sweep", &[u64::from(space)]).map(drop)
    }

    /// Books that nobody sees any more what becomes of the tensors of an address space.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn forget_tensors(&mut self, space: u32) -> Result<(), TracerError> {
        self.run(FORGET, &whose(space, PointerClass::Tensor as u8)).map(drop)
    }

    /// Has every thread look up anew whether it is traced or left out. By a program, because
    /// the counters beside the generation move meanwhile.
    pub(super) fn raise_generation(&mut self) -> Result<(), TracerError> {
        self.run("mt_adjust", &[1, 0, u64::from(self.stopped)]).map(drop)
    }

    pub(super) fn run(
        &mut self,
        name: &'static str,
        arguments: &[u64],
    ) -> Result<u32, TracerError> {
        let program: &mut RawTracePoint = program(&mut self.ebpf, name)?;
        let fd = program.fd().map_err(|source| TracerError::Program { name, source })?;
        sys::bpf_prog_test_run(fd.as_fd(), arguments)
            .map_err(|source| TracerError::Run { name, source })
    }

    /// All loss counters, in the order of [`LossCause::ALL`]. How often each program was
    /// skipped by recursion comes from the kernel's own count.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn loss(&self) -> Result<Vec<LossCounter>, TracerError> {
        let map: Array<&MapData, Plain<LossCounter>> = typed(&self.ebpf, "mt_loss")?;
        let mut counters = Vec::with_capacity(LossCause::ALL.len());
        for cause in LossCause::ALL {
            let Plain(mut counter) = map
                .get(&(cause as u32), 0)
                .map_err(|source| TracerError::Map { name: "mt_loss", source })?;
            if cause == LossCause::Recursion {
                counter.count +=
                    self.program_fds().map(|(_, fd)| misses::recursion(fd.as_fd())).sum::<u64>();
            }
            counters.push(counter);
        }
        Ok(counters)
    }

    /// How long calls of each function took, those that nobody called left out.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn latencies(&self) -> Result<Vec<(FunctionId, Latency)>, TracerError> {
        let map: Array<&MapData, Plain<Latency>> = typed(&self.ebpf, "mt_latency")?;
        let mut all = Vec::new();
        for function in catalog::library_functions() {
            let Plain(latency) = map
                .get(&u32::from(function.id), 0)
                .map_err(|source| TracerError::Map { name: "mt_latency", source })?;
            if latency != Latency::default() {
                all.push((function.id, latency));
            }
        }
        Ok(all)
    }

    /// Run time of each program in seconds, where the kernel's statistics are on.
    #[must_use]
    pub fn run_seconds(&self) -> Vec<(String, f64)> {
        self.program_fds()
            .filter_map(|(name, fd)| Some((name.to_owned(), misses::run_seconds(fd.as_fd())?)))
            .collect()
    }

    fn program_fds(&self) -> impl Iterator<Item = (&str, &ProgramFd)> {
        self.ebpf.programs().filter_map(|(name, program)| {
            let fd = match program {
                Program::BtfTracePoint(program) => program.fd(),
                Program::FEntry(program) => program.fd(),
                Program::Iter(program) => program.fd(),
                Program::RawTracePoint(program) => program.fd(),
                _ => return None,
            };
            Some((name, fd.ok()?))
        })
    }
}
