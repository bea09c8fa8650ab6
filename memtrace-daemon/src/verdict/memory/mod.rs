//! What the memory of processes says, as /proc and NVML measure it: growth that no books
//! explain, fragmentation, address space for threads, device memory whose owner was left alone.
//!
//! It is careful: resident memory comes and goes for many reasons (page cache, huge pages that
//! are put together, an allocator that gives back late), so what is said held for windows.

mod process;
mod rules;
#[cfg(test)]
mod tests;

use rustc_hash::FxHashMap;

use super::VerdictConfig;
use super::measured::Said;
use crate::record::ProcessMemory;
use process::{About, Measured, Moment};

/// What the books have of a process when it is measured.
#[derive(Clone, Debug, Default)]
pub struct Booked {
    /// Its address space: after an exec another program is measured.
    pub space: u32,
    /// Whether it ran before memtrace was attached: then part of its memory is in no books.
    pub before_attach: bool,
    /// Live bytes of the malloc family; `None` where it is not traced.
    pub heap_bytes: Option<u64>,
    /// Calls of it that gave memory.
    pub heap_calls: u64,
    /// Live bytes of mappings; `None` where they are not traced.
    pub mmap_bytes: Option<u64>,
    /// Live bytes of page-locked and of managed memory.
    pub locked_bytes: u64,
    /// Bytes of all these that were seen and could not be followed.
    pub dropped_bytes: u64,
    /// Live bytes of device memory.
    pub device_bytes: u64,
    /// Device memory that NVML sees of it; `None` where there is no driver, or it does not tell.
    pub nvml_bytes: Option<u64>,
    /// When the first of it was allocated, monotonic ns.
    pub device_since_ns: Option<u64>,
    /// Calls so far that moved user memory of any kind.
    pub calls: u64,
    /// Its parent, where it has books too.
    pub parent: Option<ParentBooks>,
}

/// The parent of a process, as the books have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentBooks {
    /// Thread group id.
    pub tgid: u32,
    /// Name.
    pub comm: String,
    /// When its end was told, monotonic ns.
    pub ended_ns: Option<u64>,
}

impl Booked {
    /// Device memory that it holds, by the books or by NVML, whichever knows of more.
    fn held_on_device(&self) -> u64 {
        self.device_bytes.max(self.nvml_bytes.unwrap_or(0))
    }

    /// What anonymous memory the books know of. Reserved memory counts whole: better too much
    /// is explained than too little.
    fn explained_bytes(&self) -> u64 {
        let traced = [self.heap_bytes.unwrap_or(0), self.mmap_bytes.unwrap_or(0)];
        let other = [self.locked_bytes, self.dropped_bytes];
        traced.into_iter().chain(other).fold(0, u64::saturating_add)
    }
}

/// All processes that were measured.
#[derive(Debug)]
pub struct ProcessLevels {
    config: VerdictConfig,
    all: FxHashMap<u32, Measured>,
}

impl ProcessLevels {
    /// Nobody has been measured yet.
    #[must_use]
    pub fn new(config: VerdictConfig) -> Self {
        Self { config, all: FxHashMap::default() }
    }

    /// Takes a measurement of a process, with what the books have of it.
    pub fn observe(&mut self, now_ns: u64, memory: &ProcessMemory, booked: Booked) {
        let serial = memory.serial;
        if self.all.get(&serial).is_some_and(|known| known.ended) {
            return;
        }
        let now = Moment { ns: now_ns, memory: memory.clone(), booked };
        match self.all.get_mut(&serial) {
            Some(known) if known.now.booked.space == now.booked.space => {
                known.observe(&self.config, now);
            }
            _ => {
                self.all.insert(serial, Measured::new(&self.config, now));
            }
        }
    }

    /// A process has ended: what was said of its growth stays as it is. Returns its shared memory when it was
    /// last measured, bytes; `None` where that was told before, or it was never measured.
    pub fn end(&mut self, serial: u32) -> Option<u64> {
        let known = self.all.get_mut(&serial)?;
        let first = !std::mem::replace(&mut known.ended, true);
        known.opinions.retain(|opinion| opinion.about != About::Orphan);
        first.then_some(known.now.memory.shared_bytes)
    }

    /// Shared memory that running processes have in their page tables, bytes; what several
    /// have is counted for each.
    #[must_use]
    pub fn shared_bytes(&self) -> u64 {
        let running = self.all.values().filter(|known| !known.ended);
        running.map(|known| known.now.memory.shared_bytes).fold(0, u64::saturating_add)
    }

    /// Forgets all but these.
    pub fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        self.all.retain(|serial, _| keep(*serial));
    }

    /// The last measurement of a process.
    #[must_use]
    pub fn latest(&self, serial: u32) -> Option<&ProcessMemory> {
        self.all.get(&serial).map(|known| &known.now.memory)
    }

    /// Whether a closer look would tell more: it is new, or holds what nothing explains.
    #[must_use]
    pub fn wants_closer(&self, serial: u32) -> bool {
        self.all.get(&serial).is_none_or(|known| {
            known.now.booked.heap_bytes.is_some() && known.gap() >= known.worth(&self.config)
        })
    }

    /// By how much the anonymous memory of a process grew although the malloc family is traced and
    /// was never seen to be called, bytes; `None` where that is not so.
    #[must_use]
    pub fn silent(&self, serial: u32) -> Option<u64> {
        let known = self.all.get(&serial).filter(|known| !known.ended)?;
        let Booked { heap_bytes, heap_calls, .. } = &known.now.booked;
        let silent = heap_bytes.is_some() && *heap_calls == 0;
        Some(known.gap()).filter(|gap| silent && *gap >= known.worth(&self.config))
    }

    /// What is said now, in no particular order.
    pub fn said(&self, now_ns: u64, each: &mut dyn FnMut(Said)) {
        for (serial, known) in &self.all {
            for opinion in &known.opinions {
                each(known.say(&self.config, now_ns, *serial, opinion));
            }
        }
    }
}
