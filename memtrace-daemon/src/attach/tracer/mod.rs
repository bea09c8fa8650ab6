//! The loaded kernel side: its programs, its maps, and what user space may ask of it.
//!
//! Loads, attaches, reads and writes; must never interpret what the maps say.

mod access;
mod books;
#[cfg(feature = "bpf-log")]
mod bpf_log;
mod first;
mod iterate;
mod pace;
mod policy;
mod run;
mod steps;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use access::{map_data, program};
use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{HashMap, MapData, RingBuf},
    programs::{
        BtfTracePoint, FEntry, Iter, RawTracePoint, UProbe, fentry::FEntryLink,
        tp_btf::BtfTracePointLink,
    },
};
use first::{first_values, globals};
use memtrace_common::Domain;
pub use pace::Paces;
pub use steps::StepMap;

use super::{
    btf::{KernelLayout, RcuFree},
    error::TracerError,
    multi::MultiProgram,
    object::OBJECT,
    options::Options,
    perf::{PerfProgram, UprobePmu},
    probing::Probing,
    usdt::{Firing, FiringProgram, PointMap},
};

/// Programs that user space runs.
const RUN_PROGRAMS: [&str; 6] =
    ["mt_flush", "mt_scan_ages", "mt_send_ages", "mt_sweep", "mt_forget", "mt_adjust"];
/// Process events, always attached.
const LIFECYCLE: [(&str, &str); 4] = [
    ("mt_task_free", "sched_process_free"),
    ("mt_exec", "sched_process_exec"),
    ("mt_fork", "sched_process_fork"),
    ("mt_exit", "sched_process_exit"),
];
/// Run over all tasks when user space has said whom to trace.
const NOTE_TRACED: &str = "mt_note_traced";
/// The slab allocator. Frees first: what is allocated is followed from its first moment.
const KERNEL: [(&str, &str); 3] =
    [("mt_kfree", "kfree"), ("mt_kfree_again", "kfree"), ("mt_kmalloc", "kmalloc")];
/// Named slab caches.
const KERNEL_CACHES: [(&str, &str); 2] =
    [("mt_cache_free", "kmem_cache_free"), ("mt_cache_alloc", "kmem_cache_alloc")];

/// Sees frees by kfree_rcu.
const RCU_FREE: &str = "mt_rcu_free";

/// Holds a kernel program where it is attached; dropping it detaches.
#[derive(Debug)]
enum KernelLink {
    /// To a tracepoint.
    Tracepoint(#[expect(dead_code, reason = "held, never read")] BtfTracePointLink),
    /// To the entry of a function.
    Entry(#[expect(dead_code, reason = "held, never read")] FEntryLink),
}

/// The loaded kernel side. Dropping it detaches the kernel programs and frees the maps that
/// nothing else holds.
pub struct Tracer {
    ebpf: Ebpf,
    layout: KernelLayout,
    /// Kernel programs that are attached, and what holds them there.
    attached: Vec<&'static str>,
    links: Vec<KernelLink>,
    /// Kernel programs that are loaded, in the order in which they are attached.
    loaded: Vec<&'static str>,
    /// Library functions are not looked at.
    stopped: bool,
    /// Whether frees by kfree_rcu are seen.
    sees_rcu_frees: bool,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Tracer").field("attached", &self.attached).finish_non_exhaustive()
    }
}

impl Tracer {
    /// Loads maps and programs; attaches nothing.
    ///
    /// # Errors
    /// What is missing on this kernel, or what it said.
    pub fn load(options: &Options) -> Result<Self, TracerError> {
        let layout = KernelLayout::read()?;
        let globals = globals(&layout, options);
        let mut loader = EbpfLoader::new();
        loader.allow_unsupported_maps();
        for (name, value) in &globals {
            // Some belong to programs that are not built in.
            loader.override_global(name, value, false);
        }
        for (name, entries) in options.sizes.map_entries() {
            loader.map_max_entries(name, entries);
        }
        let mut ebpf = loader.load(OBJECT).map_err(TracerError::Object)?;
        #[cfg(feature = "bpf-log")]
        bpf_log::pass_on(&mut ebpf);
        first_values(&mut ebpf, options)?;
        for name in RUN_PROGRAMS {
            let program: &mut RawTracePoint = program(&mut ebpf, name)?;
            program.load().map_err(|source| TracerError::Program { name, source })?;
        }
        let (attached, links, loaded) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { ebpf, layout, attached, links, loaded, stopped: false, sees_rcu_frees: false })
    }

