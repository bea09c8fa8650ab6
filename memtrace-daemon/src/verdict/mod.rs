//! The first verdict: does the floor of live bytes rise at a site, and does it go on rising?
//!
//! Pure: no I/O and no clock; rows and time come in. It is kept small on purpose, with one way
//! in ([`Verdicts::observe`]) and one way out ([`Verdicts::judge`]), so that a better engine
//! can take its place. "Undecided, and here is why" is a good answer; a wrong verdict is the
//! worst one, so a leak takes long evidence.

mod config;
mod history;
mod host;
mod judge;
mod level;
mod measured;
mod memory;
mod rule;
mod series;
#[cfg(test)]
mod tests;
mod words;

pub use config::VerdictConfig;
pub use host::{Ended, HostBooks, HostLevels};
pub use judge::{Judgement, RowFacts, Surroundings, Traffic};
pub use level::Level;
pub use measured::Said;
pub use memory::{Booked, ParentBooks, ProcessLevels};
pub use rule::{Rule, Subject};

use rustc_hash::FxHashMap;

use crate::ledger::{RowKey, RowSample};
use crate::snapshot::Verdict;
use history::History;

/// Rows below this share of the smallest size that is judged have no history: it is what
/// keeps ten thousand small sites cheap.
const WATCH_SHARE: u64 = 4;

/// The histories of all rows that are large enough to matter, and what follows from them.
#[derive(Debug)]
pub struct Verdicts {
    config: VerdictConfig,
    rows: FxHashMap<RowKey, History>,
    surroundings: Surroundings,
    window_start_ns: Option<u64>,
    round: u64,
}

impl Verdicts {
    /// No history yet.
    #[must_use]
    pub fn new(config: VerdictConfig) -> Self {
        Self {
            config,
            rows: FxHashMap::default(),
            surroundings: Surroundings::default(),
            window_start_ns: None,
            round: 0,
        }
    }

    /// Takes one look at the books, once a tick. `rows` calls back with every row that there
    /// is; rows that are not among them are forgotten.
    pub fn observe(
        &mut self,
        now_ns: u64,
        surroundings: Surroundings,
        rows: impl FnOnce(&mut dyn FnMut(&RowSample<'_>)),
    ) {
        self.surroundings = surroundings;
        self.round += 1;
        let start_ns = *self.window_start_ns.get_or_insert(now_ns);
        let window_ends = now_ns.saturating_sub(start_ns) >= self.config.window_ns();
        let watch_bytes = self.config.min_bytes / WATCH_SHARE;
        rows(&mut |sample| {
            let history = match self.rows.get_mut(&sample.key) {
                Some(history) => history,
                None if sample.live.bytes >= watch_bytes && !sample.frozen => {
                    let traffic = surroundings.of(&sample.key);
                    let history = History::new(now_ns, sample, traffic, &self.config);
                    self.rows.entry(sample.key).or_insert(history)
                }
                None => return,
            };
            history.round = self.round;
            if sample.frozen {
                return;
            }
            history.tick(sample);
            if window_ends {
                history.end_window(sample);
                judge::update(&self.config, &surroundings, history, sample, now_ns);
            }
        });
        if window_ends {
            self.window_start_ns = Some(now_ns);
            let round = self.round;
            self.rows.retain(|_, history| {
                history.round == round
                    && (history.matters(watch_bytes) || history.verdict != Verdict::Steady)
            });
        }
    }

    /// What is to be said about a row.
    #[must_use]
    pub fn judge(&self, key: &RowKey, row: &RowFacts) -> Judgement {
        judge::judge(&self.config, &self.surroundings, key, self.rows.get(key), row)
    }

    /// How many rows have a history.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.rows.len()
    }
}

impl Rule for Verdicts {
    fn observe(
        &mut self,
        now_ns: u64,
        surroundings: Surroundings,
        rows: &mut dyn FnMut(&mut dyn FnMut(&RowSample<'_>)),
    ) {
        Self::observe(self, now_ns, surroundings, |each| rows(each));
    }

    fn said(&self, each: &mut dyn FnMut(Subject, Verdict)) {
        for (key, history) in &self.rows {
            each(Subject::Row(*key), history.verdict);
        }
    }
}
