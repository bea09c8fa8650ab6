//! The loaded kernel side: its programs, its maps, and what user space may ask of it.
//!
//! Loads, attaches, reads and writes; must never interpret what the maps say.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya::{
    Btf, Ebpf, EbpfLoader, Pod,
    maps::{Array, HashMap, Map, MapData, MapError, Queue, RingBuf},
    programs::{BtfTracePoint, FEntry, Iter, Program, ProgramFd, RawTracePoint, UProbe},
};
use memtrace_common::{
    Account, AccountKey, CallLive, CallLiveKey, Control, Domain, FunctionSpec, LossCause,
    LossCounter, Policy, ProcessEntry, ProcessKey, Totals, TotalsKey, tunables,
};

use super::{
    btf::{ABSENT, KernelLayout, RcuFree},
    error::TracerError,
    iterate, misses,
    multi::MultiProgram,
    object::OBJECT,
    options::{Options, Subject},
    perf::{PerfProgram, UprobePmu},
    plain::Plain,
    probing::Probing,
    sys,
};
use crate::catalog;

/// Programs that user space runs.
const RUN_PROGRAMS: [&str; 4] = ["mt_flush", "mt_scan_ages", "mt_sweep", "mt_adjust"];
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

/// The loaded kernel side. Dropping it detaches the kernel programs and frees the maps that
/// nothing else holds.
pub struct Tracer {
    ebpf: Ebpf,
    layout: KernelLayout,
    /// Kernel programs that are attached.
    attached: Vec<&'static str>,
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
        first_values(&mut ebpf)?;
        for name in RUN_PROGRAMS {
            let program: &mut RawTracePoint = program(&mut ebpf, name)?;
            program.load().map_err(|source| TracerError::Program { name, source })?;
        }
        Ok(Self { ebpf, layout, attached: Vec::new(), sees_rcu_frees: false })
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
                .and_then(|()| program.attach())
                .map_err(|source| TracerError::Program { name, source })?;
            self.attached.push(name);
        }
        if options.books(Domain::Kernel) {
            self.attach_rcu_free(&btf);
        }
        Ok(())
    }

    /// Sees frees by kfree_rcu where the kernel lets us; where not, they show as addresses
    /// that are handed out again.
    fn attach_rcu_free(&mut self, btf: &Btf) {
        const NAME: &str = "mt_rcu_free";
        if self.layout.rcu_free != Some(RcuFree::Pointer) {
            return;
        }
        let attached = program::<FEntry>(&mut self.ebpf, NAME).and_then(|program| {
            program
                .load("kvfree_call_rcu", btf)
                .and_then(|()| program.attach())
                .map_err(|source| TracerError::Program { name: NAME, source })
        });
        match attached {
            Ok(_) => {
                self.sees_rcu_frees = true;
                self.attached.push(NAME);
            }
            Err(error) => tracing::info!("frees by kfree_rcu are not seen: {error}"),
        }
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
        let maps: Vec<(&str, BorrowedFd<'_>)> = self
            .ebpf
            .maps()
            .filter_map(|(name, map)| Some((name, map_data(map)?.fd().as_fd())))
            .collect();
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

    /// Has the kernel side send what has changed.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn flush(&mut self) -> Result<(), TracerError> {
        self.run("mt_flush", &[])
    }

    /// Has the kernel side find the oldest live object of each account.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn scan_ages(&mut self) -> Result<(), TracerError> {
        self.run("mt_scan_ages", &[])
    }

    /// Clears a closed address space out of the live map.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn sweep(&mut self, space: u32) -> Result<(), TracerError> {
        self.run("mt_sweep", &[u64::from(space)])
    }

    fn run(&mut self, name: &'static str, arguments: &[u64]) -> Result<(), TracerError> {
        let program: &mut RawTracePoint = program(&mut self.ebpf, name)?;
        let fd = program.fd().map_err(|source| TracerError::Program { name, source })?;
        sys::bpf_prog_test_run(fd.as_fd(), arguments)
            .map(drop)
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

    /// The next allocation id to be given, and the ids of all live library allocations, sorted.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn live_ids(&self) -> Result<(u64, Vec<u64>), TracerError> {
        let next_id = self.control()?.next_id;
        let map: HashMap<&MapData, Plain<CallLiveKey>, Plain<CallLive>> =
            typed(&self.ebpf, "mt_clive")?;
        // An entry that vanishes while we read was freed: not live.
        let mut ids: Vec<u64> = map.iter().filter_map(|entry| Some(entry.ok()?.1.0.id)).collect();
        ids.sort_unstable();
        Ok((next_id, ids))
    }

    fn control(&self) -> Result<Control, TracerError> {
        let map: Array<&MapData, Plain<Control>> = typed(&self.ebpf, "mt_control")?;
        map.get(&0, 0)
            .map(|control| control.0)
            .map_err(|source| TracerError::Map { name: "mt_control", source })
    }

    /// Has every thread look up anew whether it is traced or left out. By a program, because
    /// the counters beside the generation move meanwhile.
    fn raise_generation(&mut self) -> Result<(), TracerError> {
        self.run("mt_adjust", &[1, 0])
    }

    /// Follows a call site exactly from now on: its kernel stacks become sites of their own.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn promote(&mut self, call_site: u64) -> Result<(), TracerError> {
        insert(&mut self.ebpf, "mt_promoted", call_site, 1_u32)?;
        self.run("mt_adjust", &[0, 1])
    }

    /// Follows a thread group, and from now on its children. It is on the books from here on,
    /// whether or not it ever does anything.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn trace(&mut self, tgid: u32) -> Result<(), TracerError> {
        insert(&mut self.ebpf, "mt_traced", tgid, 1_u32)?;
        self.raise_generation()?;
        iterate::run(program(&mut self.ebpf, NOTE_TRACED)?)
            .map_err(|source| TracerError::Run { name: NOTE_TRACED, source })
    }

    /// Says whether a subject is booked or left out.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn set_policy(&mut self, subject: &Subject, include: bool) -> Result<(), TracerError> {
        let said = said(include);
        match subject {
            Subject::Comm(comm) => {
                let mut key = [0_u8; 16];
                // The kernel keeps 15 bytes of a name.
                for (to, from) in key.iter_mut().take(15).zip(comm.bytes()) {
                    *to = from;
                }
                insert(&mut self.ebpf, "mt_policy_comm", key, said)?;
            }
            Subject::Uid(uid) => insert(&mut self.ebpf, "mt_policy_uid", *uid, said)?,
        }
        self.raise_generation()
    }

    /// Says whether one process is booked or left out.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn set_process_policy(
        &mut self,
        key: ProcessKey,
        include: bool,
    ) -> Result<(), TracerError> {
        insert(&mut self.ebpf, "mt_policy_proc", Plain(key), said(include))?;
        self.raise_generation()
    }

    /// Gives the slot of an account back whose process has ended, unless it has live memory.
    /// Returns the account as it was last; `None` if the slot is another's by now.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn delete_account(
        &mut self,
        slot: u32,
        key: &AccountKey,
    ) -> Result<Option<Account>, TracerError> {
        const NAME: &str = "mt_accounts";
        let map_error = |source| TracerError::Map { name: NAME, source };
        let accounts: Array<&MapData, Plain<Account>> = typed(&self.ebpf, NAME)?;
        let Plain(account) = accounts.get(&slot, 0).map_err(map_error)?;
        if account.key != *key {
            return Ok(None);
        }
        if account.live().is_zero() {
            remove::<_, u32>(&mut self.ebpf, "mt_index", Plain(*key))?;
            let mut accounts: Array<&mut MapData, Plain<Account>> =
                typed_mut(&mut self.ebpf, NAME)?;
            accounts.set(slot, Plain(Account::default()), 0).map_err(map_error)?;
            let mut free: Queue<&mut MapData, u32> = typed_mut(&mut self.ebpf, "mt_slots")?;
            free.push(slot, 0).map_err(|source| TracerError::Map { name: "mt_slots", source })?;
        }
        Ok(Some(account))
    }

    /// Deletes a row of totals of a closed address space, and returns it as it was last.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn delete_totals(&mut self, key: &TotalsKey) -> Result<Option<Totals>, TracerError> {
        const NAME: &str = "mt_totals";
        let map: HashMap<&MapData, Plain<TotalsKey>, Plain<Totals>> = typed(&self.ebpf, NAME)?;
        let totals = match map.get(&Plain(*key), 0) {
            Ok(Plain(totals)) => totals,
            Err(MapError::KeyNotFound) => return Ok(None),
            Err(source) => return Err(TracerError::Map { name: NAME, source }),
        };
        remove::<_, Plain<Totals>>(&mut self.ebpf, NAME, Plain(*key))?;
        Ok(Some(totals))
    }

    /// Forgets a process that has ended and whose books have been folded.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn forget_process(&mut self, key: &ProcessKey) -> Result<(), TracerError> {
        remove::<_, u32>(&mut self.ebpf, "mt_policy_proc", Plain(*key))?;
        remove::<_, u32>(&mut self.ebpf, "mt_traced", key.tgid)?;
        remove::<_, Plain<ProcessEntry>>(&mut self.ebpf, "mt_processes", Plain(*key))
    }
}

