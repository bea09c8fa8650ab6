//! Verdicts: is what grows a leak, or a cache, a pool, warm-up or load?
//!
//! Pure: no I/O and no clock; rows and time come in. One way in ([`Rule::observe`]), one way out
//! ([`Verdicts::judge`]). Floors of windows go into histories ([`pyramid`]); once a window each
//! is weighed ([`weigh`]), staggered over its ticks, and decided about ([`decide`]).
//! "Undecided, and here is why" is a good answer; a wrong verdict is the worst one.

pub mod baseline;
mod confidence;
mod config;
mod decide;
mod device;
mod history;
mod host;
mod judge;
mod kept;
mod level;
mod measured;
mod memory;
mod old;
mod pool;
mod pyramid;
mod residence;
mod rule;
mod scratch;
mod silent;
mod stats;
mod sums;
#[cfg(test)]
mod tests;
mod trend;
mod weigh;
mod windows;
mod words;

pub use config::{DomainConfig, VerdictConfig};
pub use device::DeviceLevels;
pub use host::{Ended, HostBooks, HostLevels};
pub use judge::{Judgement, RowFacts, Surroundings, Traffic};
pub use level::Level;
pub use measured::{Gone, Said};
pub use memory::{Booked, ParentBooks, ProcessLevels};
pub use pool::{PoolBooks, Pools};
pub use rule::{EachRow, Rule, Subject};
pub use silent::{no_device_calls, no_heap_calls};

use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, BuildHasherDefault};
use std::ops::Range;

use memtrace_common::Domain;
use rustc_hash::{FxHashMap, FxHasher};

use crate::ledger::{Cohorts, FoldedKey, LiveAges, RowKey, RowSample};
use crate::snapshot::Verdict;
use config::Numbers;
use history::{History, Look};
use scratch::Scratch;
use sums::Sums;

/// Subjects below this share of the smallest size that is judged have no history: it is what
/// keeps ten thousand small sites cheap.
const WATCH_SHARE: u64 = 4;

/// How old what is live is, where that is known.
#[derive(Clone, Copy, Default)]
struct LiveByAge<'a> {
    /// Of what is followed one by one, and the present window.
    cohorts: Option<(&'a Cohorts, u32)>,
    /// Of kernel memory.
    ages: Option<LiveAges>,
}

/// The histories of all subjects that are large enough to matter, and what follows from them.
#[derive(Debug)]
pub struct Verdicts {
    numbers: Numbers,
    /// Boxed: what a table keeps free for growth would be half as many histories again.
    subjects: FxHashMap<Subject, Box<History>>,
    sums: Sums,
    surroundings: Surroundings,
    window_start_ns: Option<u64>,
    /// Looks so far.
    round: u64,
    /// Since the last look, ns from the window's start: whose turn that is, is weighed.
    turn: Range<u64>,
    windows: u64,
    scratch: Scratch,
}

impl Verdicts {
    /// No history yet.
    #[must_use]
    pub fn new(config: VerdictConfig) -> Self {
        Self {
            numbers: Numbers::new(config),
            subjects: FxHashMap::default(),
            sums: Sums::default(),
            surroundings: Surroundings::default(),
            window_start_ns: None,
            round: 0,
            turn: 0..0,
            windows: 0,
            scratch: Scratch::default(),
        }
    }

    /// Forgets all histories: for a while nothing was seen, and nobody knows how much.
    pub fn begin_again(&mut self) {
        self.subjects.clear();
        self.sums = Sums::default();
        self.window_start_ns = None;
        self.turn = 0..0;
    }

    /// What is to be said about a row.
    #[must_use]
    pub fn judge(&self, key: &RowKey, row: &RowFacts<'_>) -> Judgement {
        self.judge_subject(&Subject::Row(*key), row)
    }

    fn judge_subject(&self, subject: &Subject, row: &RowFacts<'_>) -> Judgement {
        let history = self.subjects.get(subject).map(|history| &**history);
        let config = self.numbers.within(judge::domain(subject));
        judge::judge(config, &self.surroundings, subject, history, row)
    }

    /// What is to be said about all sites of a process in a domain; `None` where they are few
    /// or small.
    #[must_use]
    pub fn judge_process(&self, serial: u32, domain: Domain, now_ns: u64) -> Option<Judgement> {
        let sum = self.sums.processes.get(&(serial, domain))?;
        self.judge_sum(Subject::Process(serial, domain), &sum.look, now_ns)
    }

    /// What is to be said about a service, and its processes now, those of them that grow, and
    /// all that ever were.
    #[must_use]
    pub fn judge_service(
        &self,
        service: FoldedKey,
        domain: Domain,
        now_ns: u64,
    ) -> Option<(Judgement, [u32; 3])> {
        let sum = self.sums.services.get(&(service, domain))?;
        let judgement = self.judge_sum(Subject::Service(service, domain), &sum.look(), now_ns)?;
        Some((judgement, [sum.members, sum.rising, sum.ever]))
    }

    /// Services that anything is said about.
    pub fn services(&self) -> impl Iterator<Item = (FoldedKey, Domain)> {
        self.subjects.keys().filter_map(|subject| match subject {
            Subject::Service(service, domain) => Some((*service, *domain)),
            _ => None,
        })
    }

