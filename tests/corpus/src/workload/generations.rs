//! A program that is started again each time it ends.

use super::{Life, Sizes, Workload};
use crate::load::Load;
use crate::world::{Kind, ProcessId, SiteId, World};

/// Generations of one program.
#[derive(Clone, Debug)]
pub struct Generations {
    /// Its name and cgroup.
    pub name: (&'static str, u64),
    /// Where it takes memory, in the present generation.
    pub site: SiteId,
    /// The present generation; `None` between two.
    pub process: Option<ProcessId>,
    /// Objects a second at load 1.
    pub rate: f64,
    /// Their sizes.
    pub sizes: Sizes,
    /// How long they live.
    pub life: Life,
    /// Share that is lost.
    pub lost: f64,
    /// A generation ends at so many live bytes, or after so many seconds.
    pub ends: (u64, u64),
    /// Seconds until the next one.
    pub gap: u64,
    /// How much there is to do.
    pub load: Load,
    /// When the present generation, or the gap, began.
    pub since: u64,
}

impl Generations {
    /// The first generation, started now.
    #[must_use]
    pub fn new(world: &mut World, name: (&'static str, u64), kind: Kind, sizes: Sizes) -> Self {
        let process = world.start(name.0, name.1);
        let site = world.site(process, kind, 1);
        Self {
            name,
            site,
            process: Some(process),
            rate: 1.0,
            sizes,
            life: Life::Ever,
            lost: 0.0,
            ends: (u64::MAX, u64::MAX),
            gap: 2,
            load: Load::constant(),
            since: world.second(),
        }
    }
}

impl Workload for Generations {
    fn second(&mut self, world: &mut World) {
        let second = world.second();
        let age = second - self.since;
        let Some(process) = self.process else {
            if age >= self.gap {
                let process = world.start(self.name.0, self.name.1);
                self.site = world.twin(self.site, process);
                self.process = Some(process);
                self.since = second;
            }
            return;
        };
        let live = world.look(self.site).map_or(0, |site| site.live_bytes);
        if live >= self.ends.0 || age >= self.ends.1 {
            world.end(process);
            self.process = None;
            self.since = second;
            return;
        }
        let level = self.load.level(second, &mut world.random);
        for at_ns in world.arrivals(self.rate * level) {
            let bytes = self.sizes.draw(&mut world.random);
            let block = world.take(self.site, bytes, at_ns);
            if self.lost > 0.0 && world.random.chance(self.lost) {
                world.lose(block);
            } else if let Some(end_ns) = self.life.end(at_ns, &mut world.random) {
                world.give(block, end_ns);
            }
        }
    }
}
