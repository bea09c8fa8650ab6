//! What one tier of a history says about growth: from its lowest point on, along the lower
//! envelope over a residence time.

use super::pyramid::{Tier, Window};
use super::scratch::Scratch;
use super::stats::{Slope, median, slope};

/// A point belongs to the valley where growth begins while it is within this share of the range
/// of the lowest one; a new maximum is one by at least half of it.
const VALLEY_SHARE: f64 = 0.02;
/// Work below this many allocations a window says nothing about load.
const WORTH_COUNTING: f64 = 1.0;

/// Growth in one tier. Everything in base windows and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Trend {
    /// Base windows in one point.
    pub(super) width: u32,
    /// Points from the valley on.
    pub(super) points: u32,
    /// Points before these that were as low.
    low: u32,
    /// Points above the one before, and below it.
    pub(super) rising: u32,
    pub(super) falling: u32,
    /// Floor in the valley and at the end.
    pub(super) first: f64,
    pub(super) last: f64,
    /// Slope, bytes a base window.
    pub(super) slope: Slope,
    /// Growth in the last third over growth in the middle third, by windows, and by work where
    /// the process has other work: 1 is straight.
    pub(super) by_time: Option<f64>,
    pub(super) by_work: Option<f64>,
    /// The same of the number of live objects, by windows.
    pub(super) by_objects: Option<f64>,
    /// By how much `by_time` may differ by chance: its standard error, from how much steps differ.
    pub(super) by_chance: f64,
    /// New maxima, and base windows since the last one.
    pub(super) maxima: u32,
    pub(super) rest: u32,
    /// Allocations a window: last third over first third, and in both.
    pub(super) load: Option<f64>,
    early: f64,
    pub(super) late: f64,
    /// The same of the process' other work.
    work: Option<f64>,
    /// Frees a window, last third over first third, with load taken out: what frees more the more
    /// there is comes to rest.
    pub(super) pace: Option<f64>,
    /// Live objects, median of the first and of the last third.
    pub(super) objects_first: f64,
    pub(super) objects_last: f64,
}

impl Trend {
    /// Base windows from the valley to the end.
    pub(super) fn windows(&self) -> u32 {
        self.points.saturating_sub(1).saturating_mul(self.width)
    }

    /// Base windows of growth: where it comes in steps, the way to the first one counts as far as
    /// it is from one to the next.
    pub(super) fn grew_for(&self) -> u32 {
        let way = f64::from(self.low.saturating_mul(self.width)).min(self.gap() - 1.0);
        // `as` saturates.
        self.windows().saturating_add(way as u32)
    }

    /// Bytes.
    pub(super) fn growth(&self) -> f64 {
        (self.last - self.first).max(0.0)
    }

    /// Base windows between two maxima.
    pub(super) fn gap(&self) -> f64 {
        let risen = self.windows().saturating_sub(self.rest);
        f64::from(risen) / f64::from(self.maxima.max(1))
    }

    /// The straighter of the two ways to look at it: where load falls, growth by work goes on.
    pub(super) fn straight(&self) -> Option<f64> {
        match (self.by_time, self.by_work) {
            (Some(time), Some(work)) => Some(time.max(work)),
            (time, work) => time.or(work),
        }
    }

    /// Whether the process' other work rose, so that it can explain growth in bursts.
    pub(super) fn work_counts(&self) -> bool {
        self.work.is_some_and(|work| work > 1.5)
    }

    /// By how much allocations became fewer than the process' other work did, if that is less
    /// than `share` and no chance.
    pub(super) fn fewer(&self, share: f64, deviations: f64) -> Option<f64> {
        let ratio = self.load? / self.work.unwrap_or(1.0).clamp(0.2, 1.0);
        let third = f64::from(self.points / 3 * self.width);
        let (before, after) = (self.early * third, self.late * third);
        let expected = before * self.work.unwrap_or(1.0).clamp(0.2, 1.0);
        let beyond = (expected - after) / (expected + after).max(1.0).sqrt();
        (ratio < share && beyond > deviations).then_some(ratio)
    }

    /// Whether the objects got larger, not more of them, without ever getting smaller: blocks
    /// that grow by being copied into larger ones.
    pub(super) fn same_objects_grow(&self) -> bool {
        let as_many = (self.objects_last - self.objects_first).abs() <= self.objects_first * 0.1;
        as_many && self.last >= self.first * 1.5 && self.falling * 10 <= self.rising
    }

    /// Whether it rose in at least this share of its steps.
    pub(super) fn rises_in(&self, share: f64) -> bool {
        f64::from(self.rising) >= f64::from(self.points.saturating_sub(1)) * share
    }

    /// By how many objects live memory grew, in units of what their number swings by where they
    /// come and go by chance: the square root of it (Poisson).
    pub(super) fn more_objects(&self) -> f64 {
        (self.objects_last - self.objects_first) / self.objects_last.max(1.0).sqrt()
    }
}