    fn judge_sum(&self, subject: Subject, look: &Look, now_ns: u64) -> Option<Judgement> {
        self.subjects.get(&subject)?;
        let facts = RowFacts {
            now_ns,
            live_bytes: look.live.bytes,
            allocated: look.allocated,
            freed: look.freed,
            first_ns: look.first_ns,
            ..RowFacts::default()
        };
        Some(self.judge_subject(&subject, &facts))
    }

    /// Windows that are over.
    #[must_use]
    pub const fn windows(&self) -> u64 {
        self.windows
    }

    /// Rows of a domain that hold less have no history, bytes.
    #[must_use]
    pub fn watch_bytes(&self, domain: Domain) -> u64 {
        self.numbers.within(domain).min_bytes / WATCH_SHARE
    }

    /// How many subjects have a history.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.subjects.len()
    }

    /// Takes a look at a row.
    fn look_at_row(&mut self, now_ns: u64, sample: &RowSample<'_>) {
        let window = judge::window_of(&self.numbers.everywhere, now_ns);
        self.sums.add(sample, self.round, (self.turn.start == 0).then_some(window));
        let cohorts = sample.cohorts.map(|cohorts| (cohorts, window));
        let live = LiveByAge { cohorts, ages: sample.live_ages };
        let subject = Subject::Row(sample.key);
        self.look_at(now_ns, subject, sample.owner, &weigh::look(sample), live, sample.frozen);
    }

    /// Takes a look at a subject, and weighs it if it is its turn.
    fn look_at(
        &mut self,
        now_ns: u64,
        subject: Subject,
        owner: u32,
        look: &Look,
        live: LiveByAge<'_>,
        frozen: bool,
    ) {
        let Self { numbers, subjects, surroundings, round, turn, scratch, .. } = self;
        let domain = judge::domain(&subject);
        let config = numbers.within(domain);
        let history = match subjects.entry(subject) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if frozen || look.live.bytes < config.min_bytes / WATCH_SHARE => {
                return;
            }
            Entry::Vacant(new) => {
                let slot = BuildHasherDefault::<FxHasher>::default().hash_one(subject);
                let mut history =
                    History::new(config, now_ns, owner, look, surroundings.of(domain), slot);
                history.sum = !matches!(subject, Subject::Row(_));
                new.insert(Box::new(history))
            }
        };
        history.round = *round;
        if frozen {
            return;
        }
        history.old.look(now_ns, config.window_ns(), live.ages);
        history.tick(look);
        // Who grows has it as soon as a window is over as well.
        let soon = turn.start == 0 && history.verdict == Verdict::Growing;
        if soon || turn.contains(&history.turn(config.window_ns())) {
            history.weighed = weigh::weigh(config, history, live.cohorts, scratch);
            let distrusted =
                judge::distrust(config, surroundings, domain, history, look.live.bytes, look.freed);
            decide::decide(config, history, distrusted.is_some(), now_ns);
        }
    }

    /// Takes a look at processes of several sites, and at services of several processes.
    fn look_at_sums(&mut self, now_ns: u64) {
        let round = self.round;
        self.sums.look(round);
        let sums = std::mem::take(&mut self.sums);
        for ((serial, domain), sum) in &sums.processes {
            let subject = Subject::Process(*serial, *domain);
            // One site that is the largest for a while makes nobody forget what was seen.
            if sum.round == round && (sum.has_many() || self.subjects.contains_key(&subject)) {
                self.look_at(now_ns, subject, *serial, &sum.look, LiveByAge::default(), false);
            }
        }
        for ((service, domain), sum) in &sums.services {
            if sum.has_several() {
                let subject = Subject::Service(*service, *domain);
                self.look_at(now_ns, subject, 0, &sum.look(), LiveByAge::default(), false);
            }
        }
        self.sums = sums;
    }

    fn end_window(&mut self, now_ns: u64) {
        let Self { numbers, subjects, sums, round, .. } = self;
        sums.end_window(*round);
        subjects.retain(|subject, history| {
            let config = numbers.within(judge::domain(subject));
            let watch_bytes = config.min_bytes / WATCH_SHARE;
            if history.round != *round {
                return false;
            }
            let (work, works) = sums.work(history.owner);
            history.end_window(config, now_ns, work, works);
            history.matters(watch_bytes) || history.verdict != Verdict::Steady
        });
    }
}

impl Rule for Verdicts {
    fn observe(
        &mut self,
        now_ns: u64,
        surroundings: Surroundings,
        rows: &mut dyn FnMut(&mut EachRow<'_>),
    ) {
        self.surroundings = surroundings;
        self.round += 1;
        let start_ns = *self.window_start_ns.get_or_insert(now_ns);
        let elapsed_ns = now_ns.saturating_sub(start_ns);
        self.turn = self.turn.end..elapsed_ns;
        rows(&mut |sample| self.look_at_row(now_ns, sample));
        self.look_at_sums(now_ns);
        if elapsed_ns >= self.numbers.everywhere.window_ns() {
            self.end_window(now_ns);
            self.windows += 1;
            self.window_start_ns = Some(now_ns);
            self.turn = 0..0;
        }
    }

    fn said(&self, each: &mut dyn FnMut(Subject, Verdict)) {
        for (subject, history) in &self.subjects {
            each(*subject, history.verdict);
        }
    }
}
