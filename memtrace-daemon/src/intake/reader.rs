//! Draining the ring buffer: bounded at a time, so that a flood cannot keep the engine from
//! its other work.
//!
//! The kernel side does not wake us (that costs the traced program 5 µs a record), but for a ring
//! that fills fast; the engine drains on a timer.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use aya::maps::{MapData, RingBuf};
use memtrace_common::RecordKind;

use super::bell::Bell;
use super::decode::{Item, decode};

/// A time during which the reader stands still: what tests use to make the ring overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// From so long after start.
    pub after: Duration,
    /// For so long.
    pub length: Duration,
}

impl std::str::FromStr for Pause {
    type Err = String;

    /// `AFTER_MS:FOR_MS`.
    fn from_str(text: &str) -> Result<Self, String> {
        let milliseconds = |text: &str| text.parse().map(Duration::from_millis);
        text.split_once(':')
            .and_then(|(after, length)| {
                Some(Self { after: milliseconds(after).ok()?, length: milliseconds(length).ok()? })
            })
            .ok_or_else(|| format!("`{text}` is not AFTER_MS:FOR_MS"))
    }
}

/// Reads the ring buffer.
pub struct Reader {
    ring: RingBuf<MapData>,
    pause: Option<Pause>,
    started: Instant,
    counts: BTreeMap<RecordName, u64>,
    unreadable: u64,
}

/// The name of a record kind, as metrics have it.
type RecordName = &'static str;

impl Reader {
    /// Reads this ring; stands still during `pause`.
    #[must_use]
    pub fn new(ring: RingBuf<MapData>, pause: Option<Pause>) -> Self {
        Self { ring, pause, started: Instant::now(), counts: BTreeMap::new(), unreadable: 0 }
    }

    /// What rings when the ring buffer fills fast. Within a tokio runtime.
    ///
    /// # Errors
    /// The system's.
    pub fn bell(&self) -> std::io::Result<Bell> {
        use std::os::fd::{AsRawFd, BorrowedFd};
        // SAFETY: the ring owns the descriptor, and is borrowed for as long.
        Bell::new(unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) })
    }

    /// Hands at most `limit` records to `take`; whether there may be more.
    pub fn drain(&mut self, limit: usize, mut take: impl FnMut(RecordKind, Item)) -> bool {
        if self.paused() {
            return false;
        }
        for _ in 0..limit {
            let Some(bytes) = self.ring.next() else { return false };
            match decode(&bytes) {
                Ok((kind, item)) => {
                    let count = self.counts.entry(kind.name()).or_default();
                    *count = count.saturating_add(1);
                    take(kind, item);
                }
                Err(error) => {
                    self.unreadable = self.unreadable.saturating_add(1);
                    tracing::error!(
                        "a record was not understood: {error}; this is a fault of memtrace"
                    );
                }
            }
        }
        true
    }

    /// Records read, by kind.
    #[must_use]
    pub const fn counts(&self) -> &BTreeMap<RecordName, u64> {
        &self.counts
    }

    /// Records taken out so far.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.counts.values().sum::<u64>().saturating_add(self.unreadable)
    }

    /// Records that were not understood.
    #[must_use]
    pub const fn unreadable(&self) -> u64 {
        self.unreadable
    }

    fn paused(&self) -> bool {
        self.pause.is_some_and(|pause| {
            let running = self.started.elapsed();
            running >= pause.after && running < pause.after.saturating_add(pause.length)
        })
    }
}
