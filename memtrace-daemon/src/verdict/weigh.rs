//! Weighing: from a history to the numbers that a verdict rests on, and what is missing to call
//! growth a leak. No one test decides alone.

use super::VerdictConfig;
use super::history::{History, Look};
use super::residence::{old_bytes, residence};
use super::scratch::Scratch;
use super::trend::{self, Trend};
use crate::ledger::Cohorts;

/// Active windows that frees must have been seen for until turnover is known.
const TURNOVER_KNOWN: u32 = 16;
/// Idle growth counts as watched this much longer, since nothing can contradict it any more: 8
/// minutes of growth and 2 of idleness, or a little less and more.
const IDLE_NEEDS: (u32, u32) = (5, 6);
/// Growth that load alone explains within this factor is not held against a site.
pub(super) const LOAD_MARGIN: f64 = 1.3;
/// Growth is worth a word if chance would rise like this with a smaller probability.
const GROWING_P: f64 = 0.01;
/// A site that never frees, and has fewer and fewer allocations, is a cache that fills: late over
/// early ones, unless that may be chance by so many standard deviations (Poisson).
const FEWER: f64 = 0.75;
const FEWER_BY_CHANCE: f64 = 1.3;
/// Growth that is so much more than before comes in bursts.
const BURSTS: f64 = 2.5;
/// Allocations that are so much larger than at first are of something that grows.
const LARGER: f64 = 1.3;
/// How straight their growth must be.
const STRAIGHT_IN_STEPS: f64 = 0.5;
/// And by this part of what live memory has grown by.
const AS_LARGE: f64 = 0.3;
/// Growth may seem to slow down by chance by so many standard errors, and by so much at most.
const DEVIATIONS: f64 = 1.0;
const BY_CHANCE: f64 = 0.35;
/// Points that it takes to say of a longer time that growth slowed down.
const STRAIGHT_POINTS: u32 = 9;
/// Load, and what is freed beside it, count as unchanged up to this factor.
const STEADY_PACE: f64 = 1.25;
/// Frees that become more than this factor as memory grows will catch up with allocations.
const FASTER_PACE: f64 = 1.5;
/// Objects that come and go by chance swing by the square root of their number; growth must be
/// so many times as much, where it is not known how old they are.
const BEYOND_CHANCE: f64 = 6.0;
/// Share of the windows that growth must be seen in where it is not known how old memory is, and
/// where a queue is to be told from a cache that fills anew with each rise of load.
const MOST_WINDOWS: f64 = 0.5;
const NEARLY_ALL: f64 = 0.8;
/// Share of the windows from which on growth is no step of a pool: it follows its load.
const ALWAYS: f64 = 0.95;
/// Windows that the envelope of a queue reaches over.
const QUEUE_REACH: u32 = 4;
/// Share of the growth that must be older than what is freed.
const OLD_SHARE: f64 = 0.5;
/// The same of a queue, where even the oldest leave in the end.
const OLD_SHARE_OF_QUEUE: f64 = 0.3;

/// The numbers of the last evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Weighed {
    /// The tier that says most: the one that makes it a leak, else the one with the surest trend.
    pub(super) trend: Option<Trend>,
    /// Base windows by which nearly all was freed that ever was.
    pub(super) residence: u32,
    /// Whether the site frees, and has done so for long enough to know how soon.
    pub(super) turns_over: bool,
    /// Share of the growth that is older than what is freed, where that is known.
    pub(super) old_share: Option<f64>,
    /// Bytes that are so old, whenever they came, and how many windows that is; of a leak as many
    /// as when it was called.
    pub(super) old_bytes: Option<u64>,
    pub(super) old_age: u32,
    /// Whether nothing is missing for a leak, and whether it grows at all.
    pub(super) leak: bool,
    pub(super) grows: bool,
    /// Idle windows up to now.
    pub(super) idle: u32,
    /// Windows with work since the floor was higher than ever before.
    pub(super) below_high: u32,
    /// Whether it is looked at as a queue.
    pub(super) as_queue: bool,
    /// Whether it is a sum over sites, where one may free for another.
    pub(super) sum: bool,
    /// By how much larger allocations are than at first.
    pub(super) larger: f64,
    /// By how much it has slowed down over a longer time than `trend` shows.
    pub(super) slowed: Option<f64>,
}

