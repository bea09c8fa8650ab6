//! How long calls of library functions take.

use serde::Serialize;

/// A function's calls since attach by how long they took, from entry to return. A call inside of
/// another is in its own function's row too.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CallLatency {
    /// The function as probed.
    pub function: &'static str,
    /// Calls, those that failed included.
    pub calls: u64,
    /// All of them together, seconds.
    pub sum_seconds: f64,
    /// Half of them took less than this, seconds; buckets double, so it is up to twice as much
    /// as the truth. `None` where it is beyond the last bucket.
    pub p50_seconds: Option<f64>,
    /// The same for 99 of 100: a sign of a device that is short of memory when it rises.
    pub p99_seconds: Option<f64>,
    /// Calls by bucket: (its end in seconds, `None` for the last one; calls in it alone).
    pub buckets: Vec<(Option<f64>, u64)>,
}

impl CallLatency {
    /// From buckets in ascending order.
    #[must_use]
    pub fn new(function: &'static str, sum_seconds: f64, buckets: Vec<(Option<f64>, u64)>) -> Self {
        let calls = buckets.iter().fold(0_u64, |sum, (_, calls)| sum.saturating_add(*calls));
        let below = |hundredths: u128| {
            let wanted = (u128::from(calls) * hundredths).div_ceil(100);
            let mut sum = 0;
            let bucket = buckets.iter().find(|(_, calls)| {
                sum += u128::from(*calls);
                sum >= wanted
            });
            bucket.and_then(|(end, _)| *end)
        };
        let (p50_seconds, p99_seconds) = (below(50), below(99));
        Self { function, calls, sum_seconds, p50_seconds, p99_seconds, buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_ends_of_buckets() {
        let of = |calls: [u64; 3]| {
            let ends = [Some(1.0), Some(2.0), None];
            let latency = CallLatency::new("f", 0.0, ends.into_iter().zip(calls).collect());
            (latency.calls, latency.p50_seconds, latency.p99_seconds)
        };
        assert_eq!(of([99, 1, 0]), (100, Some(1.0), Some(1.0)));
        assert_eq!(of([98, 2, 0]), (100, Some(1.0), Some(2.0)));
        assert_eq!(of([1, 1, 98]), (100, None, None));
        assert_eq!(of([0, 1, 0]), (1, Some(2.0), Some(2.0)));
    }
}
