//! Stopping and going on: the switch for when a tracer is suspected of what goes wrong on a host.

use super::Engine;
use crate::attach::error::TracerError;
use crate::host::{self, process};
use crate::record::{Observation, Record};

impl Engine {
    /// Stops tracing at once, or has it go on. The books keep what they have; what comes and goes
    /// while it is stopped is on none, and they say so.
    pub(super) fn control(&mut self, stop: bool) -> Result<(), TracerError> {
        if stop == self.stopped {
            return Ok(());
        }
        let done = if stop {
            self.flush();
            let done = self.parts.tracer.stop();
            self.drain_all();
            done
        } else {
            self.parts.tracer.resume()
        };
        if !stop && done.is_err() {
            // Half of it would make wrong books.
            let _ = self.parts.tracer.stop();
            return done;
        }
        self.stopped = stop;
        if let Some(attacher) = &self.parts.attacher {
            attacher.stop(stop);
        }
        self.observe(Observation::Tracing { stopped: stop });
        if !stop {
            self.note_the_ended();
        }
        self.publish_now();
        done
    }

    fn observe(&mut self, observation: Observation) {
        self.apply(&Record::Observation { now_ns: host::clock::monotonic_ns(), observation });
    }

    /// Tells the books of the processes that ended meanwhile.
    fn note_the_ended(&mut self) {
        let running = self.core.ledger().processes().filter(|process| !process.ended());
        let entries = running.filter_map(|process| process.entry);
        let gone: Vec<_> = entries
            .filter(|entry| entry.key.tgid != 0)
            .filter(|entry| !process::started_at(entry.key.tgid, entry.key.start_ns))
            .collect();
        let (time_ns, ended_ns) = (host::clock::monotonic_ns(), host::clock::boot_ns());
        for mut entry in gone {
            entry.ended_ns = ended_ns;
            entry.version = entry.version.wrapping_add(1);
            self.apply(&Record::Process { time_ns, entry });
        }
    }
}