impl Weighed {
    /// Share of the growth that must be old.
    fn old_enough(&self) -> f64 {
        if self.queues() { OLD_SHARE_OF_QUEUE } else { OLD_SHARE }
    }

    /// Whether blocks grow by being copied into larger ones: what is freed says nothing then
    /// about what is kept.
    pub(super) fn grows_in_size(&self) -> bool {
        self.trend.is_some_and(|trend| {
            let enough = (trend.last / trend.first.max(1.0) * AS_LARGE).max(LARGER);
            trend.same_objects_grow() && self.larger >= enough
        })
    }

    /// Whether more comes than goes, all the time: a queue that gets longer and longer frees all
    /// that it ever took, later and later. What frees more the more there is has a bound.
    fn queues(&self) -> bool {
        self.as_queue
            && self.trend.is_some_and(|trend| {
                trend.last >= trend.first * 2.0
                    && trend.more_objects() >= BEYOND_CHANCE
                    && trend.pace.is_some_and(|pace| pace <= STEADY_PACE)
                    && trend.load.is_some_and(|load| load <= STEADY_PACE)
            })
    }

    /// Whether growth was seen for so long that idleness, which nothing can contradict, makes
    /// up for the rest.
    pub(super) fn nearly(&self, config: &VerdictConfig) -> bool {
        let (share, whole) = IDLE_NEEDS;
        let seen = self.trend.map_or(0, |trend| trend.grew_for());
        self.grows && seen >= needed(config, self) * share / whole
    }
}

/// What is missing to call growth a leak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Missing {
    /// Windows of growth.
    Time(u32),
    /// Steps: seen, needed.
    Steps(u32, u32),
    /// It could be chance.
    Chance(f64),
    /// It slows down: late growth over middle growth.
    Straight(f64),
    /// It grows in bursts: late growth over middle growth.
    Bursts(f64),
    /// It rests: windows since the last maximum.
    Rest(u32),
    /// So many more objects may be chance.
    Few(f64),
    /// It swings: windows since it was higher than ever.
    Below(u32),
    /// What is freed becomes more as memory grows: late over early, load taken out.
    Pace(f64),
    /// Load rose by as much: late allocations over early ones.
    Load(f64),
    /// What is live is young: share that is older than what is freed.
    Old(f64),
}

impl Missing {
    /// Whether it says what the growth is, if not a leak: then it is not unbalanced.
    const fn explains(&self) -> bool {
        matches!(self, Self::Few(_) | Self::Below(_) | Self::Load(_) | Self::Old(_))
    }
}

