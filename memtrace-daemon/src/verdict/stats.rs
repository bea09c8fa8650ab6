//! Statistics of a short series: is there a trend, and how steep is it? Rank statistics, because
//! floors have steps and outliers and no normal noise.

use super::scratch::Scratch;

/// Points beyond which pairs are formed of every second point only, and so on: 48 points have
/// 1,128 pairs.
const MOST_POINTS: usize = 48;
/// Autocorrelation widens the variance by this factor at most.
const WIDEST: f64 = 8.0;

/// A trend: how sure, and how steep.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Slope {
    /// Median of the slopes between any two points, in units of the series a step: Theil (1950)
    /// and Sen (1968).
    pub(super) value: f64,
    /// The interval that it lies in with 95 %, from the variance of Kendall's S.
    pub(super) low: f64,
    pub(super) high: f64,
    /// Probability that a series without a trend rises like this: Mann (1945) and Kendall
    /// (1975), one-sided, with the variance corrected for autocorrelation after Hamed and Rao
    /// (1998).
    pub(super) p: f64,
}

/// The trend of a series; `None` below four points.
pub(super) fn slope(series: &[f64], scratch: &mut Scratch) -> Option<Slope> {
    if series.len() < 4 {
        return None;
    }
    let stride = series.len().div_ceil(MOST_POINTS);
    let Scratch { points, pairs, .. } = scratch;
    points.clear();
    // From the end, so that the newest is always among them.
    points.extend(series.iter().rev().step_by(stride));
    points.reverse();
    pairs.clear();
    let mut s = 0_i64;
    for (at, first) in points.iter().enumerate() {
        for (further, second) in points.iter().enumerate().skip(at + 1) {
            let rise = second - first;
            s += i64::from(rise > 0.0) - i64::from(rise < 0.0);
            pairs.push(rise / (further - at) as f64);
        }
    }
    let n = points.len() as f64;
    let value = nth(pairs, 0.5)?;
    let plain = (n * (n - 1.0) * (2.0 * n + 5.0) - ties(points)) / 18.0;
    let variance = plain.max(0.0) * stretch(points, value);
    let deviation = variance.sqrt();
    let z = if deviation > 0.0 { (s - s.signum()) as f64 / deviation } else { 0.0 };
    let count = pairs.len() as f64;
    let reach = 1.96 * deviation;
    let low = nth(pairs, (count - reach) / 2.0 / count)?;
    let high = nth(pairs, (count + reach) / 2.0 / count)?;
    let stride = stride as f64;
    let [value, low, high] = [value, low, high].map(|slope| slope / stride);
    Some(Slope { value, low, high, p: upper_tail(z) })
}

/// The value at a share of the order.
fn nth(values: &mut [f64], share: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    let position = (share.clamp(0.0, 1.0) * last as f64).round() as usize;
    let (_, value, _) = values.select_nth_unstable_by(position.min(last), f64::total_cmp);
    Some(*value)
}

/// The median of a few values.
pub(super) fn median(values: impl Iterator<Item = f64>, scratch: &mut Vec<f64>) -> Option<f64> {
    scratch.clear();
    scratch.extend(values);
    nth(scratch, 0.5)
}

/// What equal values take from the variance of S. A floor that rests has many.
fn ties(points: &[f64]) -> f64 {
    let mut sorted = points.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let runs = sorted.chunk_by(|a, b| a == b).map(|run| run.len() as f64);
    runs.map(|t| t * (t - 1.0) * (2.0 * t + 5.0)).sum()
}