/// Looks at the newest `windows` base windows of a tier; `residence` is in base windows too.
/// `None` where there is too little to see.
pub(super) fn of(
    tier: &Tier,
    windows: u32,
    residence: u32,
    scratch: &mut Scratch,
) -> Option<Trend> {
    let length = tier.windows.len();
    let newest = usize::try_from(windows.div_ceil(tier.width.max(1))).unwrap_or(usize::MAX);
    let skipped = length.saturating_sub(newest.max(4));
    let reach = usize::try_from(residence.div_ceil(tier.width.max(1))).unwrap_or(1).max(1);
    if length - skipped < reach + 3 {
        return None;
    }
    let mut envelope = std::mem::take(&mut scratch.envelope);
    envelope.clear();
    let floors = |at: usize| tier.windows.get(at).map_or(0, |window| window.floor);
    for end in skipped + reach - 1..length {
        let low = (end + 1 - reach..=end).map(floors).min().unwrap_or(0);
        envelope.push(low as f64);
    }
    let trend = along(tier, skipped + reach, &envelope, scratch);
    scratch.envelope = envelope;
    trend
}

fn along(tier: &Tier, before: usize, envelope: &[f64], scratch: &mut Scratch) -> Option<Trend> {
    let (low, high) = envelope
        .iter()
        .fold((f64::INFINITY, 0.0_f64), |(low, high), floor| (low.min(*floor), high.max(*floor)));
    let range = high - low;
    let low_until = low + range * VALLEY_SHARE;
    let valley = envelope.iter().rposition(|floor| *floor <= low_until)?;
    let low = envelope.iter().take(valley).rev();
    let low = count(low.take_while(|floor| **floor <= low_until));
    let rise = envelope.get(valley..)?;
    let (first, last) = (*rise.first()?, *rise.last()?);
    let mut trend = Trend {
        width: tier.width,
        low,
        points: u32::try_from(rise.len()).unwrap_or(u32::MAX),
        rising: count(rise.windows(2).filter(|pair| pair.first() < pair.last())),
        falling: count(rise.windows(2).filter(|pair| pair.first() > pair.last())),
        first,
        last,
        slope: Slope { p: 1.0, ..Slope::default() },
        ..Trend::default()
    };
    let mut highest = first;
    let mut at_highest = 0;
    for (at, floor) in rise.iter().enumerate() {
        if *floor > highest + range * VALLEY_SHARE / 2.0 {
            highest = *floor;
            at_highest = at;
            trend.maxima += 1;
        }
    }
    trend.rest = count(rise.iter().skip(at_highest + 1)).saturating_mul(tier.width);
    if let Some(found) = slope(rise, scratch) {
        let width = f64::from(tier.width);
        trend.slope = Slope {
            value: found.value / width,
            low: found.low / width,
            high: found.high / width,
            p: found.p,
        };
    }
    let windows = || tier.windows.iter().skip(before - 1 + valley);
    thirds(&mut trend, rise, windows, scratch);
    Some(trend)
}

/// Compares the thirds of a rise: is it straight, is it load, are there more objects?
fn thirds<W: Iterator<Item = Window>>(
    trend: &mut Trend,
    rise: &[f64],
    windows: impl Fn() -> W,
    scratch: &mut Scratch,
) {
    let third = rise.len() / 3;
    if third < 2 {
        return;
    }
    let parts = [0, (rise.len() - third) / 2, rise.len() - third];
    let middle = &mut scratch.middle;
    let levels = parts.map(|from| median(rise.iter().skip(from).take(third).copied(), middle));
    let [Some(a), Some(b), Some(c)] = levels else { return };
    let [_, second, last] = parts.map(|from| from as f64);
    trend.by_time = ratio((c - b) / (last - second), (b - a) / second);
    trend.by_chance = standard_error(rise, [b - a, c - b], second);
    let worked_until =
        |until: usize| windows().take(until).map(|window| window.work.get()).sum::<f64>();
    let [x, y, z] = parts.map(|from| worked_until(from + third / 2));
    if z >= WORTH_COUNTING * rise.len() as f64 && y > x && z > y {
        trend.by_work = ratio((c - b) / (z - y), (b - a) / (y - x));
    }
    let mean = |from: usize| {
        let sum: f64 =
            windows().skip(from).take(third).map(|window| window.allocations.get()).sum();
        sum / third as f64
    };
    let [early, _, late] = parts.map(mean);
    trend.load = (early > 0.0).then(|| late / early);
    let width = f64::from(trend.width.max(1));
    (trend.early, trend.late) = (early / width, late / width);
    let worked_in = |from: usize| worked_until(from + third) - worked_until(from);
    let [early, _, late] = parts.map(worked_in);
    trend.work = (z >= WORTH_COUNTING * rise.len() as f64 && early > 0.0).then(|| late / early);
    let freed = |from: usize| {
        let objects = |at: usize| windows().nth(at).map_or(0.0, |window| f64::from(window.objects));
        mean(from) - (objects(from + third - 1) - objects(from)) / (third - 1) as f64
    };
    let (before, after) = (freed(0), freed(rise.len() - third));
    trend.pace = trend
        .load
        .filter(|load| *load > 0.0 && before > 0.0)
        .map(|load| (after / before / load).clamp(0.0, 9.99));
    let mut objects = |from: usize| {
        let of = windows().skip(from).take(third).map(|window| f64::from(window.objects));
        median(of, &mut scratch.middle).unwrap_or(0.0)
    };
    let numbers = parts.map(&mut objects);
    let [a, b, c] = numbers;
    trend.by_objects = ratio((c - b) / (last - second), (b - a) / second);
    (trend.objects_first, trend.objects_last) = (a, c);
}

