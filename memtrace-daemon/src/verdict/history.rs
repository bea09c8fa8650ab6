//! What is remembered of one subject between two looks: the pyramid of its floors, when it last
//! rose, and what was last said of it.

use memtrace_common::{AGE_CLASSES, Amount};

use super::VerdictConfig;
use super::judge::Traffic;
use super::kept::Kept;
use super::old::Old;
use super::pyramid::{Pyramid, Rough, Window};
use super::weigh::Weighed;
use crate::ledger::FreedAges;
use crate::snapshot::Verdict;

/// A new maximum is one by more than this share of the growth so far.
const NEW_MAXIMUM: f64 = 0.01;
/// Windows after which it is forgotten how high a floor once was: 6 hours.
const LONG_AGO: u32 = 2_160;
/// Share of what is allocated that must be freed for anything to follow from it.
const TURNOVER: f64 = 0.1;
/// Windows that the rate of allocations at first is taken of.
const EARLY: u32 = 6;

/// What a look at a subject finds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    /// Lowest live bytes since the last look.
    pub(super) low_bytes: u64,
    /// Live now.
    pub(super) live: Amount,
    /// Cumulative.
    pub(super) allocated: Amount,
    pub(super) freed: Amount,
    pub(super) ages: FreedAges,
    /// Of `live`: bytes that are old, of a sum whose objects are followed one by one.
    pub(super) old_bytes: Option<u64>,
    /// First allocation, monotonic ns.
    pub(super) first_ns: u64,
}

/// The history of one subject.
#[derive(Debug)]
pub(super) struct History {
    pub(super) pyramid: Pyramid,
    /// Whose work is compared, and whether this is a sum over sites.
    pub(super) owner: u32,
    pub(super) sum: bool,
    /// When watching began, ns, and what the counters were.
    pub(super) watched_ns: u64,
    pub(super) allocated: Amount,
    ages: [u64; AGE_CLASSES],
    pub(super) live_bytes: u64,
    pub(super) traffic: Traffic,
    /// Windows watched; those of them that are in the pyramid, where idle ones are not.
    pub(super) windows: u32,
    pub(super) active: u32,
    /// Idle windows up to now, in a row.
    pub(super) idle: u32,
    /// `active` when the first free was seen.
    first_free: Option<u32>,
    /// The floor when the subject was old enough to be judged, the fewest objects since, and how
    /// many it allocated a window then and of late.
    pub(super) base: Option<u64>,
    base_old: u64,
    pub(super) old: Old,
    low_objects: u64,
    early: f64,
    pub(super) late: f64,
    /// Bytes an allocation, then and of late.
    early_size: f64,
    late_size: f64,
    /// `active` when the present growth began: after the last rest.
    pub(super) episode: u32,
    window_bytes: u64,
    /// Highest floor so far; windows since it rose: of all and of those that were not idle.
    pub(super) high: u64,
    pub(super) rises: u32,
    pub(super) since_rise: u32,
    pub(super) active_since_rise: u32,
    /// The highest floor to the byte, and windows with work since: what a leak must rest from.
    record: u64,
    pub(super) active_since_record: u32,
    /// Windows since anything happened, and how long that usually takes.
    quiet: u32,
    usual_quiet: f32,
    /// What was last said, and since when.
    pub(super) verdict: Verdict,
    pub(super) since_ns: u64,
    /// The floor that a leak grew from, and what it keeps, where that is known.
    pub(super) leak_from: u64,
    pub(super) kept: Option<Box<Kept>>,
    pub(super) weighed: Weighed,
    /// The last look at which the subject was there.
    pub(super) round: u64,
    /// A number of its own that says when it is weighed.
    slot: u64,
    /// The window that is not over yet.
    floor: u64,
    objects: u64,
    window_allocated: u64,
    window_freed: u64,
    now: Look,
}

impl History {
    pub(super) fn new(
        config: &VerdictConfig,
        now_ns: u64,
        owner: u32,
        look: &Look,
        traffic: Traffic,
        slot: u64,
    ) -> Self {
        // What was small until now is not young.
        let grown_up = config.min_age_ns() + config.window_ns() * u64::from(config.growing_windows);
        let old = now_ns.saturating_sub(look.first_ns) >= grown_up;
        Self {
            pyramid: Pyramid::new(),
            owner,
            sum: false,
            watched_ns: now_ns,
            allocated: look.allocated,
            ages: look.ages.frees,
            live_bytes: look.live.bytes,
            traffic,
            windows: 0,
            active: 0,
            idle: 0,
            first_free: (!look.freed.is_zero()).then_some(0),
            base: None,
            base_old: 0,
            old: Old::default(),
            low_objects: u64::MAX,
            early: 0.0,
            late: 0.0,
            early_size: 0.0,
            late_size: 0.0,
            episode: 0,
            window_bytes: look.allocated.bytes,
            high: 0,
            rises: 0,
            since_rise: 0,
            active_since_rise: 0,
            record: 0,
            active_since_record: 0,
            quiet: 0,
            usual_quiet: 1.0,
            verdict: if old { Verdict::Steady } else { Verdict::Warming },
            since_ns: now_ns,
            leak_from: 0,
            kept: None,
            weighed: Weighed::default(),
            round: 0,
            slot,
            floor: look.live.bytes,
            objects: look.live.count,
            window_allocated: look.allocated.count,
            window_freed: look.freed.count,
            now: *look,
        }
    }