/// By how much autocorrelation of what is left without the trend widens the variance.
fn stretch(points: &[f64], slope: f64) -> f64 {
    let n = points.len();
    let left: Vec<f64> =
        points.iter().enumerate().map(|(at, value)| value - slope * at as f64).collect();
    let mean = left.iter().sum::<f64>() / n as f64;
    let square = |value: &f64| (value - mean) * (value - mean);
    let power: f64 = left.iter().map(square).sum();
    let scale = points.iter().map(|value| value.abs()).fold(0.0, f64::max);
    // A straight line leaves only what rounding leaves.
    if power.sqrt() <= scale * 1e-9 * (n as f64).sqrt() {
        return 1.0;
    }
    // Beyond this an autocorrelation is no chance (95 %).
    let significant = 1.96 / (n as f64).sqrt();
    let mut factor = 1.0;
    for lag in 1..=n / 4 {
        let later = left.iter().skip(lag);
        let product: f64 = left.iter().zip(later).map(|(a, b)| (a - mean) * (b - mean)).sum();
        let correlation = product / power;
        if correlation < significant {
            break;
        }
        factor += 2.0 * (1.0 - lag as f64 / n as f64) * correlation;
    }
    factor.clamp(1.0, WIDEST)
}

/// Probability that a standard normal variable exceeds `z` (Abramowitz and Stegun 26.2.17, to
/// within 8e-8).
fn upper_tail(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let series = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let polynomial = series.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t);
    let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let tail = density * polynomial;
    if z >= 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(series: &[f64]) -> Slope {
        slope(series, &mut Scratch::default()).unwrap()
    }

    #[test]
    fn a_straight_line_is_a_sure_trend() {
        let line: Vec<f64> = (0..72).map(|at| 100.0 + 3.0 * f64::from(at)).collect();
        let found = of(&line);
        assert!((found.value - 3.0).abs() < 1e-9 && (found.low - 3.0).abs() < 1e-9, "{found:?}");
        assert!(found.p < 1e-9, "{found:?}");
    }

    #[test]
    fn an_outlier_does_not_bend_it() {
        let mut line: Vec<f64> = (0..30).map(f64::from).collect();
        line[10] = 1e6;
        line[25] = 0.0;
        let found = of(&line);
        assert!((found.value - 1.0).abs() < 0.05, "{found:?}");
        assert!(found.p < 1e-6, "{found:?}");
    }

    #[test]
    fn noise_is_no_trend_and_rest_is_none() {
        let mut state = 1_u64;
        let mut trends = 0;
        for _ in 0..400 {
            let noise: Vec<f64> = (0..40)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 40) as f64
                })
                .collect();
            trends += u32::from(of(&noise).p < 0.05);
        }
        assert!((5..=40).contains(&trends), "{trends} of 400 at 5 %");
        let rest = of(&[7.0; 20]);
        assert!(rest.value == 0.0 && (rest.p - 0.5).abs() < 1e-6, "{rest:?}");
    }

    #[test]
    fn a_walk_at_random_is_a_trend_less_often_when_its_memory_is_counted() {
        let mut state = 9_u64;
        let (mut plain, mut corrected) = (0, 0);
        for _ in 0..300 {
            let mut at = 0.0;
            let walk: Vec<f64> = (0..40)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    at += (state >> 40) as f64 / (1 << 24) as f64 - 0.5;
                    at
                })
                .collect();
            let found = of(&walk);
            corrected += u32::from(found.p < 0.01);
            let s: i64 = (0..40)
                .flat_map(|a| (a + 1..40).map(move |b| (a, b)))
                .map(|(a, b)| if walk[b] > walk[a] { 1 } else { -1 })
                .sum();
            plain += u32::from(upper_tail(s as f64 / 85.9) < 0.01);
        }
        assert!(corrected * 4 < plain * 3, "{corrected} against {plain}");
    }

    #[test]
    fn tails_are_those_of_the_normal_distribution() {
        for (z, tail) in [(0.0, 0.5), (1.0, 0.158_655), (1.96, 0.024_998), (3.29, 0.000_501)] {
            assert!((upper_tail(z) - tail).abs() < 1e-5);
            assert!((upper_tail(-z) - (1.0 - tail)).abs() < 1e-5);
        }
    }
}
