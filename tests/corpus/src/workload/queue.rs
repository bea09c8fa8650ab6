//! Memory that follows what is waiting, or what is being done.

use std::collections::VecDeque;

use super::{Sizes, Workload};
use crate::load::{Load, Shape};
use crate::world::{Block, SiteId, World};

/// A queue: what goes in comes out in order, at a rate of its own, or when there is no room.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Where.
    pub site: SiteId,
    /// Entries a second at load 1.
    pub rate: f64,
    /// How many come out a second, whatever the load.
    pub drain: f64,
    /// Most entries; what is more drives the oldest out. Without a bound (`usize::MAX`) that
    /// gets more in than out, it is a leak.
    pub bound: usize,
    /// How large.
    pub sizes: Sizes,
    /// How much there is to do.
    pub load: Load,
    /// Waiting.
    pub waiting: VecDeque<Block>,
    /// The most bytes that have waited, and that wait.
    pub bytes: (u64, u64),
}

impl Workload for Queue {
    fn second(&mut self, world: &mut World) {
        let level = world.level(self.site, &self.load);
        for at_ns in world.arrivals(self.rate * level) {
            let bytes = self.sizes.draw(&mut world.random);
            let block = world.take(self.site, bytes, at_ns);
            self.waiting.push_back(block);
            self.bytes.1 += block.bytes;
            if self.waiting.len() > self.bound
                && let Some(oldest) = self.waiting.pop_front()
            {
                self.bytes.1 -= oldest.bytes;
                world.give(oldest, at_ns);
            }
        }
        for at_ns in world.arrivals(self.drain) {
            if let Some(oldest) = self.waiting.pop_front() {
                self.bytes.1 -= oldest.bytes;
                world.give(oldest, at_ns);
            }
        }
        let (most, now) = self.bytes;
        if now > most {
            self.bytes.0 = now;
            if self.bound == usize::MAX && self.drain < self.rate {
                let now_ns = world.now_ns();
                world.lose_bytes(self.site, now - most, now_ns);
            }
        }
    }
}

/// Requests in flight, as many as the level says; each has one object.
#[derive(Clone, Debug)]
pub struct Concurrency {
    /// Where.
    pub site: SiteId,
    /// How many at a time.
    pub level: Shape,
    /// How long one takes, seconds.
    pub takes: f64,
    /// How large.
    pub sizes: Sizes,
    /// In flight.
    pub flying: Vec<Block>,
}

impl Workload for Concurrency {
    fn second(&mut self, world: &mut World) {
        let load = Load::of(self.level.clone());
        let wanted = load.level(world.second(), &mut world.random).round().max(0.0) as usize;
        // Those that are done, and those that are too many.
        let done = self.flying.len() as f64 / self.takes.max(1.0);
        let done = usize::try_from(world.random.poisson(done)).unwrap_or(0).min(self.flying.len());
        let begin_ns = world.now_ns();
        let middle_ns = begin_ns + crate::world::SECOND / 2;
        for _ in 0..done.max(self.flying.len().saturating_sub(wanted)) {
            let at = world.random.whole(0, self.flying.len() as u64);
            let block = self.flying.swap_remove(usize::try_from(at).unwrap_or(0));
            world.give(block, begin_ns);
        }
        while self.flying.len() < wanted {
            let bytes = self.sizes.draw(&mut world.random);
            let block = world.take(self.site, bytes, middle_ns);
            self.flying.push(block);
        }
    }
}
