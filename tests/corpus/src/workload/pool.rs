//! A caching allocator: memory goes back to the pool and never to where it came from.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::{Life, Sizes, Workload};
use crate::load::Load;
use crate::world::{SiteId, World};

/// The pool and its users.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Where the pool takes its memory.
    pub site: SiteId,
    /// Requests a second at load 1.
    pub rate: f64,
    /// Their sizes.
    pub sizes: Sizes,
    /// How long they use it.
    pub life: Life,
    /// Bytes that sizes are rounded up to a multiple of; 0 rounds to powers of two.
    pub round: u64,
    /// Requests.
    pub load: Load,
    free: BTreeMap<u64, u32>,
    used: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub const fn new(
        site: SiteId,
        rate: f64,
        sizes: Sizes,
        life: Life,
        round: u64,
        load: Load,
    ) -> Self {
        Self {
            site,
            rate,
            sizes,
            life,
            round,
            load,
            free: BTreeMap::new(),
            used: BinaryHeap::new(),
        }
    }
}

impl Workload for Pool {
    fn second(&mut self, world: &mut World) {
        let level = world.level(self.site, &self.load);
        for at_ns in world.arrivals(self.rate * level) {
            while let Some(Reverse((end_ns, bytes))) = self.used.peek().copied()
                && end_ns <= at_ns
            {
                self.used.pop();
                *self.free.entry(bytes).or_default() += 1;
            }
            let wanted = self.sizes.draw(&mut world.random).max(1);
            let rounded = match self.round {
                0 => wanted.next_power_of_two(),
                round => wanted.div_ceil(round) * round,
            };
            let best = self.free.range(rounded..).next().map(|(bytes, _)| *bytes);
            let bytes = match best {
                Some(bytes) => {
                    if let Some(count) = self.free.get_mut(&bytes) {
                        *count -= 1;
                        if *count == 0 {
                            self.free.remove(&bytes);
                        }
                    }
                    bytes
                }
                None => {
                    world.take(self.site, rounded, at_ns);
                    rounded
                }
            };
            if let Some(end_ns) = self.life.end(at_ns, &mut world.random) {
                self.used.push(Reverse((end_ns, bytes)));
            }
        }
    }
}