    /// Attaches to process events, and to the slab allocator where the kernel domain is booked.
    ///
    /// # Errors
    /// The program that was refused, and what the kernel said.
    pub fn attach_kernel(&mut self, options: &Options) -> Result<(), TracerError> {
        let btf = Btf::from_sys_fs()
            .map_err(|source| TracerError::Program { name: "mt_exec", source: source.into() })?;
        let mut programs = LIFECYCLE.to_vec();
        if options.books(Domain::Kernel) {
            programs.extend(KERNEL);
            if options.kmem_cache {
                programs.extend(KERNEL_CACHES);
            }
        }
        if options.only_traced {
            let program: &mut Iter = program(&mut self.ebpf, NOTE_TRACED)?;
            program
                .load("task", &btf)
                .map_err(|source| TracerError::Program { name: NOTE_TRACED, source })?;
        }
        for (name, tracepoint) in programs {
            let program: &mut BtfTracePoint = program(&mut self.ebpf, name)?;
            program
                .load(tracepoint, &btf)
                .map_err(|source| TracerError::Program { name, source })?;
            self.loaded.push(name);
        }
        self.attach_loaded()?;
        if options.books(Domain::Kernel) && self.layout.rcu_free == Some(RcuFree::Pointer) {
            let loaded = program::<FEntry>(&mut self.ebpf, RCU_FREE).and_then(|program| {
                let loaded = program.load("kvfree_call_rcu", &btf);
                loaded.map_err(|source| TracerError::Program { name: RCU_FREE, source })
            });
            match loaded.and_then(|()| self.attach_rcu_free()) {
                Ok(()) => self.sees_rcu_frees = true,
                Err(error) => tracing::info!("frees by kfree_rcu are not seen: {error}"),
            }
        }
        Ok(())
    }

    /// Attaches the loaded tracepoint programs.
    fn attach_loaded(&mut self) -> Result<(), TracerError> {
        for name in &self.loaded {
            let program: &mut BtfTracePoint = program(&mut self.ebpf, name)?;
            let link = program.attach().and_then(|id| program.take_link(id));
            let link = link.map_err(|source| TracerError::Program { name, source })?;
            self.links.push(KernelLink::Tracepoint(link));
            self.attached.push(name);
        }
        Ok(())
    }

    /// Sees frees by kfree_rcu where the kernel lets us; where not, they show as addresses
    /// that are handed out again.
    fn attach_rcu_free(&mut self) -> Result<(), TracerError> {
        let program: &mut FEntry = program(&mut self.ebpf, RCU_FREE)?;
        let link = program.attach().and_then(|id| program.take_link(id));
        let link = link.map_err(|source| TracerError::Program { name: RCU_FREE, source })?;
        self.links.push(KernelLink::Entry(link));
        self.attached.push(RCU_FREE);
        Ok(())
    }

    /// Stops at once: library functions are not looked at any more, and nothing in the kernel
    /// runs a program of ours. The maps keep what they have.
    ///
    /// # Errors
    /// What the kernel said; the programs are detached all the same.
    pub fn stop(&mut self) -> Result<(), TracerError> {
        self.stopped = true;
        let said = self.raise_generation();
        self.links.clear();
        self.attached.clear();
        said
    }

    /// Goes on where [`Self::stop`] stopped.
    ///
    /// # Errors
    /// The program that was refused, and what the kernel said.
    pub fn resume(&mut self) -> Result<(), TracerError> {
        self.stopped = false;
        self.raise_generation()?;
        self.attach_loaded()?;
        if self.sees_rcu_frees { self.attach_rcu_free() } else { Ok(()) }
    }

    /// Whether frees by kfree_rcu are seen.
    #[must_use]
    pub const fn sees_rcu_frees(&self) -> bool {
        self.sees_rcu_frees
    }

    /// Kernel programs that are attached.
    #[must_use]
    pub fn attached(&self) -> &[&'static str] {
        &self.attached
    }

