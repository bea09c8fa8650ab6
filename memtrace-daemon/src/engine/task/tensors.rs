//! Looking at tensors on demand: where the domain `torch` is off, each firing of its probes being
//! a trap, they are attached to a process whose pool grows, for as long as a verdict takes.
//!
//! Must never leave them attached: whatever happens to the process, their time is bounded.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{Engine, report};

/// When tensors are looked at although their domain is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDemand {
    /// For how long.
    pub watch: Duration,
    /// How long the same process is left alone after that.
    pub pause: Duration,
    /// Processes at a time.
    pub processes: usize,
}

/// Processes whose tensors are looked at, or were, by serial.
#[derive(Debug, Default)]
pub(super) struct Watched(HashMap<u32, Watch>);

#[derive(Clone, Copy, Debug)]
struct Watch {
    tgid: u32,
    space: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Probes are there until then.
    Until(Instant),
    /// They are being taken away; then what they told is closed.
    Ending,
    /// It is left alone until then.
    Rests(Instant),
}

impl Engine {
    /// Looks who is to be looked at from now on, and who has been for long enough.
    pub(super) fn watch_tensors(&mut self, now: Instant) {
        let Some(on_demand) = self.parts.on_demand else { return };
        let Some(attacher) = self.parts.attacher.clone() else { return };
        let Self { core, tensors: Watched(watched), parts, stopped, .. } = self;
        if *stopped {
            // The probes are gone with all others; who is to be looked at is found out again.
            for (_, watch) in watched.drain() {
                if !matches!(watch.state, State::Rests(_)) {
                    let closed = parts.tracer.forget_tensors(watch.space);
                    report("close tensors that nobody looks at any more", closed);
                }
            }
            return;
        }
        for (serial, watch) in &mut *watched {
            match watch.state {
                State::Until(until) if now >= until || !core.runs(*serial, watch.space) => {
                    attacher.demand(watch.tgid, false);
                    watch.state = State::Ending;
                    tracing::info!("tensors of pid {} are not looked at any more", watch.tgid);
                }
                // What was told meanwhile is closed with the rest.
                State::Ending => {
                    let closed = parts.tracer.forget_tensors(watch.space);
                    report("close tensors that nobody looks at any more", closed);
                    watch.state = State::Rests(now + on_demand.pause);
                }
                State::Until(_) | State::Rests(_) => {}
            }
        }
        watched.retain(|serial, watch| match watch.state {
            State::Until(_) | State::Ending => true,
            State::Rests(until) => now < until && core.runs(*serial, watch.space),
        });
        let rests = |watch: &&Watch| matches!(watch.state, State::Rests(_));
        let now_watched = watched.len() - watched.values().filter(rests).count();
        let places = on_demand.processes.saturating_sub(now_watched);
        let new = core.restless_pools().into_iter();
        for (serial, tgid, space) in new
            .filter(|(serial, ..)| !watched.contains_key(serial))
            .take(places)
            .collect::<Vec<_>>()
        {
            attacher.demand(tgid, true);
            tracing::info!("device memory of pid {tgid} is not steady: its tensors are looked at");
            let state = State::Until(now + on_demand.watch);
            watched.insert(serial, Watch { tgid, space, state });
        }
    }
}
