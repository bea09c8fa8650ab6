//! One process: what was measured of it first and last, and what is said of that.

use super::super::measured::{Rise, Said, growth};
use super::super::{Judgement, VerdictConfig};
use super::Booked;
use crate::record::{Parent, ProcessMemory};
use crate::snapshot::{Evidence, Verdict};

/// Growth of resident memory below this is noise, bytes.
const NOISE_BYTES: u64 = 16 << 20;
/// Address space that grows without being used is not remembered below this, bytes.
const ADDRESS_BYTES: u64 = 64 << 20;

/// What is known of one process.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) first: Moment,
    pub(super) now: Moment,
    /// By how much the books' share has grown at most.
    pub(super) peak_explained: u64,
    pub(super) unexplained: Rise,
    pub(super) address: Rise,
    /// Pages of its files that the kernel took from it meanwhile, bytes.
    evicted: u64,
    /// The most pages of files that it had in memory, bytes.
    pub(super) most_files: u64,
    /// Since when the process has held more than its live allocations explain.
    pub(super) fragmented_ns: Option<u64>,
    /// The parent when it was first measured, and when it was first not the parent any more.
    pub(super) parent: Option<Parent>,
    pub(super) left_ns: Option<(u64, u64)>,
    /// When it last called.
    pub(super) called_ns: u64,
    pub(super) ended: bool,
    pub(super) opinions: Vec<Opinion>,
}

/// A measurement, and the books at that moment.
#[derive(Debug)]
pub(super) struct Moment {
    pub(super) ns: u64,
    pub(super) memory: ProcessMemory,
    pub(super) booked: Booked,
}

/// What is said of one process.
#[derive(Debug, PartialEq)]
pub(super) struct Opinion {
    pub(super) about: About,
    pub(super) since_ns: u64,
    pub(super) words: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    Unexplained,
    Fragmentation,
    Address,
    Orphan,
}

impl Measured {
    pub(super) fn new(config: &VerdictConfig, now: Moment) -> Self {
        // Its figures only.
        let memory = ProcessMemory { parent: None, limit: None, ..now.memory.clone() };
        let booked = Booked { parent: None, ..now.booked.clone() };
        let first = Moment { ns: now.ns, memory, booked };
        let mut new = Self {
            peak_explained: 0,
            unexplained: Rise::default(),
            address: Rise::default(),
            evicted: 0,
            most_files: now.memory.file_bytes,
            fragmented_ns: None,
            parent: now.memory.parent.clone(),
            left_ns: None,
            called_ns: now.ns,
            ended: false,
            opinions: Vec::new(),
            first,
            now,
        };
        new.levels(config);
        new
    }

    pub(super) fn observe(&mut self, config: &VerdictConfig, now: Moment) {
        let before = std::mem::replace(&mut self.now, now);
        let now = &mut self.now;
        // Looked at now and then only.
        now.memory.huge_bytes = now.memory.huge_bytes.or(before.memory.huge_bytes);
        now.memory.brk_bytes = now.memory.brk_bytes.or(before.memory.brk_bytes);
        // Its books are not kept for ever after its end.
        if before.booked.parent.as_ref().is_some_and(|parent| parent.ended_ns.is_some()) {
            now.booked.parent = before.booked.parent;
        }
        self.evicted = self
            .evicted
            .saturating_add(evicted(&before.memory, &now.memory))
            .saturating_sub(evicted(&now.memory, &before.memory))
            // Not more than there is: the others were unmapped.
            .min(unused(&now.memory).saturating_sub(unused(&self.first.memory)));
        self.most_files = self.most_files.max(now.memory.file_bytes);
        if now.booked.calls != before.booked.calls {
            self.called_ns = now.ns;
        }
        let tgid = |parent: &Option<Parent>| parent.as_ref().map(|parent| parent.tgid);
        if self.left_ns.is_none() && tgid(&now.memory.parent) != tgid(&self.parent) {
            self.left_ns = Some((before.ns, now.ns));
        }
        self.peak_explained = self.peak_explained.max(self.explained());
        self.levels(config);
        let opinions =
            [self.orphan(config), self.fragmentation(config), self.address_growth(config)];
        let mut opinions: Vec<(About, Vec<String>)> = opinions.into_iter().flatten().collect();
        let fragmented = opinions.iter().any(|(about, _)| *about == About::Fragmentation);
        if !fragmented {
            opinions.extend(self.unexplained_growth(config));
        }
        let said = std::mem::take(&mut self.opinions);
        let since = |about| said.iter().find(|one| one.about == about).map(|one| one.since_ns);
        let opinion = |(about, words)| Opinion {
            about,
            since_ns: since(about).unwrap_or(self.now.ns),
            words,
        };
        self.opinions = opinions.into_iter().map(opinion).collect();
    }

