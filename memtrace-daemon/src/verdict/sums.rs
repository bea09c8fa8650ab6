//! Sums over the sites of a process and over the processes of a service, so that many sites that
//! grow a little each, and workers that die before they are caught, are seen.

use memtrace_common::{Amount, Domain};
use rustc_hash::FxHashMap;

use super::history::Look;
use super::residence::old_bytes;
use crate::ledger::{FoldedKey, FreedAges, RowSample};

/// Windows of a process' life that a service does not count: start-up.
const START: u32 = 2;
/// For what a process held at its end to count as leaked by its service although the end gave it
/// back, it must have risen in so many windows after start-up, in this share of them, and have
/// fallen in no more than that one.
const ROSE_AT_LEAST: u32 = 2;
const ROSE: f64 = 0.5;
const FELL: f64 = 0.1;
/// A process is judged as a sum where its largest site holds less than this share.
const LARGEST: f64 = 0.5;

/// Windows for which a service without a process is remembered, an hour of the usual ones: whatever
/// starts a program again waits for minutes at most.
const LINGERS: u32 = 360;

/// Windows after which memory of a sum is old: it outlives requests.
pub(super) const OLD: u32 = 16;
/// Windows that processes of a service must live for, for old memory to say anything.
const LONG_LIVED: u32 = 2 * OLD;

/// What one process holds in one domain.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    pub(super) service: FoldedKey,
    pub(super) look: Look,
    /// Sites.
    rows: u32,
    pub(super) round: u64,
    /// Live bytes of the largest site.
    largest: u64,
    /// The lowest sum in this window, the floor of the last one, and in how many it rose and fell.
    floor: u64,
    last: Option<u64>,
    windows: u32,
    rising: u32,
    falling: u32,
    /// What it has added to its service's joined growth.
    added: i64,
    /// Bytes that are old, as of this window's first look; `None` where that is not followed.
    old: Option<u64>,
    allocations: u64,
}

/// All processes of one program in one cgroup.
#[derive(Clone, Debug, Default)]
pub(super) struct Service {
    /// Growth of its processes since start-up, each, the ended ones among them, bytes.
    joined: i64,
    /// Old bytes of those that run and have done so for long.
    old: Option<u64>,
    allocations: u64,
    first_ns: u64,
    /// Processes now, those of them that rose in the last window, and all that ever were.
    pub(super) members: u32,
    pub(super) rising: u32,
    pub(super) ever: u32,
    /// Windows since it had a process.
    alone: u32,
}

/// All sums.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) processes: FxHashMap<(u32, Domain), Sum>,
    pub(super) services: FxHashMap<(FoldedKey, Domain), Service>,
    /// Allocations of each process at all its sites: cumulative, and at the last window's end.
    work: FxHashMap<u32, Work>,
}

/// What a process does.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    allocations: u64,
    round: u64,
    at_window: u64,
    /// In the last window, and usually.
    lately: u64,
    usual: f32,
}

impl Sums {
    /// Adds a row to whoever it belongs to; at a window's first look, `window` says which it is.
    pub(super) fn add(&mut self, sample: &RowSample<'_>, round: u64, window: Option<u32>) {
        if sample.owner == 0 || sample.frozen {
            return;
        }
        let work = self.work.entry(sample.owner).or_default();
        if work.round != round {
            work.round = round;
            work.allocations = 0;
        }
        work.allocations += sample.allocated.count;
        let sum = self.processes.entry((sample.owner, sample.domain)).or_insert_with(|| Sum {
            service: sample.service,
            look: Look { first_ns: sample.first_ns, ..Look::default() },
            rows: 0,
            round: 0,
            largest: 0,
            floor: u64::MAX,
            last: None,
            windows: 0,
            rising: 0,
            falling: 0,
            added: 0,
            old: None,
            allocations: 0,
        });
        if sum.round != round {
            let first_ns = sum.look.first_ns;
            sum.look = Look { first_ns, ..Look::default() };
            sum.old = sum.old.filter(|_| window.is_none());
            sum.rows = 0;
            sum.largest = 0;
            sum.round = round;
            sum.service = sample.service;
        }
        let look = &mut sum.look;
        look.live = look.live.saturating_add(sample.live);
        look.allocated = look.allocated.saturating_add(sample.allocated);
        look.freed = look.freed.saturating_add(sample.freed);
        look.ages.add(&sample.ages);
        look.first_ns = look.first_ns.min(sample.first_ns);
        sum.rows += 1;
        sum.largest = sum.largest.max(sample.live.bytes);
        if let (Some(now), Some(cohorts)) = (window, sample.cohorts) {
            let old = old_bytes(cohorts, now, OLD, u32::MAX);
            sum.old = Some(sum.old.unwrap_or(0).saturating_add(old));
        }
    }

    /// After all rows of a look were added.
    pub(super) fn look(&mut self, round: u64) {
        for sum in self.processes.values_mut().filter(|sum| sum.round == round) {
            sum.look.low_bytes = sum.look.live.bytes;
            sum.look.old_bytes = sum.old;
            sum.floor = sum.floor.min(sum.look.live.bytes);
        }
    }