const fn said(include: bool) -> u32 {
    if include { Policy::INCLUDE } else { Policy::EXCLUDE }
}

/// Values of the kernel side's globals.
fn globals(layout: &KernelLayout, options: &Options) -> Vec<(&'static str, u64)> {
    let limit = |entries: u32| u64::from(entries) * tunables::LIVE_FILL_PERCENT / 100;
    let mut globals = layout.globals();
    // A position that the kernel does not have belongs to a program that is not loaded.
    for (_, value) in &mut globals {
        if *value == ABSENT {
            *value = 0;
        }
    }
    globals.extend([
        ("SELF_TGID", u64::from(std::process::id())),
        ("ONLY_TRACED", u64::from(options.only_traced)),
        ("EXACT", u64::from(options.exact)),
        ("POLICY_ACTIVE", u64::from(options.policy_active)),
        ("POLICY_DEFAULT_EXCLUDE", u64::from(options.policy_default_exclude)),
        ("SAMPLE_QUANTUM", options.sample_quantum_bytes),
        ("AGE_SHIFT", tunables::AGE_SHIFT),
        ("KERNEL_LIVE_LIMIT", limit(options.sizes.kernel_live_entries)),
        ("CALL_LIVE_LIMIT", limit(options.sizes.call_live_entries)),
        ("ACCOUNT_LIMIT", u64::from(options.sizes.accounts)),
        ("LIVE_BATCH", options.live_batch()),
    ]);
    globals
}