/// Weighs a subject.
pub(super) fn weigh(
    config: &VerdictConfig,
    history: &History,
    cohorts: Option<(&Cohorts, u32)>,
    scratch: &mut Scratch,
) -> Weighed {
    let residence = residence(&history.ages(), history.more_objects());
    let mut weighed = Weighed {
        residence,
        turns_over: history.turned_over_for().is_some_and(|windows| windows >= TURNOVER_KNOWN),
        idle: history.idle,
        below_high: history.active_since_rise,
        sum: history.sum,
        ..Weighed::default()
    };
    let since = history.active.saturating_sub(history.episode);
    weighed.larger = history.larger();
    let mut best: Option<Weighed> = None;
    let mut slowest = None;
    // A queue that gets longer frees later and later: there is no envelope that it fits under. What
    // was filled before anything was freed is another episode.
    let freeing = history.freeing_for().filter(|windows| *windows < since);
    let reaches = [
        Some((since, residence, false)),
        freeing.map(|freeing| (freeing, residence, false)),
        Some((since, residence.min(QUEUE_REACH), true)),
    ];
    let tiers = history.pyramid.tiers.iter();
    let looks = tiers.flat_map(|tier| {
        reaches.into_iter().flatten().map(move |(since, reach, queue)| (tier, since, reach, queue))
    });
    for (tier, since, reach, queue) in looks {
        if queue && !weighed.turns_over {
            continue;
        }
        let Some(trend) = trend::of(tier, since, reach, scratch) else { continue };
        weighed.trend = Some(trend);
        weighed.as_queue = queue;
        if queue && !weighed.queues() {
            continue;
        }
        let matters = weighed.turns_over && !weighed.grows_in_size() && trend.growth() > 0.0;
        weighed.old_share = None;
        if matters {
            let (age, reach) = (old_age(&weighed, &trend), reach_of(history, &trend));
            let old = old(history, cohorts, &weighed, age, reach);
            weighed.old_share = old.map(|old| old as f64 / trend.growth().max(1.0));
        }
        weighed.grows = grows(config, &trend);
        let missing = missing(config, &weighed);
        weighed.grows &= !missing.iter().any(Missing::explains);
        weighed.leak = weighed.grows && missing.is_empty();
        // Seen from farther away what was fast at first and is slow now is no straight line.
        let slowed = (trend.points >= STRAIGHT_POINTS).then(|| slows(config, &weighed)).flatten();
        slowest = slowed.or(slowest);
        let better = best.is_none_or(|best| rank(&weighed) > rank(&best));
        if better {
            best = Some(weighed);
        }
    }
    let mut best = best.unwrap_or(Weighed { trend: None, ..weighed });
    if !best.turns_over && best.leak {
        best.slowed = slowest;
        best.leak = slowest.is_none();
    }
    keeps(history, cohorts, &mut best);
    best
}

/// Says how much of what is live is old, where growth says nothing of what is freed.
fn keeps(history: &History, cohorts: Option<(&Cohorts, u32)>, weighed: &mut Weighed) {
    let Some(trend) = &weighed.trend else { return };
    if !weighed.turns_over || weighed.grows_in_size() || weighed.queues() {
        return;
    }
    let age = history.kept.as_ref().map_or_else(|| old_age(weighed, trend), |kept| kept.age);
    weighed.old_age = age;
    weighed.old_bytes = old(history, cohorts, weighed, age, u32::MAX);
}

/// Bytes that are live, at least `age` windows old and at most `reach`, as far as that is known.
fn old(
    history: &History,
    cohorts: Option<(&Cohorts, u32)>,
    weighed: &Weighed,
    age: u32,
    reach: u32,
) -> Option<u64> {
    match cohorts {
        Some((cohorts, now)) => Some(old_bytes(cohorts, now, age, reach)),
        // Of sums it is known of memory of one age only.
        None if history.sum => {
            history.more_old_bytes().filter(|_| weighed.residence <= super::sums::OLD / 2)
        }
        // Of kernel memory by classes of age, too coarse for what waits in a queue.
        None if weighed.queues() => None,
        None => history.old.more(age, reach),
    }
}

/// How straight growth is. Where nothing was ever freed the number of objects tells as well: sizes
/// differ by chance.
pub(super) fn straight(weighed: &Weighed) -> Option<f64> {
    let trend = weighed.trend.as_ref()?;
    let by_objects = trend.by_objects.filter(|_| !weighed.turns_over && !weighed.sum);
    match (trend.straight(), by_objects) {
        (Some(bytes), Some(objects)) => Some(bytes.max(objects)),
        (bytes, _) => bytes,
    }
}

/// By how much a site that never frees has slowed down, if it has.
fn slows(config: &VerdictConfig, weighed: &Weighed) -> Option<f64> {
    let trend = weighed.trend.as_ref()?;
    let [_, last] = config.straight;
    let straight = straight(weighed).filter(|straight| *straight < last);
    straight.or_else(|| trend.fewer(FEWER, FEWER_BY_CHANCE))
}

