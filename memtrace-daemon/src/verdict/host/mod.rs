//! What the host's memory says: memory that nobody owns, and shared memory that outlived whoever
//! made it. No process is blamed for either.
//!
//! Memory without an owner is what is left when everything that the kernel counts is taken off.
//! Pages that a driver took for a process that runs are in it too, so it never says `leak`.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use super::measured::{Rise, Said, growth};
use super::{Judgement, VerdictConfig};
use crate::human::{bytes, counted};
use crate::record::{HostMemory, UnusedShared};
use crate::snapshot::{Evidence, Verdict};

/// Its domain: none of those that are booked.
const DOMAIN: &str = "host";
/// Growth below this is noise: bytes, and a share of all memory.
const NOISE_BYTES: u64 = 32 << 20;
const NOISE_SHARE: u64 = 1_024;
/// The same for shared memory, which the kernel counts exactly.
const SHARED_BYTES: u64 = 16 << 20;
const SHARED_SHARE: u64 = 4_096;
/// Looks from which the lowest is taken for what was there at first.
const FIRST_LOOKS: usize = 6;
/// Windows for which shared memory must have risen before anybody is asked why, and windows
/// from one such question to the next: where nobody is known to use it, and where it may well be
/// used.
const ASK_AFTER: u64 = 3;
const ASK_EVERY: u64 = 6;
const ASK_RARELY: u64 = 30;
/// Ended processes remembered, for their names.
const REMEMBERED: usize = 64;
/// And told.
const TOLD: usize = 3;

/// What the books have of the host when it is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostBooks {
    /// Live bytes of page-locked and managed memory, which drivers take pages for; `None` where
    /// it is not traced.
    pub locked_bytes: Option<u64>,
    /// Of these, what ended with its process so far.
    pub locked_closed_bytes: u64,
    /// Shared memory that running processes have in their page tables, as far as they were
    /// measured.
    pub shared_bytes: u64,
}

/// A process that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Thread group id.
    pub tgid: u32,
    /// Name.
    pub comm: String,
    /// When, monotonic ns.
    pub ended_ns: u64,
    /// Shared memory that it had when it was last measured.
    pub shared_bytes: u64,
}

/// The host's memory, and what is said of it.
#[derive(Debug)]
pub struct HostLevels {
    config: VerdictConfig,
    total_bytes: u64,
    ownerless: Ownerless,
    shared: Shared,
    ended: VecDeque<Ended>,
}

/// Memory without an owner.
#[derive(Debug, Default)]
struct Ownerless {
    /// What was there at first, and what is there now.
    base: u64,
    now: u64,
    looks: usize,
    /// What has come since and no books explain: its rise, and the last looks, newest last.
    rise: Rise,
    excess: VecDeque<u64>,
    /// Free huge pages, and page-locked memory that ended with its process, at first and now.
    huge: (u64, u64),
    closed: (u64, u64),
    traced: bool,
    since_ns: Option<u64>,
}

/// Shared memory.
#[derive(Debug, Default)]
struct Shared {
    /// What was there at first, and what running processes had of it.
    first: Option<(u64, u64)>,
    risen_ns: Option<u64>,
    used: bool,
    asked_ns: Option<u64>,
    /// The last answer, and since when it has been said that something is left over.
    unused: Option<UnusedShared>,
    since_ns: Option<u64>,
    held: bool,
}

impl HostLevels {
    /// Nothing has been measured yet.
    #[must_use]
    pub fn new(config: VerdictConfig) -> Self {
        Self {
            config,
            total_bytes: 0,
            ownerless: Ownerless::default(),
            shared: Shared::default(),
            ended: VecDeque::new(),
        }
    }

    /// Takes a measurement of the host.
    pub fn observe(&mut self, now_ns: u64, memory: &HostMemory, books: HostBooks) {
        self.total_bytes = memory.total_bytes;
        let worth = self.worth();
        if let Some(ownerless) = memory.ownerless_bytes() {
            self.ownerless.observe(&self.config, now_ns, ownerless, memory, books, worth);
        }
        let worth = self.worth_shared();
        self.shared.observe(now_ns, memory.shared_bytes, books.shared_bytes, worth);
    }

