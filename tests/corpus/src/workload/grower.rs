//! One block that is made larger again and again: a list that only grows, by realloc.

use super::Workload;
use crate::load::Load;
use crate::world::{Block, SiteId, World};

/// A growing block.
#[derive(Clone, Debug)]
pub struct Grower {
    site: SiteId,
    bytes_a_second: f64,
    /// The next size: the factor, or the step where that is more.
    growth: (f64, u64),
    /// What it grows to, bytes; then it stays.
    bound: u64,
    load: Load,
    keeps: bool,
    needed: f64,
    bytes: u64,
    block: Option<Block>,
}

impl Grower {
    /// Grows from a size, so many bytes a second, in steps of a factor or so many bytes, up to
    /// a bound; without one (`u64::MAX`) that is a leak.
    #[must_use]
    pub const fn new(
        site: SiteId,
        begin: u64,
        bytes_a_second: f64,
        growth: (f64, u64),
        bound: u64,
        load: Load,
    ) -> Self {
        let needed = begin as f64;
        Self {
            site,
            bytes_a_second,
            growth,
            bound,
            load,
            keeps: false,
            needed,
            bytes: 0,
            block: None,
        }
    }

    /// Takes what it needs more beside what it has: an arena of chunks.
    #[must_use]
    pub const fn keeping(mut self) -> Self {
        self.keeps = true;
        self
    }
}

impl Workload for Grower {
    fn second(&mut self, world: &mut World) {
        let level = world.level(self.site, &self.load);
        self.needed += self.bytes_a_second * level;
        let needed = (self.needed as u64).min(self.bound);
        let now = self.bytes;
        if needed <= now {
            return;
        }
        let factor = (now as f64 * self.growth.0) as u64;
        let bytes = needed.max(factor).max(now + self.growth.1).min(self.bound.max(needed));
        let at_ns = world.moment();
        self.bytes = bytes;
        if self.keeps {
            world.take(self.site, bytes - now, at_ns);
            return;
        }
        let new = world.take(self.site, bytes, at_ns);
        if let Some(old) = self.block.replace(new) {
            world.moved(old, at_ns);
            if self.bound == u64::MAX {
                let grown = new.bytes.saturating_sub(old.bytes);
                world.lose_bytes(self.site, grown, at_ns);
            }
        }
    }
}