    /// When in a window it is weighed, ns from the window's start: not all at once, but each once
    /// a window.
    pub(super) const fn turn(&self, window_ns: u64) -> u64 {
        (window_ns >> 16) * (self.slot & 0xffff)
    }

    /// A look within a window.
    pub(super) fn tick(&mut self, look: &Look) {
        self.floor = self.floor.min(look.low_bytes).min(look.live.bytes);
        self.objects = self.objects.min(look.live.count);
        self.now = *look;
    }

    /// Ends a window. `work` is what the process allocated in it at all sites, `works` whether
    /// that is as much as usual.
    pub(super) fn end_window(
        &mut self,
        config: &VerdictConfig,
        now_ns: u64,
        work: u64,
        works: bool,
    ) {
        let look = self.now;
        let allocations = look.allocated.count.saturating_sub(self.window_allocated);
        let frees = look.freed.count.saturating_sub(self.window_freed);
        let floor = std::mem::replace(&mut self.floor, look.live.bytes);
        let objects = std::mem::replace(&mut self.objects, look.live.count);
        let bytes = look.allocated.bytes.saturating_sub(self.window_bytes);
        self.window_allocated = look.allocated.count;
        self.window_bytes = look.allocated.bytes;
        self.window_freed = look.freed.count;
        self.windows += 1;
        if frees > 0 {
            self.first_free.get_or_insert(self.active);
        }
        if now_ns.saturating_sub(look.first_ns) < config.min_age_ns() {
            return;
        }
        let base = *self.base.get_or_insert_with(|| {
            self.base_old = look.old_bytes.unwrap_or(0);
            self.old.begin(now_ns);
            floor
        });
        self.low_objects = self.low_objects.min(objects);
        if self.rests(allocations + frees > 0, works) {
            self.idle += 1;
            self.since_rise += 1;
            return;
        }
        self.idle = 0;
        let count = allocations as f64;
        if self.active < EARLY {
            self.early += (count - self.early) / f64::from(self.active + 1);
            self.late = self.early;
        }
        self.late += (count - self.late) * 0.2;
        if allocations > 0 {
            let size = bytes as f64 / count;
            if self.active < EARLY || self.early_size == 0.0 {
                self.early_size = self.early_size.max(size);
                self.late_size = size;
            }
            self.late_size += (size - self.late_size) * 0.2;
        }
        self.active += 1;
        self.pyramid.push(Window {
            floor,
            objects: u32::try_from(objects).unwrap_or(u32::MAX),
            allocations: Rough::of(count as f32),
            work: Rough::of(work.saturating_sub(allocations) as f32),
        });
        self.active_since_record = match floor > self.record {
            true => 0,
            false => self.active_since_record + 1,
        };
        self.record = self.record.max(floor);
        let grown = self.high.saturating_sub(base) as f64;
        if self.active == 1 {
            self.high = floor;
        } else if floor as f64 > self.high as f64 + grown * NEW_MAXIMUM {
            // Idle windows count: what rested has begun anew, whyever it rested.
            if self.since_rise >= self.patience(config)
                && matches!(self.verdict, Verdict::Plateau | Verdict::Steady)
            {
                self.episode = self.active.saturating_sub(2);
                self.old.begin(now_ns);
            }
            self.high = floor;
            self.rises += 1;
            self.since_rise = 0;
            self.active_since_rise = 0;
            return;
        }
        self.since_rise += 1;
        self.active_since_rise += 1;
        if self.active_since_rise >= LONG_AGO {
            // Long ago is another life: what rises now is news, whatever was then.
            self.high = self.pyramid.highest();
            self.active_since_rise = 0;
        }
    }

    /// Whether nothing happens here for longer than usual while the process does less than
    /// usual.
    fn rests(&mut self, happened: bool, works: bool) -> bool {
        if happened {
            let usual = (self.quiet + 1) as f32;
            self.usual_quiet += (usual - self.usual_quiet) * 0.2;
            self.quiet = 0;
            return false;
        }
        self.quiet += 1;
        !works && self.quiet as f32 > 3.0 * self.usual_quiet
    }