    /// Takes the answer to what is left over of shared memory.
    pub fn observe_unused(&mut self, now_ns: u64, unused: &UnusedShared) {
        let worth = self.worth_shared();
        let shared = &mut self.shared;
        // Processes that nobody could look at may use as much as they have mapped.
        let left = unused.new_bytes.saturating_sub(unused.unseen_bytes) >= worth;
        // Somebody may be about to open what another has just made: twice is enough.
        shared.held = left && shared.since_ns.is_some();
        shared.since_ns = left.then(|| shared.since_ns.unwrap_or(now_ns));
        shared.unused = Some(unused.clone());
    }

    /// A process has ended.
    pub fn observe_end(&mut self, ended: Ended) {
        if ended.shared_bytes > 0 {
            if self.ended.len() >= REMEMBERED {
                self.ended.pop_front();
            }
            self.ended.push_back(ended);
        }
    }

    /// Whether somebody should look for shared memory that nobody uses. Whoever asks does so.
    pub fn wants_unused(&mut self, now_ns: u64) -> bool {
        let window_ns = self.config.window_ns();
        let shared = &mut self.shared;
        let past = |at: u64, windows: u64| now_ns.saturating_sub(at) >= windows * window_ns;
        let risen = shared.risen_ns.is_some_and(|at| past(at, ASK_AFTER));
        let rarely = shared.used && shared.since_ns.is_none();
        let every = if rarely { ASK_RARELY } else { ASK_EVERY };
        let due = shared.asked_ns.is_none_or(|at| past(at, every));
        // Once said it is looked at again until it is gone.
        let wants = (risen || shared.since_ns.is_some()) && due;
        if wants {
            shared.asked_ns = Some(now_ns);
        }
        wants
    }

    /// What is said now.
    pub fn said(&self, now_ns: u64, each: &mut dyn FnMut(Said)) {
        let said = [self.ownerless.say(&self.config, now_ns, self.worth()), self.say_shared()];
        for judgement in said.into_iter().flatten() {
            each(Said { serial: None, gone: None, domain: DOMAIN, judgement });
        }
    }

    fn worth(&self) -> u64 {
        self.config.min_bytes.max(NOISE_BYTES).max(self.total_bytes / NOISE_SHARE)
    }

    fn worth_shared(&self) -> u64 {
        self.config.min_bytes.max(SHARED_BYTES).max(self.total_bytes / SHARED_SHARE)
    }

    fn say_shared(&self) -> Option<Judgement> {
        let (unused, since_ns) = (self.shared.unused.as_ref()?, self.shared.since_ns?);
        if !self.shared.held {
            return None;
        }
        let mut words = vec![format!(
            "shared memory of ended processes: {} in {} or segments that no process has open or mapped",
            bytes(unused.new_bytes),
            counted(unused.new_count, "file")
        )];
        words.push(format!("the largest: {}", unused.largest.join(", ")));
        if unused.unseen > 0 {
            let who = counted(unused.unseen, "process");
            words.push(format!("{who} could not be looked at, and may have some of it open"));
        }
        let risen_ns = self.shared.risen_ns.unwrap_or(since_ns);
        let meanwhile: Vec<String> = self
            .ended
            .iter()
            .rev()
            .filter(|ended| ended.ended_ns >= risen_ns)
            .take(TOLD)
            .map(|ended| {
                let Ended { tgid, comm, shared_bytes, ended_ns: _ } = ended;
                format!("{comm} (pid {tgid}, {} of shared memory)", bytes(*shared_bytes))
            })
            .collect();
        if !meanwhile.is_empty() {
            words.push(format!("ended meanwhile: {}", meanwhile.join(", ")));
        }
        Some(Judgement {
            verdict: Verdict::Orphaned,
            confidence: Some(if unused.unseen > 0 { 0.6 } else { 0.9 }),
            growth_bytes_per_second: None,
            since_ns,
            evidence: Evidence { floor_last_bytes: Some(unused.new_bytes), ..Evidence::default() },
            decided_by: words,
        })
    }
}

