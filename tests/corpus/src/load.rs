//! How much there is to do: curves over time that multiply a rate.

use crate::random::Random;

/// A shape over time.
#[derive(Clone, Debug)]
pub enum Shape {
    /// The same all the time.
    Constant,
    /// Straight from one level to another over so many seconds, then that one.
    Ramp {
        /// At the beginning.
        from: f64,
        /// At the end.
        to: f64,
        /// Seconds.
        over: f64,
    },
    /// Levels, each for so many seconds; the last one for ever.
    Steps(Vec<(f64, f64)>),
    /// A rhythm around 1.
    Daily {
        /// Seconds of one round.
        period: f64,
        /// From 0 (none) to 1 (down to nothing).
        depth: f64,
        /// Where in the round it begins, 0 to 1.
        phase: f64,
    },
    /// On for so many seconds, then off for so many.
    OnOff {
        /// Seconds on.
        on: f64,
        /// Seconds off.
        off: f64,
    },
}

/// A load.
#[derive(Clone, Debug)]
pub struct Load {
    /// Its shape.
    pub shape: Shape,
    /// Noise: standard deviation of a factor that changes each second.
    pub noise: f64,
    /// Seconds from and to which there is nothing to do.
    pub pauses: Vec<(u64, u64)>,
}

impl Load {
    /// The same all the time.
    #[must_use]
    pub const fn constant() -> Self {
        Self { shape: Shape::Constant, noise: 0.0, pauses: Vec::new() }
    }

    /// A load of this shape.
    #[must_use]
    pub const fn of(shape: Shape) -> Self {
        Self { shape, noise: 0.0, pauses: Vec::new() }
    }

    /// Any load that a service may have, over so many seconds: never one that ends idle.
    pub fn any(random: &mut Random, seconds: u64) -> Self {
        let length = seconds as f64;
        let shape = match random.whole(0, 5) {
            0 => Shape::Ramp {
                from: random.between(0.3, 1.0),
                to: random.between(0.7, 2.0),
                over: random.between(0.2, 1.0) * length,
            },
            1 => Shape::Daily {
                period: random.between(0.2, 1.0) * length,
                depth: random.between(0.2, 0.7),
                phase: random.unit(),
            },
            2 => {
                let level = |_| (random.between(0.05, 0.3) * length, random.between(0.4, 1.8));
                Shape::Steps((0..4).map(level).collect())
            }
            3 => Shape::OnOff { on: random.between(5.0, 30.0), off: random.between(2.0, 15.0) },
            _ => Shape::Constant,
        };
        Self { shape, noise: random.between(0.0, 0.4), pauses: Vec::new() }
    }

    /// With a pause in the middle third.
    #[must_use]
    pub fn with_pause(mut self, random: &mut Random, seconds: u64) -> Self {
        let from = random.whole(seconds / 3, seconds / 2);
        let length = random.whole(120, 120 + seconds / 6);
        self.pauses.push((from, from + length));
        self
    }

    /// With nothing to do from a moment on.
    #[must_use]
    pub fn until(mut self, second: u64) -> Self {
        self.pauses.push((second, u64::MAX));
        self
    }

    /// With nothing to do before a moment.
    #[must_use]
    pub fn from(mut self, second: u64) -> Self {
        self.pauses.push((0, second));
        self
    }

    /// The factor at a second.
    pub fn level(&self, second: u64, random: &mut Random) -> f64 {
        if self.pauses.iter().any(|(from, to)| (*from..*to).contains(&second)) {
            return 0.0;
        }
        let time = second as f64;
        let level = match &self.shape {
            Shape::Constant => 1.0,
            Shape::Ramp { from, to, over } => from + (to - from) * (time / over.max(1.0)).min(1.0),
            Shape::Steps(levels) => step(levels, time),
            Shape::Daily { period, depth, phase } => {
                1.0 + depth * (std::f64::consts::TAU * (time / period + phase)).sin()
            }
            Shape::OnOff { on, off } => f64::from(u8::from(time % (on + off) < *on)),
        };
        let noise = if self.noise > 0.0 { (self.noise * random.normal()).exp() } else { 1.0 };
        level * noise
    }
}

fn step(levels: &[(f64, f64)], time: f64) -> f64 {
    let mut end = 0.0;
    for (length, level) in levels {
        end += length;
        if time < end {
            return *level;
        }
    }
    levels.last().map_or(1.0, |(_, level)| *level)
}