/// The finest tier that says most.
fn rank(weighed: &Weighed) -> (bool, bool) {
    (weighed.leak, weighed.grows)
}

/// Windows from which on what is live is old: a little more than the residence time, which is
/// known to an eighth.
pub(super) fn old_age(weighed: &Weighed, trend: &Trend) -> u32 {
    let age = if weighed.queues() {
        trend.windows() / 8
    } else {
        weighed.residence + weighed.residence.div_ceil(8)
    };
    age.max(2)
}

/// Windows since growth began.
fn reach_of(history: &History, trend: &Trend) -> u32 {
    let idle = history.windows.saturating_sub(history.active);
    trend.windows().saturating_add(idle).saturating_add(2)
}

fn grows(config: &VerdictConfig, trend: &Trend) -> bool {
    trend.points > config.growing_windows
        && trend.slope.p < GROWING_P
        && trend.slope.low > 0.0
        && trend.growth() >= config.min_growth()
        && !rests(trend)
}

/// Whether the last maximum is longer ago than is usual for this growth.
fn rests(trend: &Trend) -> bool {
    f64::from(trend.rest) > (3.0 * trend.gap()).max(2.0 * f64::from(trend.width))
}

/// Whether the floor was higher before, and not only a moment ago.
fn below_high(trend: &Trend, windows: u32) -> bool {
    f64::from(windows) > (3.0 * trend.gap()).max(3.0 * f64::from(trend.width))
}

/// Windows of growth that a leak takes here.
pub(super) fn needed(config: &VerdictConfig, weighed: &Weighed) -> u32 {
    let size = weighed.grows_in_size();
    // Where it is known how old is what is live, less time tells.
    let known = weighed.turns_over && weighed.old_share.is_some() && !weighed.sum;
    let windows = match known && !size && !weighed.queues() {
        true => config.turnover_windows,
        false => config.leak_windows,
    };
    // Where steps are few it takes longer to see that they become fewer. The contract's time is for
    // sites; sums wait until these were judged.
    let longer = match weighed.sum {
        true => config.leak_windows * 13 / 10,
        false => config.leak_windows * 5 / 4,
    };
    let few = |trend: Trend| !weighed.turns_over && trend.maxima * 2 < trend.windows();
    let windows = if weighed.trend.is_some_and(few) { longer } else { windows };
    let residence = match known {
        true => weighed.residence.saturating_mul(5) / 4,
        false => weighed.residence.saturating_mul(2),
    };
    if weighed.queues() { windows.max(residence.min(longer)) } else { windows.max(residence) }
}

