//! Moving times from one clock to another. Records carry monotonic ns, process starts are ns
//! since boot (which counts suspended time), reports use wall time.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// One moment on three clocks. `host::clock` reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// `CLOCK_MONOTONIC`, ns.
    pub monotonic_ns: u64,
    /// `CLOCK_BOOTTIME`, ns.
    pub boot_ns: u64,
    /// `CLOCK_REALTIME`.
    pub wall: Timestamp,
}

impl Anchor {
    /// Wall time of a monotonic time.
    #[must_use]
    pub fn wall_of_monotonic(&self, monotonic_ns: u64) -> Timestamp {
        self.wall_of(self.monotonic_ns, monotonic_ns)
    }

    /// Wall time of a time since boot.
    #[must_use]
    pub fn wall_of_boot(&self, boot_ns: u64) -> Timestamp {
        self.wall_of(self.boot_ns, boot_ns)
    }

    /// Monotonic time of a time since boot; 0 for what was before the clock began.
    #[must_use]
    pub const fn monotonic_of_boot(&self, boot_ns: u64) -> u64 {
        self.monotonic_ns.saturating_add(boot_ns).saturating_sub(self.boot_ns)
    }

    /// Time since boot of a monotonic time.
    #[must_use]
    pub const fn boot_of_monotonic(&self, monotonic_ns: u64) -> u64 {
        self.boot_ns.saturating_add(monotonic_ns).saturating_sub(self.monotonic_ns)
    }

    fn wall_of(&self, anchor_ns: u64, ns: u64) -> Timestamp {
        let difference = i128::from(ns) - i128::from(anchor_ns);
        let difference = i64::try_from(difference).unwrap_or(i64::MAX);
        // Only times that no clock of a running machine shows are out of range.
        self.wall.saturating_add(SignedDuration::from_nanos(difference)).unwrap_or(self.wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANCHOR: Anchor =
        Anchor { monotonic_ns: 1_000, boot_ns: 5_000, wall: Timestamp::UNIX_EPOCH };

    #[test]
    fn times_move_between_clocks() {
        assert_eq!(ANCHOR.monotonic_of_boot(5_100), 1_100);
        assert_eq!(ANCHOR.monotonic_of_boot(10), 0);
        assert_eq!(ANCHOR.boot_of_monotonic(900), 4_900);
        assert_eq!(ANCHOR.wall_of_monotonic(1_500).as_nanosecond(), 500);
        assert_eq!(ANCHOR.wall_of_boot(4_000).as_nanosecond(), -1_000);
    }
}
