//! Live bytes of everything that can be judged, once a window: what all of these rules look at.

use rustc_hash::FxHashMap;

use crate::ledger::RowSample;
use crate::snapshot::Verdict;
use crate::verdict::Subject;

/// How often a level is taken, ns.
pub(super) const WINDOW_NS: u64 = 10_000_000_000;
/// What is smaller is not judged, bytes: the same size as with memtrace's own rule, so that
/// these rules are not blamed for small fry.
pub(super) const MIN_BYTES: u64 = 1 << 20;

/// Where rows are: called with a sample of each.
pub(super) type Rows<'a> = &'a mut dyn FnMut(&mut dyn FnMut(&RowSample<'_>));

/// The state of one rule for everything that it watches.
#[derive(Debug)]
pub(super) struct Levels<T> {
    window_start_ns: Option<u64>,
    states: FxHashMap<Subject, State<T>>,
}

#[derive(Debug, Default)]
struct State<T> {
    bytes: u64,
    seen: bool,
    verdict: Verdict,
    rule: T,
}

impl<T> Default for Levels<T> {
    fn default() -> Self {
        Self { window_start_ns: None, states: FxHashMap::default() }
    }
}

impl<T: Default> Levels<T> {
    /// At the end of a window, gives each subject's live bytes to its rule, which says what it
    /// makes of them. What is gone is forgotten; of a closed space the last word stays.
    pub(super) fn observe(
        &mut self,
        now_ns: u64,
        rows: Rows<'_>,
        mut judge: impl FnMut(&mut T, u64) -> Verdict,
    ) {
        let start_ns = *self.window_start_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(start_ns) < WINDOW_NS {
            return;
        }
        self.window_start_ns = Some(now_ns);
        for state in self.states.values_mut() {
            state.bytes = 0;
            state.seen = false;
        }
        rows(&mut |sample| {
            let mut subjects = vec![Subject::Row(sample.key)];
            if sample.owner != 0 {
                subjects.push(Subject::Process(sample.owner, sample.domain));
                subjects.push(Subject::Service(sample.service, sample.domain));
            }
            for subject in subjects {
                if sample.frozen && matches!(subject, Subject::Service(..)) {
                    continue;
                }
                let new = || State {
                    bytes: 0,
                    seen: false,
                    verdict: Verdict::Warming,
                    rule: T::default(),
                };
                let state = self.states.entry(subject).or_insert_with(new);
                state.bytes = state.bytes.saturating_add(sample.live.bytes);
                state.seen = true;
            }
        });
        self.states.retain(|_, state| state.seen);
        for state in self.states.values_mut() {
            state.verdict = judge(&mut state.rule, state.bytes);
        }
    }

    pub(super) fn said(&self, each: &mut dyn FnMut(Subject, Verdict)) {
        for (subject, state) in &self.states {
            each(*subject, state.verdict);
        }
    }
}
