//! Chance, the same on every machine for the same seed.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// The stream of a seed and a name, so that the same seed of two cases has nothing in common.
    #[must_use]
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a over the name: fixed for ever, unlike the standard library's hashes.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        let mut rng = fastrand::Rng::with_seed(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let _ = rng.u64(..);
        Self(rng)
    }

    /// A stream of its own, which depends on where this one is.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.0.fork())
    }

    /// Between 0 and 1.
    pub fn unit(&mut self) -> f64 {
        self.0.f64()
    }

    /// Between two numbers.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Between two numbers, each factor as likely as any other.
    pub fn log_between(&mut self, low: f64, high: f64) -> f64 {
        (self.between(low.max(1e-12).ln(), high.max(1e-12).ln())).exp()
    }

    /// A whole number, the second one excluded; the first where there is none.
    pub fn whole(&mut self, low: u64, high: u64) -> u64 {
        if high > low { self.0.u64(low..high) } else { low }
    }

    /// Whether something of this probability happens.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// With mean 0 and standard deviation 1.
    pub fn normal(&mut self) -> f64 {
        // Box and Muller.
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Exponential with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -(1.0 - self.unit()).ln() * mean
    }

    /// Pareto with this shape, at least 1: heavy tails.
    pub fn pareto(&mut self, shape: f64) -> f64 {
        (1.0 - self.unit()).powf(-1.0 / shape)
    }

    /// How often something happens that happens so often in the mean.
    pub fn poisson(&mut self, mean: f64) -> u64 {
        if mean <= 0.0 {
            return 0;
        }
        if mean > 50.0 {
            // `as` saturates below 0.
            return (mean + mean.sqrt() * self.normal()).round() as u64;
        }
        let limit = (-mean).exp();
        let (mut count, mut product) = (0, self.unit());
        while product > limit {
            count += 1;
            product *= self.unit();
        }
        count
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, from: &[T], default: T) -> T {
        let at = usize::try_from(self.whole(0, from.len() as u64)).unwrap_or(0);
        from.get(at).copied().unwrap_or(default)
    }
}
