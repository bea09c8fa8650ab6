//! Memory that is in no books: it shows in what is measured, and no call tells of it.

use memtrace_daemon::record::ProcessMemory;

use super::Workload;
use crate::load::Load;
use crate::world::{Ownerless, ProcessId, World};

/// What grows, and how: by so many steps, of so many bytes together.
#[derive(Clone, Copy, Debug)]
pub enum Grows {
    /// A process.
    Process(ProcessId, fn(&mut ProcessMemory, u64, u64)),
    /// What the kernel has taken of the pages of files that a process has mapped.
    Evicted(ProcessId),
    /// What no process has.
    Host(fn(&mut Ownerless, u64, u64)),
}

/// Memory that comes in steps, and stays.
#[derive(Clone, Debug)]
pub struct Swell {
    /// Whose.
    pub grows: Grows,
    /// Steps a second at load 1.
    pub rate: f64,
    /// Bytes of a step.
    pub step: u64,
    /// How much there is to do.
    pub load: Load,
}

impl Workload for Swell {
    fn second(&mut self, world: &mut World) {
        let level = self.load.level(world.second(), &mut world.random);
        let count = world.random.poisson(self.rate * level);
        let bytes = count * self.step;
        match self.grows {
            Grows::Process(process, grow) => {
                if let Some(memory) = world.memory(process) {
                    grow(memory, count, bytes);
                }
            }
            Grows::Evicted(process) => world.evict(process, bytes),
            Grows::Host(grow) => grow(&mut world.ownerless, count, bytes),
        }
    }
}

/// Memory that comes and goes: of a process, or what drivers take.
#[derive(Clone, Debug)]
pub struct Noise {
    /// Whose; `None` for the drivers.
    pub process: Option<ProcessId>,
    /// How much: a standard deviation, bytes.
    pub bytes: f64,
    /// What there is of it now, bytes.
    pub now: u64,
}

impl Workload for Noise {
    fn second(&mut self, world: &mut World) {
        let next = (self.bytes * world.random.normal().abs()) as u64;
        let level = match self.process {
            Some(process) => world.memory(process).map(|memory| &mut memory.anonymous_bytes),
            None => Some(&mut world.ownerless.driver_bytes),
        };
        if let Some(level) = level {
            *level = level.saturating_sub(self.now) + next;
            self.now = next;
        }
    }
}
