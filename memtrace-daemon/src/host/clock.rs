//! Reading the kernel's clocks.

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

use crate::record::Anchor;

/// Reads all three clocks together: the tightest of a few tries, so that being preempted
/// between two readings does not shift one against another.
#[must_use]
pub fn anchor() -> Anchor {
    let once = || {
        let before = monotonic_ns();
        let (boot_ns, wall) = (boot_ns(), Timestamp::now());
        let spread = monotonic_ns() - before;
        (spread, Anchor { monotonic_ns: before + spread / 2, boot_ns, wall })
    };
    let mut best = once();
    for _ in 0..4 {
        let next = once();
        if next.0 < best.0 {
            best = next;
        }
    }
    best.1
}

/// `CLOCK_MONOTONIC`, ns.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// `CLOCK_BOOTTIME`, ns.
#[must_use]
pub fn boot_ns() -> u64 {
    read(ClockId::Boottime)
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let (seconds, rest) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    // Neither clock is ever negative.
    seconds.unwrap_or(0) * 1_000_000_000 + rest.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_lies_between_readings() {
        let (before, wall) = (monotonic_ns(), Timestamp::now());
        let anchor = anchor();
        assert!(before <= anchor.monotonic_ns && anchor.monotonic_ns <= monotonic_ns());
        assert!(wall <= anchor.wall && anchor.wall <= Timestamp::now());
        assert!(anchor.boot_ns <= boot_ns());
    }
}