/// What is missing to call this growth a leak; nothing where it is one.
pub(super) fn missing(config: &VerdictConfig, weighed: &Weighed) -> Vec<Missing> {
    let mut missing = Vec::new();
    let Some(trend) = &weighed.trend else { return missing };
    missing.extend(weighed.slowed.map(Missing::Straight));
    let (seen, needed) = (trend.grew_for(), needed(config, weighed));
    let idle_enough =
        weighed.idle > 0 && weighed.nearly(config) && seen + weighed.idle >= needed + needed / 4;
    if seen < needed && !idle_enough {
        missing.push(Missing::Time(needed - seen));
    }
    let steps = match (weighed.turns_over, weighed.sum) {
        (true, false) => config.leak_steps * 5 / 12,
        (true, true) => config.leak_steps / 2,
        (false, _) => config.leak_steps,
    };
    if trend.maxima < steps {
        missing.push(Missing::Steps(trend.maxima, steps));
    }
    if trend.slope.p >= config.trend_p || trend.slope.low <= 0.0 {
        missing.push(Missing::Chance(trend.slope.p));
    }
    let straight = straight(weighed).unwrap_or(0.0);
    // What is copied into larger and larger blocks grows in larger and larger steps.
    let enough = match weighed.grows_in_size() {
        true => STRAIGHT_IN_STEPS,
        false => straight_enough(config, seen, needed) - by_chance(weighed, trend),
    };
    if straight < enough {
        missing.push(Missing::Straight(straight));
    } else if !weighed.turns_over {
        missing.extend(trend.fewer(FEWER, FEWER_BY_CHANCE).map(Missing::Straight));
        let work = trend.by_work.is_some_and(|ratio| ratio < BURSTS && trend.work_counts());
        let most = trend.by_time.unwrap_or(0.0).max(trend.load.unwrap_or(0.0));
        let follows = !weighed.sum && trend.width == 1 && trend.rises_in(ALWAYS);
        let bursts = Some(most).filter(|ratio| *ratio > BURSTS && !work && !follows);
        missing.extend(bursts.map(Missing::Bursts));
    }
    if rests(trend) {
        missing.push(Missing::Rest(trend.rest));
    } else if below_high(trend, weighed.below_high) {
        missing.push(Missing::Below(weighed.below_high));
    }
    match (weighed.turns_over, weighed.old_share, trend.load) {
        _ if weighed.grows_in_size() => {}
        (true, None, _) if trend.more_objects() < BEYOND_CHANCE => {
            missing.push(Missing::Few(trend.objects_last - trend.objects_first));
        }
        (true, Some(share), _) if share < weighed.old_enough() => missing.push(Missing::Old(share)),
        // Of sums, and of kernel memory that lives for long, it is not known how old it is.
        (true, None, _) if !trend.rises_in(MOST_WINDOWS) => {
            missing.push(Missing::Few(trend.objects_last - trend.objects_first));
        }
        (true, None, _)
            if weighed.queues()
                && trend.rises_in(NEARLY_ALL)
                && seen >= config.leak_windows * 2 => {}
        (true, None, load)
            if trend.objects_last <= trend.late * f64::from(weighed.residence)
                || load.is_some_and(|load| {
                    load > 1.0 && trend.last <= trend.first * load * LOAD_MARGIN
                }) =>
        {
            missing.push(Missing::Load(load.unwrap_or(1.0)));
        }
        _ => {}
    }
    if let Some(pace) = trend.pace.filter(|pace| weighed.turns_over && *pace > FASTER_PACE) {
        missing.push(Missing::Pace(pace));
    }
    missing
}

/// By how much late over middle growth may be smaller by chance, where it is known that what is
/// live is older than what is freed.
fn by_chance(weighed: &Weighed, trend: &Trend) -> f64 {
    let known = weighed.turns_over && weighed.old_share.is_some() && !weighed.sum;
    // Over hours there are points enough, and a queue may be full soon.
    if known && trend.width == 1 && !weighed.queues() {
        (trend.by_chance * DEVIATIONS).min(BY_CHANCE)
    } else {
        0.0
    }
}

/// At first a curve must be nearly straight; the longer it has been seen the less so.
fn straight_enough(config: &VerdictConfig, seen: u32, needed: u32) -> f64 {
    let [first, last] = config.straight;
    // From 8 minutes on, and for as long again: by then most caches have slowed down.
    let since = needed.max(config.leak_windows);
    let longer =
        f64::from(seen.saturating_sub(since)) / (f64::from(config.leak_windows.max(1)) / 3.0);
    first + (last - first) * longer.clamp(0.0, 1.0)
}

/// A look at a row, without what is only for levels above it.
pub(super) fn look(sample: &crate::ledger::RowSample<'_>) -> Look {
    Look {
        low_bytes: sample.low_bytes,
        live: sample.live,
        allocated: sample.allocated,
        freed: sample.freed,
        ages: sample.ages,
        old_bytes: None,
        first_ns: sample.first_ns,
    }
}

/// By how much growth is straighter than it must be to be a leak.
pub(super) fn straight_margin(config: &VerdictConfig, weighed: &Weighed) -> f64 {
    let Some(trend) = &weighed.trend else { return 0.0 };
    let enough = straight_enough(config, trend.windows(), needed(config, weighed));
    straight(weighed).unwrap_or(0.0) - enough
}