/// First values of the counters, the descriptions of functions, and the rows of totals that
/// take what finds no row.
fn first_values(ebpf: &mut Ebpf) -> Result<(), TracerError> {
    let map = |name| move |source| TracerError::Map { name, source };
    let first = Control { next_serial: 1, next_id: 1, next_slot: 1, ..Control::default() };
    let mut control: Array<&mut MapData, Plain<Control>> = typed_mut(ebpf, "mt_control")?;
    control.set(0, Plain(first), 0).map_err(map("mt_control"))?;
    let mut functions: Array<&mut MapData, Plain<FunctionSpec>> = typed_mut(ebpf, "mt_functions")?;
    for function in catalog::library_functions() {
        functions
            .set(u32::from(function.id), Plain(function.spec), 0)
            .map_err(map("mt_functions"))?;
    }
    for function in catalog::library_functions() {
        let key = TotalsKey { space: 0, function: u32::from(function.id) };
        insert(ebpf, "mt_totals", Plain(key), Plain(Totals::default()))?;
    }
    Ok(())
}

/// The loaded program of this name and type.
fn program<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, TracerError>
where
    &'a mut P: TryFrom<&'a mut Program>,
{
    ebpf.program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or(TracerError::Absent(name))
}

/// A map, to be read.
fn typed<'a, M>(ebpf: &'a Ebpf, name: &'static str) -> Result<M, TracerError>
where
    M: TryFrom<&'a Map, Error = MapError>,
{
    let map = ebpf.map(name).ok_or(TracerError::Absent(name))?;
    M::try_from(map).map_err(|source| TracerError::Map { name, source })
}

/// A map, to be written.
fn typed_mut<'a, M>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<M, TracerError>
where
    M: TryFrom<&'a mut Map, Error = MapError>,
{
    let map = ebpf.map_mut(name).ok_or(TracerError::Absent(name))?;
    M::try_from(map).map_err(|source| TracerError::Map { name, source })
}

fn insert<K: Pod, V: Pod>(
    ebpf: &mut Ebpf,
    name: &'static str,
    key: K,
    value: V,
) -> Result<(), TracerError> {
    let mut map: HashMap<&mut MapData, K, V> = typed_mut(ebpf, name)?;
    map.insert(key, value, 0).map_err(|source| TracerError::Map { name, source })
}

/// Removes a key; that it is gone already is no error.
fn remove<K: Pod, V: Pod>(ebpf: &mut Ebpf, name: &'static str, key: K) -> Result<(), TracerError> {
    let mut map: HashMap<&mut MapData, K, V> = typed_mut(ebpf, name)?;
    match map.remove(&key) {
        Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error))
            if error.io_error.raw_os_error() == Some(libc::ENOENT) =>
        {
            Ok(())
        }
        Err(source) => Err(TracerError::Map { name, source }),
    }
}

/// What is behind a map of any type that memtrace has.
const fn map_data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::PerCpuArray(data)
        | Map::Queue(data)
        | Map::RingBuf(data)
        | Map::Unsupported(data) => Some(data),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
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
        tracer.attach_kernel(&options).unwrap();
        tracer.flush().unwrap();
        tracer.scan_ages().unwrap();
        tracer.sweep(77).unwrap();
        tracer.trace(std::process::id()).unwrap();
        assert_eq!(tracer.loss().unwrap().len(), LossCause::ALL.len());
    }
}
