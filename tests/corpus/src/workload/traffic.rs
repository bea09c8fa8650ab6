//! Objects that come at a rate and live for a while; a share of them is lost.

use super::Workload;
use crate::load::Load;
use crate::random::Random;
use crate::world::{SECOND, SiteId, World};

/// How large objects are, bytes.
#[derive(Clone, Copy, Debug)]
pub enum Sizes {
    /// All the same.
    Fixed(u64),
    /// Between two, each factor as likely as any other.
    Log(u64, u64),
    /// At least so many, with a heavy tail up to a limit: (least, shape, limit).
    Heavy(u64, f64, u64),
}

impl Sizes {
    /// The size of the next object.
    pub fn draw(self, random: &mut Random) -> u64 {
        match self {
            Self::Fixed(bytes) => bytes,
            Self::Log(low, high) => random.log_between(low as f64, high as f64) as u64,
            Self::Heavy(least, shape, limit) => {
                ((least as f64 * random.pareto(shape)) as u64).min(limit)
            }
        }
    }

    /// The same shape, so many times as large.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let scale = |bytes: u64| ((bytes as f64 * factor) as u64).max(1);
        match self {
            Self::Fixed(bytes) => Self::Fixed(scale(bytes)),
            Self::Log(low, high) => Self::Log(scale(low), scale(high)),
            Self::Heavy(least, shape, limit) => Self::Heavy(scale(least), shape, scale(limit)),
        }
    }
}

/// How long objects live, seconds.
#[derive(Clone, Copy, Debug)]
pub enum Life {
    /// Exponential, with this mean.
    Exponential(f64),
    /// Exactly so long.
    Fixed(f64),
    /// Log-normal: median and spread (a standard deviation is a factor of e to the spread).
    LogNormal(f64, f64),
    /// Until the next collection: they come so many seconds apart.
    Collected(f64),
    /// Until the process ends, on purpose.
    Ever,
}

impl Life {
    /// When an object of a moment dies, ns; `None` if it does not.
    pub fn end(self, born_ns: u64, random: &mut Random) -> Option<u64> {
        let seconds = match self {
            Self::Exponential(mean) => random.exponential(mean),
            Self::Fixed(seconds) => seconds,
            Self::LogNormal(median, spread) => median * (spread * random.normal()).exp(),
            Self::Collected(period) => {
                let period_ns = (period.max(1.0) * SECOND as f64) as u64;
                return Some((born_ns / period_ns + 1) * period_ns);
            }
            Self::Ever => return None,
        };
        Some(born_ns + (seconds.max(0.0) * SECOND as f64) as u64)
    }
}

/// The traffic of one site.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Where.
    pub site: SiteId,
    /// Objects (batches, at a kernel site) a second at load 1.
    pub rate: f64,
    /// How large.
    pub sizes: Sizes,
    /// How long they live.
    pub life: Life,
    /// Share that is lost.
    pub lost: f64,
    /// From which second on they are.
    pub lost_from: u64,
    /// How much there is to do.
    pub load: Load,
}

impl Workload for Traffic {
    fn second(&mut self, world: &mut World) {
        let second = world.second();
        let level = world.level(self.site, &self.load);
        for at_ns in world.arrivals(self.rate * level) {
            let bytes = self.sizes.draw(&mut world.random);
            let block = world.take(self.site, bytes, at_ns);
            if second >= self.lost_from && self.lost > 0.0 && world.random.chance(self.lost) {
                world.lose(block);
            } else if let Some(end_ns) = self.life.end(at_ns, &mut world.random) {
                world.give(block, end_ns);
            }
        }
    }
}
