//! Until when mapping events have been taken in. A short process may have ended, and its calls
//! have been heard of, before the events that name its addresses were: who names waits for them.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::expendable::lock;

/// Longest wait: whoever takes the events in may itself wait for a file on a dead mount.
const PATIENCE: Duration = Duration::from_secs(1);

/// How far mapping events have been taken in.
#[derive(Debug, Default)]
pub struct Told {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Nothing before this is still to come; `None` where nobody tells.
    until: Option<Instant>,
    /// A wait was in vain, and nothing has come since.
    in_vain: bool,
}

impl Told {
    /// All events from before `at` have been taken in.
    pub fn until(&self, at: Instant) {
        let mut state = lock(&self.state);
        *state = State { until: Some(at), in_vain: false };
        drop(state);
        self.moved.notify_all();
    }

    /// Whether anybody tells.
    #[must_use]
    pub fn is_told(&self) -> bool {
        lock(&self.state).until.is_some()
    }

    /// Waits until all events from before `at` have been taken in; not for ever, and not at all
    /// where nobody tells.
    pub fn wait_for(&self, at: Instant) {
        let waits =
            |state: &mut State| !state.in_vain && state.until.is_some_and(|until| until < at);
        let state = lock(&self.state);
        let (mut state, wait) = match self.moved.wait_timeout_while(state, PATIENCE, waits) {
            Ok(done) => done,
            Err(poisoned) => poisoned.into_inner(),
        };
        state.in_vain |= wait.timed_out();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_goes_on_when_told_and_nobody_waits_twice_in_vain() {
        let told = Told::default();
        let start = Instant::now();
        // Nobody tells.
        told.wait_for(start);
        let later = start + Duration::from_secs(3_600);
        std::thread::scope(|scope| {
            told.until(start);
            let waiting = scope.spawn(|| told.wait_for(later));
            told.until(later);
            waiting.join().unwrap();
        });
        told.wait_for(later);
        // In vain, and at once the second time.
        let never = later + Duration::from_secs(1);
        told.wait_for(never);
        assert!(lock(&told.state).in_vain);
        told.wait_for(never);
    }
}