    /// Loads the programs for library functions: for `uprobe_multi`, or for perf events where
    /// the kernel has none.
    ///
    /// # Errors
    /// What the kernel said to both.
    pub fn probing(&mut self) -> Result<Probing, TracerError> {
        const ENTRY: &str = "mt_call_entry";
        const RETURN: &str = "mt_call_return";
        let maps = self.map_descriptors();
        let load = |name| MultiProgram::load(OBJECT, name, &maps);
        let multi = match load(ENTRY).and_then(|entry| Ok((entry, load(RETURN)?))) {
            Ok((entry, returning)) => return Ok(Probing::Multi { entry, returning }),
            Err(error) => error,
        };
        tracing::info!("uprobe_multi is not to be had, perf events are used: {multi}");
        let pmu = UprobePmu::read()?;
        let entry = PerfProgram::new(pmu, self.load_uprobe(ENTRY)?);
        let returning = PerfProgram::new(pmu, self.load_uprobe(RETURN)?);
        Ok(Probing::Perf { entry, returning })
    }

    /// Loads the program for static probes, in the same way as `probing` was. Its map can be taken
    /// once.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn firing(&mut self, probing: &Probing) -> Result<Firing, TracerError> {
        const PROGRAM: &str = "mt_usdt";
        const MAP: &str = "mt_usdt_points";
        let program = match probing {
            Probing::Multi { .. } => {
                let program = MultiProgram::load(OBJECT, PROGRAM, &self.map_descriptors());
                FiringProgram::Multi(program.map_err(TracerError::Multi)?)
            }
            Probing::Perf { .. } => {
                let pmu = UprobePmu::read()?;
                FiringProgram::Perf(PerfProgram::new(pmu, self.load_uprobe(PROGRAM)?))
            }
        };
        let map = self.ebpf.take_map(MAP).ok_or(TracerError::Absent(MAP))?;
        let map =
            HashMap::try_from(map).map_err(|source| TracerError::Map { name: MAP, source })?;
        Ok(Firing::new(program, PointMap::new(map)))
    }

    /// All maps by name, as long as none has been taken.
    fn map_descriptors(&self) -> Vec<(&str, BorrowedFd<'_>)> {
        let maps = self.ebpf.maps();
        maps.filter_map(|(name, map)| Some((name, map_data(map)?.fd().as_fd()))).collect()
    }

    fn load_uprobe(&mut self, name: &'static str) -> Result<OwnedFd, TracerError> {
        let program: &mut UProbe = program(&mut self.ebpf, name)?;
        let fd = program.load().and_then(|()| Ok(program.fd()?.as_fd().try_clone_to_owned()));
        fd.map_err(|source| TracerError::Program { name, source })?
            .map_err(|source| TracerError::Run { name, source })
    }

    /// The ring buffer, once.
    ///
    /// # Errors
    /// If it was taken before.
    pub fn take_ring(&mut self) -> Result<RingBuf<MapData>, TracerError> {
        const NAME: &str = "mt_events";
        let map = self.ebpf.take_map(NAME).ok_or(TracerError::Absent(NAME))?;
        RingBuf::try_from(map).map_err(|source| TracerError::Map { name: NAME, source })
    }
}

impl Tracer {
    /// The map of learned steps, once, and not before [`Self::probing`].
    ///
    /// # Errors
    /// If it was taken before.
    pub fn take_steps(&mut self) -> Result<StepMap, TracerError> {
        const NAME: &str = "mt_steps";
        let map = self.ebpf.take_map(NAME).ok_or(TracerError::Absent(NAME))?;
        let map =
            HashMap::try_from(map).map_err(|source| TracerError::Map { name: NAME, source })?;
        Ok(StepMap::new(map))
    }
}

#[cfg(test)]
mod tests {
    use memtrace_common::LossCause;

    use super::*;

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn the_kernel_accepts_every_program() {
        let domains = vec![Domain::Kernel, Domain::Cuda];
        let options = Options { kmem_cache: true, only_traced: true, ..Options::new(domains, 2) };
        let mut tracer = Tracer::load(&options).unwrap();
        let probing = tracer.probing().unwrap();
        assert!(matches!(probing, Probing::Multi { .. }));
        tracer.load_uprobe("mt_call_entry").unwrap();
        tracer.load_uprobe("mt_call_return").unwrap();
        tracer.load_uprobe("mt_usdt").unwrap();
        tracer.firing(&probing).unwrap();
        tracer.attach_kernel(&options).unwrap();
        tracer.flush().unwrap();
        assert_eq!(tracer.scan_ages(0).unwrap(), 0);
        assert!(tracer.send_ages().unwrap());
        tracer.sweep(77).unwrap();
        tracer.forget_tensors(77).unwrap();
        tracer.trace(std::process::id()).unwrap();
        assert_eq!(tracer.loss().unwrap().len(), LossCause::ALL.len());
    }
}