    /// Ends a window: joins what processes grew by into their services.
    pub(super) fn end_window(&mut self, round: u64) {
        for work in self.work.values_mut() {
            work.lately = work.allocations.saturating_sub(work.at_window);
            work.at_window = work.allocations;
            let lately = work.lately as f32;
            if lately > 0.2 * work.usual {
                work.usual += (lately - work.usual) * if work.usual == 0.0 { 1.0 } else { 0.1 };
            }
        }
        self.work.retain(|_, work| work.round == round);
        for service in self.services.values_mut() {
            service.members = 0;
            service.rising = 0;
            service.old = None;
        }
        let Self { processes, services, .. } = self;
        processes.retain(|(_, domain), sum| {
            let service = services.entry((sum.service, *domain)).or_default();
            if sum.round != round {
                // It has ended. What it gave back at its end counts as leaked if it grew until
                // then; else it was its work. Kernel memory nobody gave back: it is still there.
                if *domain != Domain::Kernel && !sum.rose_until_its_end() {
                    service.joined -= sum.added;
                }
                return false;
            }
            let floor = std::mem::replace(&mut sum.floor, u64::MAX).min(sum.look.live.bytes);
            service.ever += u32::from(sum.windows == 0);
            service.members += 1;
            if service.first_ns == 0 {
                service.first_ns = sum.look.first_ns;
            }
            sum.windows += 1;
            if let Some(last) = sum.last
                && sum.windows > START
            {
                let change = i64::try_from(floor).unwrap_or(i64::MAX)
                    - i64::try_from(last).unwrap_or(i64::MAX);
                sum.added += change;
                service.joined += change;
                sum.rising += u32::from(change > 0);
                sum.falling += u32::from(change < 0);
                service.rising += u32::from(change > 0);
            }
            sum.last = Some(floor);
            if let Some(old) = sum.old.filter(|_| sum.windows >= LONG_LIVED) {
                service.old = Some(service.old.unwrap_or(0).saturating_add(old));
            }
            let allocated = sum.look.allocated.count;
            service.allocations += allocated.saturating_sub(sum.allocations);
            sum.allocations = allocated;
            true
        });
        services.retain(|_, service| {
            service.alone = if service.members > 0 { 0 } else { service.alone + 1 };
            service.alone < LINGERS
        });
    }

    /// Allocations of a process in the last window, and whether that is a usual amount.
    pub(super) fn work(&self, owner: u32) -> (u64, bool) {
        match self.work.get(&owner) {
            Some(work) => (work.lately, work.lately as f32 > 0.2 * work.usual),
            None => (0, false),
        }
    }
}

impl Sum {
    /// Whether the sum says more than any one of its sites.
    pub(super) fn has_many(&self) -> bool {
        self.rows > 1 && (self.largest as f64) < self.look.live.bytes as f64 * LARGEST
    }

    fn rose_until_its_end(&self) -> bool {
        let counted = f64::from(self.windows.saturating_sub(START));
        let (rising, falling) = (f64::from(self.rising), f64::from(self.falling));
        self.rising >= ROSE_AT_LEAST && rising >= counted * ROSE && falling <= counted * FELL
    }
}

impl Service {
    /// The service as if it were one process that never ended.
    pub(super) fn look(&self) -> Look {
        let bytes = u64::try_from(self.joined.max(0)).unwrap_or(0);
        Look {
            low_bytes: bytes,
            live: Amount { count: 0, bytes },
            allocated: Amount { count: self.allocations, bytes: 0 },
            freed: Amount::default(),
            ages: FreedAges::default(),
            old_bytes: self.old,
            first_ns: self.first_ns,
        }
    }

    /// Whether there is more to it than one process.
    pub(super) const fn has_several(&self) -> bool {
        self.ever > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::RowKey;

    fn sample(owner: u32, domain: Domain, bytes: u64) -> RowSample<'static> {
        let live = Amount { count: 1, bytes };
        RowSample {
            key: RowKey::Call { space: owner, function: 16, stack: 7 },
            domain,
            owner,
            service: FoldedKey::default(),
            owner_ended_ns: None,
            low_bytes: bytes,
            live,
            allocated: live,
            freed: Amount::default(),
            ages: FreedAges::default(),
            cohorts: None,
            live_ages: None,
            first_ns: 1,
            frozen: false,
        }
    }

    /// Windows in which a process holds so much, one window after the other.
    fn windows(sums: &mut Sums, from: u64, domain: Domain, held: &[u64]) -> u64 {
        let mut round = from;
        for bytes in held {
            round += 1;
            sums.add(&sample(1, domain, *bytes), round, Some(0));
            sums.look(round);
            sums.end_window(round);
        }
        round
    }

    #[test]
    fn what_a_process_gave_back_at_its_end_is_subtracted_and_kernel_memory_is_still_there() {
        let mut held: Vec<u64> = (1..=20).map(|window| window * 1_000).collect();
        held.extend([20_000; 60]);
        for (domain, left) in [(Domain::Cuda, 0), (Domain::Kernel, 18_000)] {
            let mut sums = Sums::default();
            let round = windows(&mut sums, 0, domain, &held);
            sums.end_window(round + 1);
            let service = &sums.services[&(FoldedKey::default(), domain)];
            assert_eq!((service.joined, service.members), (left, 0), "{domain:?}");
        }
    }

    #[test]
    fn a_service_without_a_process_is_forgotten_in_the_end() {
        let mut sums = Sums::default();
        let mut round = windows(&mut sums, 0, Domain::Cuda, &[1_000; 5]);
        for _ in 1..LINGERS {
            round += 1;
            sums.end_window(round);
        }
        assert_eq!(sums.services.len(), 1, "whatever starts it again may wait");
        sums.end_window(round + 1);
        assert!(sums.services.is_empty() && sums.processes.is_empty());
    }
}
