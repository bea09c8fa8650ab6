//! Caches: keys that recur or do not, with a bound or without.

use std::collections::{BTreeMap, VecDeque};

use super::{Sizes, Workload};
use crate::load::Load;
use crate::world::{Block, SECOND, SiteId, World};

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub enum Keys {
    /// So many keys, each as likely as any other.
    Recurring(u64),
    /// So many keys, the first ones more likely.
    Skewed(u64),
    /// A new key each time.
    Unique,
}

/// A cache.
#[derive(Clone, Debug)]
pub struct Cache {
    site: SiteId,
    rate: f64,
    sizes: Sizes,
    keys: Keys,
    load: Load,
    /// Most bytes, and most entries.
    pub limit: (u64, usize),
    /// Whether what is asked for is kept longer.
    pub least_recent: bool,
    /// How long an entry is kept, seconds.
    pub residence: Option<f64>,
    /// The second from which on keys are new each time, and nothing is ever evicted.
    pub unbounded_from: u64,
    /// Share of evictions that forget to free.
    pub forgets: f64,
    /// Oldest first: (key, when it came or was last asked for, entry).
    entries: VecDeque<(u64, Block)>,
    held: BTreeMap<u64, u64>,
    bytes: u64,
    next: u64,
}

impl Cache {
    /// A cache without a bound.
    #[must_use]
    pub const fn new(site: SiteId, rate: f64, sizes: Sizes, keys: Keys, load: Load) -> Self {
        Self {
            site,
            rate,
            sizes,
            keys,
            load,
            limit: (u64::MAX, usize::MAX),
            least_recent: false,
            residence: None,
            unbounded_from: u64::MAX,
            forgets: 0.0,
            entries: VecDeque::new(),
            held: BTreeMap::new(),
            bytes: 0,
            next: 1 << 40,
        }
    }

    fn key(&mut self, world: &mut World) -> u64 {
        match self.keys {
            Keys::Recurring(count) => world.random.whole(0, count),
            Keys::Skewed(count) => {
                let unit = world.random.unit();
                (unit * unit * unit * count as f64) as u64
            }
            Keys::Unique => {
                self.next += 1;
                self.next
            }
        }
    }

    fn evict(&mut self, world: &mut World, at_ns: u64) {
        if let Some((key, block)) = self.entries.pop_front() {
            self.held.remove(&key);
            self.bytes -= block.bytes;
            if self.forgets > 0.0 && world.random.chance(self.forgets) {
                world.lose_bytes(block.site, block.bytes, at_ns);
            } else {
                world.give(block, at_ns);
            }
        }
    }
}

impl Workload for Cache {
    fn second(&mut self, world: &mut World) {
        let second = world.second();
        let unbounded = second >= self.unbounded_from;
        if unbounded {
            self.keys = Keys::Unique;
        }
        let level = world.level(self.site, &self.load);
        for at_ns in world.arrivals(self.rate * level) {
            let key = self.key(world);
            if self.held.contains_key(&key) {
                if self.least_recent
                    && let Some(at) = self.entries.iter().position(|(held, _)| *held == key)
                    && let Some(entry) = self.entries.remove(at)
                {
                    self.entries.push_back(entry);
                }
                continue;
            }
            let bytes = self.sizes.draw(&mut world.random);
            let block = world.take(self.site, bytes, at_ns);
            if unbounded {
                world.lose(block);
                continue;
            }
            self.bytes += block.bytes;
            self.held.insert(key, block.born_ns);
            self.entries.push_back((key, block));
            while self.bytes > self.limit.0 || self.entries.len() > self.limit.1 {
                self.evict(world, at_ns);
            }
        }
        let now_ns = world.now_ns();
        while let (Some(residence), Some((_, block))) = (self.residence, self.entries.front())
            && block.born_ns + ((residence * SECOND as f64) as u64) < now_ns
        {
            let at_ns = world.moment();
            self.evict(world, at_ns);
        }
    }
}
