//! Has the kernel side say how long calls took.

use super::Engine;
use crate::engine::todo::report;
use crate::host;
use crate::record::{Observation, Record};

impl Engine {
    /// Takes in how long calls took up to now.
    pub(super) fn look_at_latency(&mut self) {
        let all = match self.parts.tracer.latencies() {
            Ok(all) => all,
            Err(error) => return report("read how long calls take", Err(error)),
        };
        if all != self.core.latency() {
            let now_ns = host::clock::monotonic_ns();
            self.apply(&Record::Observation { now_ns, observation: Observation::Latency(all) });
        }
    }
}
