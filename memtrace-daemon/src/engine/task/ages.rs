//! When the kernel side is asked how old what is live is: once a window of the verdict, right
//! after its end, and for the oldest objects alone whenever somebody wants a picture.
//!
//! Must never keep what the scan says: it comes back through the ring, as records.

use memtrace_common::Domain;

use super::{Engine, report};
use crate::attach::tracer::Tracer;

impl Engine {
    /// Has the ages of live kernel memory looked up where a window of the verdict has just ended.
    pub(super) fn scan_window(&mut self) {
        if self.stopped {
            return;
        }
        let (windows, without_room) = self.aged;
        if self.core.windows() == windows {
            return;
        }
        self.aged.0 = self.core.windows();
        if !self.parts.core.domains.contains(&Domain::Kernel) {
            return;
        }
        let without = self.scan_ages(self.core.watch_bytes());
        if without > 0 && without_room == 0 {
            tracing::warn!(
                "{without} kernel accounts found no room for the ages of what is live: their \
                 verdicts take longer"
            );
        }
        self.aged.1 = without;
        // What does not fit into the ring now is looked up anew after the next window.
        self.take_in("send the ages of live objects", Tracer::send_ages);
    }

    /// Has ages looked up; how many accounts of at least `min_bytes` found no room for theirs.
    pub(super) fn scan_ages(&mut self, min_bytes: u64) -> u32 {
        let scanned = self.parts.tracer.scan_ages(min_bytes);
        let without = *scanned.as_ref().unwrap_or(&0);
        report("look up the ages of live objects", scanned.map(drop));
        without
    }
}