impl Ownerless {
    fn observe(
        &mut self,
        config: &VerdictConfig,
        now_ns: u64,
        ownerless: u64,
        memory: &HostMemory,
        books: HostBooks,
        worth: u64,
    ) {
        let (huge, closed) = (memory.huge_free_bytes, books.locked_closed_bytes);
        if self.looks == 0 {
            (self.base, self.huge.0, self.closed.0) = (ownerless, huge, closed);
        } else if self.looks < FIRST_LOOKS {
            self.base = self.base.min(ownerless);
        }
        self.looks += 1;
        (self.now, self.huge.1, self.closed.1) = (ownerless, huge, closed);
        self.traced = books.locked_bytes.is_some();
        // Page-locked memory may have an owner (registered memory of a process has): what is
        // explained too much is not missed anywhere.
        let explained = books.locked_bytes.unwrap_or(0);
        let excess = ownerless.saturating_sub(self.base).saturating_sub(explained);
        // What is left over swings. A level grows by a quarter of the least that is judged, here
        // by `worth`; as much is added as makes any of it worth judging.
        let judged = worth.saturating_mul(4);
        let careful = VerdictConfig { min_bytes: judged, ..config.clone() };
        self.rise.observe(&careful, now_ns, excess.saturating_add(judged), worth);
        let windows = usize::try_from(config.plateau_windows.max(1)).unwrap_or(1);
        self.excess.push_back(excess);
        while self.excess.len() > windows {
            self.excess.pop_front();
        }
        let held = self.excess.len() >= windows && self.excess.iter().all(|one| *one >= worth);
        if held || (self.rise.grows() && excess >= worth) {
            self.since_ns.get_or_insert(now_ns);
        } else if excess < worth / 2 {
            self.since_ns = None;
        }
    }

    fn say(&self, config: &VerdictConfig, now_ns: u64, worth: u64) -> Option<Judgement> {
        let since_ns = self.since_ns?;
        let risen = self.excess.back().copied().unwrap_or(0);
        let huge = self.huge.1.saturating_sub(self.huge.0);
        let closed = self.closed.1.saturating_sub(self.closed.0);
        let mut words = vec![format!(
            "{} more than at first belong to no process, no cache and no counter of the kernel",
            bytes(risen)
        )];
        if huge > 0 {
            words.push(format!(
                "{} of it are huge pages that nobody uses: the pool was made larger \
                 (nr_hugepages)",
                bytes(huge.min(risen))
            ));
        }
        let rest = risen.saturating_sub(huge);
        let outlived = rest >= worth && closed >= rest / 2;
        let verdict = if self.rise.grows() {
            Verdict::Growing
        } else if outlived {
            Verdict::Orphaned
        } else {
            Verdict::Plateau
        };
        if outlived {
            words.push(format!(
                "{} of page-locked memory ended with their processes meanwhile",
                bytes(closed)
            ));
        } else if rest >= worth {
            words.push(if self.traced {
                "pages that a driver took, for itself or for a process, look like this".to_owned()
            } else {
                "page-locked memory looks like this, and is not traced: --domains pinned tells"
                    .to_owned()
            });
        }
        let mut evidence = self.rise.evidence(config, now_ns);
        evidence.floor_first_bytes = Some(self.base);
        evidence.floor_last_bytes = Some(self.now);
        let growth = growth(&evidence).filter(|_| verdict == Verdict::Growing);
        Some(Judgement {
            verdict,
            confidence: Some(0.5),
            growth_bytes_per_second: growth,
            since_ns,
            evidence,
            decided_by: words,
        })
    }
}

impl Shared {
    fn observe(&mut self, now_ns: u64, shared: u64, mapped: u64, worth: u64) {
        let (first, first_mapped) = *self.first.get_or_insert((shared, mapped));
        let risen = shared.saturating_sub(first);
        if risen < worth {
            self.risen_ns = None;
        } else {
            self.risen_ns.get_or_insert(now_ns);
        }
        let explained = mapped.saturating_sub(first_mapped);
        let unused = self.unused.as_ref().is_none_or(|unused| unused.new_bytes >= worth);
        self.used = risen.saturating_sub(explained) < worth || !unused;
    }
}
