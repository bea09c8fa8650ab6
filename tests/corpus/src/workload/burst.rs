//! Many objects at once, every now and then: batch jobs, model loads, shape changes.

use super::{Life, Sizes, Workload};
use crate::load::Load;
use crate::world::{SECOND, SiteId, World};

/// Bursts at one site.
#[derive(Clone, Debug)]
pub struct Burst {
    /// Where.
    pub site: SiteId,
    /// The first one, seconds.
    pub first: u64,
    /// Seconds between two: from, to.
    pub every: (f64, f64),
    /// Objects of one.
    pub count: u64,
    /// How large.
    pub sizes: Sizes,
    /// How long they live, after the burst.
    pub life: Life,
    /// How many of each burst are lost.
    pub lost: u64,
    /// How many bursts there are.
    pub bursts: u64,
    /// Over how many seconds a burst is spread.
    pub over: f64,
    /// When there is nothing to do there are none.
    pub load: Load,
}

impl Burst {
    /// Bursts without end that leave nothing behind.
    #[must_use]
    pub const fn new(
        site: SiteId,
        every: (f64, f64),
        count: u64,
        sizes: Sizes,
        life: Life,
    ) -> Self {
        Self {
            site,
            first: 0,
            every,
            count,
            sizes,
            life,
            lost: 0,
            bursts: u64::MAX,
            over: 1.0,
            load: Load::constant(),
        }
    }
}

impl Workload for Burst {
    fn second(&mut self, world: &mut World) {
        let second = world.second();
        if second < self.first || self.bursts == 0 {
            return;
        }
        let gap = world.random.between(self.every.0, self.every.1).max(1.0);
        self.first = second + gap as u64;
        if self.load.level(second, &mut world.random) <= 0.0 {
            return;
        }
        self.bursts -= 1;
        let begin_ns = world.now_ns();
        let step_ns = (self.over * SECOND as f64) as u64 / (self.count + 1);
        for number in 0..self.count {
            let bytes = self.sizes.draw(&mut world.random);
            let at_ns = begin_ns + step_ns * (number + 1);
            let block = world.take(self.site, bytes, at_ns);
            if number < self.lost {
                world.lose(block);
            } else if let Some(end_ns) = self.life.end(at_ns, &mut world.random) {
                world.give(block, end_ns);
            }
        }
    }
}