    /// Frees by age since watching began.
    pub(super) fn ages(&self) -> FreedAges {
        let mut ages = self.now.ages;
        for (now, then) in ages.frees.iter_mut().zip(self.ages) {
            *now = now.saturating_sub(then);
        }
        ages
    }

    /// By how many objects live memory has grown.
    pub(super) fn more_objects(&self) -> u64 {
        self.now.live.count.saturating_sub(self.low_objects)
    }

    /// Bytes that have become old and are live since the subject is judged, where that is known.
    pub(super) fn more_old_bytes(&self) -> Option<u64> {
        self.now.old_bytes.map(|old| old.saturating_sub(self.base_old))
    }

    /// Allocations until `windows` active windows ago.
    pub(super) fn allocated_before(&self, windows: u32) -> u64 {
        let [fine, ..] = &self.pyramid.tiers;
        let lately = fine.windows.iter().rev().take(usize::try_from(windows).unwrap_or(usize::MAX));
        let lately: f64 = lately.map(|window| window.allocations.get()).sum();
        let since = self.now.allocated.count.saturating_sub(self.allocated.count);
        since.saturating_sub(lately as u64)
    }

    /// Windows with work since the first free was seen; `None` where hardly anything was freed.
    pub(super) fn turned_over_for(&self) -> Option<u32> {
        let freed = self.ages().frees.iter().sum::<u64>() as f64;
        let allocated = self.now.allocated.count.saturating_sub(self.allocated.count) as f64;
        self.freeing_for().filter(|_| freed >= allocated * TURNOVER)
    }

    /// Windows with work since the first free.
    pub(super) fn freeing_for(&self) -> Option<u32> {
        self.first_free.map(|first| self.active.saturating_sub(first))
    }

    /// By how much larger allocations are than at first.
    pub(super) fn larger(&self) -> f64 {
        if self.early_size > 0.0 { self.late_size / self.early_size } else { 1.0 }
    }

    /// By how much more is allocated a window than at first.
    pub(super) fn load(&self) -> f64 {
        if self.early > 0.0 { self.late / self.early } else { 1.0 }
    }

    /// The floor of the last window.
    pub(super) fn last_floor(&self) -> u64 {
        let [fine, ..] = &self.pyramid.tiers;
        fine.windows.back().map_or(self.floor, |window| window.floor)
    }

    /// Begins anew from the present floor: what grew was freed.
    pub(super) fn begin_again(&mut self, now_ns: u64) {
        self.old.begin(now_ns);
        let floor = self.last_floor();
        self.high = floor;
        self.record = floor;
        self.base = Some(floor);
        self.rises = 0;
        self.since_rise = 0;
        self.active_since_rise = 0;
    }

    /// Whether the subject was large at any time that is still remembered.
    pub(super) fn matters(&self, watch_bytes: u64) -> bool {
        self.windows == 0 || self.floor >= watch_bytes || self.pyramid.highest() >= watch_bytes
    }

    /// Windows without growth after which growth is over: two residence times, as far as these
    /// are worth waiting for, and where growth comes in rare steps three times the usual distance
    /// between them.
    pub(super) fn patience(&self, config: &VerdictConfig) -> u32 {
        let residence = self.weighed.residence.saturating_mul(2).min(config.leak_windows);
        config.plateau_windows.max(residence).max(self.usual_steps())
    }

    /// The same before it is said: what comes in rarer steps may still be news when it comes, but
    /// meanwhile it rests.
    pub(super) fn patience_to_say(&self, config: &VerdictConfig) -> u32 {
        self.patience(config).min(config.leak_windows.saturating_mul(3) / 2)
    }

    /// The same before a leak is believed to be over: two whole residence times, twice.
    pub(super) fn patience_of_leak(&self, config: &VerdictConfig) -> u32 {
        let residence = self.weighed.residence.saturating_mul(2);
        config.plateau_windows.max(residence).max(self.usual_steps()).saturating_mul(2)
    }

    /// Three times the windows between two maxima.
    fn usual_steps(&self) -> u32 {
        let risen = self.active.saturating_sub(self.active_since_rise);
        if self.rises < 3 { 0 } else { 3 * risen / self.rises }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_a_turn_in_each_window() {
        let config = VerdictConfig::default();
        for slot in [0, 1, 0xffff, u64::MAX, 0x1234_5678_9abc_def0] {
            let look = Look::default();
            let history = History::new(&config, 0, 1, &look, Traffic::default(), slot);
            assert!(history.turn(config.window_ns()) < config.window_ns());
        }
    }
}
