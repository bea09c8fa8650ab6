//! What is measured, not booked: memory of each process as /proc has it, and the host's, which
//! adds up. Nobody owns what drivers took, and huge pages that nobody uses.

use memtrace_daemon::record::{HostMemory, Parent, ProcessMemory, UnusedShared};

use super::{Kind, ProcessId, World};

/// What a process has when it starts, bytes.
const ANONYMOUS_BYTES: u64 = 256 << 20;
const VIRTUAL_BYTES: u64 = 2 << 30;
/// What the slab holds that nobody traces, bytes.
const SLAB_BYTES: u64 = 800 << 20;
/// Page cache that no process has mapped, and free pages on the lists of CPUs, bytes.
const CACHED_BYTES: u64 = 8 << 30;
const PAGE_LISTS_BYTES: u64 = 64 << 20;
/// Memory of the host, and what it can swap out, bytes.
const HOST_BYTES: u64 = 256 << 30;
const SWAP_BYTES: u64 = 64 << 30;

/// Memory that no process has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ownerless {
    /// Pages that drivers took, bytes; page-locked memory of who runs comes to it.
    pub driver_bytes: u64,
    /// Huge pages that nobody uses, bytes.
    pub huge_bytes: u64,
    /// Huge pages of the same pool that somebody uses, bytes: these have an owner.
    pub huge_used_bytes: u64,
    /// Shared memory of who has ended, bytes.
    pub shared_bytes: u64,
    /// Whether the driver keeps the page-locked memory of who ends.
    pub keeps_pinned: bool,
}

/// Memory of a process that starts.
pub(super) fn at_start(serial: u32) -> ProcessMemory {
    ProcessMemory {
        serial,
        anonymous_bytes: ANONYMOUS_BYTES,
        virtual_bytes: VIRTUAL_BYTES,
        threads: 1,
        ..ProcessMemory::default()
    }
}

impl World {
    /// What a process has beside its heap, to be changed; `None` if it is another world's.
    pub fn memory(&mut self, process: ProcessId) -> Option<&mut ProcessMemory> {
        self.memory.get_mut(process.0)
    }

    /// The kernel takes so many bytes of the pages of files from a process, or all that it has:
    /// they stay mapped.
    pub fn evict(&mut self, process: ProcessId, bytes: u64) {
        let memory = self.memory.get_mut(process.0);
        if let Some((memory, evicted)) = memory.zip(self.evicted.get_mut(process.0)) {
            let bytes = memory.file_bytes.min(bytes);
            memory.file_bytes -= bytes;
            *evicted += bytes;
        }
    }

    /// Truth: pages of files that the kernel has taken from a process, bytes.
    #[must_use]
    pub fn evicted(&self, process: ProcessId) -> u64 {
        self.evicted.get(process.0).copied().unwrap_or(0)
    }

    /// What nobody uses of shared memory, as the host says when it is asked: files of 1 MiB.
    #[must_use]
    pub fn unused_shared(&self) -> UnusedShared {
        let bytes = self.ownerless.shared_bytes;
        let count = bytes >> 20;
        let largest = (0..count.min(3)).map(|number| format!("/dev/shm/block_{number}"));
        UnusedShared {
            bytes,
            count,
            new_bytes: bytes,
            new_count: count,
            largest: largest.collect(),
            ..UnusedShared::default()
        }
    }

    /// Leaves what stays when a process ends.
    pub(super) fn leave(&mut self, process: ProcessId) {
        let shared_bytes = self.memory.get(process.0).map_or(0, |memory| memory.shared_bytes);
        self.ownerless.shared_bytes += shared_bytes;
        if self.ownerless.keeps_pinned {
            self.ownerless.driver_bytes += self.live(process, Kind::PINNED);
        }
    }

    /// The host as /proc/meminfo has it, the lists of the CPUs included.
    pub(super) fn host_memory(&mut self) -> HostMemory {
        let kernel = self.kernel_bytes();
        let grown = kernel + self.random.whole(0, 1 << 20);
        let all = self.process_memory();
        let sum = |of: fn(&ProcessMemory) -> u64| all.iter().map(of).sum::<u64>();
        let pinned: u64 = self.running().map(|process| self.live(process, Kind::PINNED)).sum();
        let Ownerless { driver_bytes, huge_bytes, huge_used_bytes, shared_bytes, keeps_pinned: _ } =
            self.ownerless;
        let shared_bytes = shared_bytes + sum(|one| one.shared_bytes);
        let mut memory = HostMemory {
            total_bytes: HOST_BYTES,
            available_bytes: HOST_BYTES / 2 - kernel.min(HOST_BYTES / 2),
            cached_bytes: CACHED_BYTES + shared_bytes + sum(|one| one.file_bytes),
            shared_bytes,
            anonymous_bytes: sum(|one| one.anonymous_bytes),
            swap_total_bytes: SWAP_BYTES,
            swap_free_bytes: SWAP_BYTES.saturating_sub(sum(|one| one.swap_bytes)),
            slab_bytes: SLAB_BYTES + grown,
            unreclaimable_bytes: SLAB_BYTES / 2 + grown,
            huge_pool_bytes: huge_bytes + huge_used_bytes,
            huge_free_bytes: huge_bytes,
            page_lists_bytes: Some(PAGE_LISTS_BYTES),
            ..HostMemory::default()
        };
        // What is neither owned nor taken is free. Registered memory is its process' own.
        let owned = memory.cached_bytes + memory.anonymous_bytes + memory.slab_bytes;
        let taken = driver_bytes + memory.huge_pool_bytes + pinned + PAGE_LISTS_BYTES;
        memory.free_bytes = HOST_BYTES.saturating_sub(owned + taken);
        memory
    }

    /// All that run, as /proc has them.
    pub(super) fn process_memory(&self) -> Vec<ProcessMemory> {
        let runs = |tgid: &u32| {
            self.running().filter_map(|one| self.entry(one)).any(|one| one.key.tgid == *tgid)
        };
        let seen = |process: ProcessId| {
            let (entry, memory) = (self.entry(process)?, self.memory.get(process.0)?);
            let tgid = Some(entry.parent_tgid).filter(runs).unwrap_or(1);
            let heap = self.live(process, Kind::HEAP);
            Some(ProcessMemory {
                parent: Some(Parent { tgid, comm: "service".to_owned() }),
                anonymous_bytes: memory.anonymous_bytes + heap,
                virtual_bytes: memory.virtual_bytes + heap,
                ..memory.clone()
            })
        };
        self.running().filter_map(seen).collect()
    }

    fn running(&self) -> impl Iterator<Item = ProcessId> {
        let all = self.processes.iter().enumerate();
        all.filter(|(_, entry)| !entry.ended()).map(|(number, _)| ProcessId(number))
    }

    /// What is live at the sites of a process of one kind, bytes.
    fn live(&self, process: ProcessId, kind: Kind) -> u64 {
        let sites = self.sites.iter().filter(|site| site.process == process && site.kind == kind);
        sites.map(|site| site.live_bytes).sum()
    }
}