/// Of the quotient of growth over two spans of so many steps each, where steps come at random.
fn standard_error(rise: &[f64], [middle, late]: [f64; 2], span: f64) -> f64 {
    let steps = || rise.windows(2).filter_map(|pair| Some(pair.last()? - pair.first()?));
    let count = rise.len().saturating_sub(1).max(1) as f64;
    let mean = steps().sum::<f64>() / count;
    let variance = steps().map(|step| (step - mean).powi(2)).sum::<f64>() / count;
    if middle <= 0.0 {
        return 0.0;
    }
    let quotient = late / middle;
    (variance * span).sqrt() / middle * quotient.mul_add(quotient, 1.0).sqrt()
}

/// Late growth over early growth; growth out of nothing is no slowing down.
fn ratio(late: f64, early: f64) -> Option<f64> {
    if early > 0.0 { Some((late / early).clamp(0.0, 9.99)) } else { (late > 0.0).then_some(9.99) }
}

fn count<T>(of: impl Iterator<Item = T>) -> u32 {
    u32::try_from(of.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::pyramid::{Pyramid, Rough};
    use super::*;

    fn look(floors: impl Iterator<Item = (u64, f32)>, residence: u32) -> Trend {
        let mut pyramid = Pyramid::new();
        for (floor, work) in floors {
            pyramid.push(Window {
                floor,
                objects: u32::try_from(floor / 100).unwrap(),
                allocations: Rough::of(10.0),
                work: Rough::of(work),
            });
        }
        of(&pyramid.tiers[0], u32::MAX, residence, &mut Scratch::default()).unwrap()
    }

    #[test]
    fn growth_begins_where_the_floor_was_lowest_last() {
        let trend = look((0..60).map(|at| (1_000 + 50 * u64::max(at, 20), 0.0)), 1);
        assert!((38..=41).contains(&trend.points), "{trend:?}");
        assert!((trend.by_time.unwrap() - 1.0).abs() < 0.01);
        assert_eq!(trend.rest, 0);
        assert!(trend.slope.p < 1e-6 && trend.maxima > 30);
        assert!(!trend.same_objects_grow());
    }

    #[test]
    fn the_way_to_the_first_step_counts_as_far_as_it_is_to_the_next() {
        let steps = look((0..60).map(|at| (1_000 + 500 * (at / 5), 0.0)), 1);
        assert_eq!((steps.windows(), steps.grew_for()), (55, 58), "{steps:?}");
        // What rested for long before did not grow then.
        let late = look((0..60).map(|at| (1_000 + 50 * u64::max(at, 30), 0.0)), 1);
        assert_eq!(late.windows(), late.grew_for(), "{late:?}");
    }

    #[test]
    fn what_slows_down_is_not_straight_but_by_work_it_may_be() {
        let curve = |at: f64| (1e6 * (1.0 - (-at / 30.0).exp())) as u64;
        let slowing = look((0..60).map(|at| (curve(f64::from(at)), 50.0)), 1);
        assert!(slowing.straight().unwrap() < 0.6, "{slowing:?}");
        // The same curve where the process does less and less.
        let work = |at: f64| (100.0 * (-at / 30.0).exp()) as f32;
        let falling = look((0..60).map(|at| (curve(f64::from(at)), work(f64::from(at)))), 1);
        assert!(falling.by_time.unwrap() < 0.6);
        assert!((falling.by_work.unwrap() - 1.0).abs() < 0.1, "{falling:?}");
    }

    #[test]
    fn an_envelope_over_a_residence_time_hides_a_saw_tooth() {
        let saw = |at: u64| 5_000 + (at % 12) * 1_000;
        let trend = look((0..72).map(|at| (saw(at), 0.0)), 16);
        assert_eq!(trend.growth(), 0.0);
        let leaking = look((0..72).map(|at| (saw(at) + at * 100, 0.0)), 16);
        assert!(leaking.growth() > 3_000.0 && leaking.slope.low > 0.0, "{leaking:?}");
    }

    #[test]
    fn rest_is_counted_from_the_last_maximum() {
        let trend = look((0..60).map(|at| (10 * u64::min(at, 30), 0.0)), 1);
        assert!((28..=30).contains(&trend.rest), "{trend:?}");
        assert!(trend.gap() < 1.5);
    }
}