    pub(super) fn levels(&mut self, config: &VerdictConfig) {
        let Moment { ns, memory, .. } = &self.now;
        let unexplained = memory.private_bytes().saturating_sub(self.explained());
        let unused = self.unused();
        self.unexplained.observe(config, *ns, unexplained, config.min_bytes);
        self.address.observe(config, *ns, unused, ADDRESS_BYTES);
    }

    /// Address space that is neither memory nor that of evicted pages.
    pub(super) fn unused(&self) -> u64 {
        unused(&self.now.memory).saturating_sub(self.evicted)
    }

    /// Growth of anonymous memory, swapped out or not, since it was first measured.
    pub(super) fn grown(&self) -> u64 {
        self.now.memory.private_bytes().saturating_sub(self.first.memory.private_bytes())
    }

    /// What the books say that it has grown by.
    pub(super) fn explained(&self) -> u64 {
        let Self { first, now, .. } = self;
        now.booked.explained_bytes().saturating_sub(first.booked.explained_bytes())
    }

    pub(super) fn gap(&self) -> u64 {
        self.grown().saturating_sub(self.explained())
    }

    /// Growth that is worth a word.
    pub(super) fn worth(&self, config: &VerdictConfig) -> u64 {
        config.min_bytes.max(NOISE_BYTES).max(self.first.memory.private_bytes() / 8)
    }

    pub(super) fn say(
        &self,
        config: &VerdictConfig,
        now_ns: u64,
        serial: u32,
        opinion: &Opinion,
    ) -> Said {
        let measured = |first: u64, now: u64| Evidence {
            floor_first_bytes: Some(first),
            floor_last_bytes: Some(now),
            window_seconds: config.window_seconds as f32,
            watched_seconds: Evidence::seconds(now_ns.saturating_sub(self.first.ns)),
            ..Evidence::default()
        };
        let (first, now) = (&self.first.memory, &self.now.memory);
        let (domain, verdict, confidence, evidence) = match opinion.about {
            About::Unexplained => {
                let mut evidence = self.unexplained.evidence(config, now_ns);
                let grown = self.grown().max(1);
                evidence.explained_ratio = Some(self.explained() as f32 / grown as f32);
                ("heap", Verdict::Growing, 0.5, evidence)
            }
            About::Fragmentation => {
                let mut evidence = measured(first.private_bytes(), now.private_bytes());
                let grown = self.grown().max(1);
                evidence.explained_ratio = Some(self.explained() as f32 / grown as f32);
                ("heap", Verdict::Fragmentation, 0.8, evidence)
            }
            About::Address => {
                ("mmap", Verdict::Growing, 0.5, self.address.evidence(config, now_ns))
            }
            About::Orphan => {
                let held = self.now.booked.held_on_device();
                ("cuda", Verdict::Orphaned, 0.8, measured(held, held))
            }
        };
        let grows = verdict == Verdict::Growing;
        Said {
            serial: Some(serial),
            gone: None,
            domain,
            judgement: Judgement {
                verdict,
                confidence: Some(confidence),
                growth_bytes_per_second: growth(&evidence).filter(|_| grows),
                since_ns: opinion.since_ns,
                evidence,
                decided_by: opinion.words.clone(),
            },
        }
    }
}

/// Memory in use, swapped out or not.
pub(super) fn resident(memory: &ProcessMemory) -> u64 {
    memory.private_bytes().saturating_add(memory.file_bytes).saturating_add(memory.shared_bytes)
}

/// Address space that is not memory.
pub(super) fn unused(memory: &ProcessMemory) -> u64 {
    memory.virtual_bytes.saturating_sub(resident(memory))
}

/// Pages of files that are gone while their address space is not, from one measurement to
/// another, bytes.
fn evicted(from: &ProcessMemory, to: &ProcessMemory) -> u64 {
    let gone = |of: fn(&ProcessMemory) -> u64| of(from).saturating_sub(of(to));
    // Address space that went with other memory was not theirs.
    let other = gone(|memory| memory.private_bytes().saturating_add(memory.shared_bytes));
    let unmapped = gone(|memory| memory.virtual_bytes).saturating_sub(other);
    gone(|memory| memory.file_bytes).saturating_sub(unmapped)
}
