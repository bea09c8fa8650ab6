//! Rows of a picture: one for each (function, context, site) of a process, whatever number of
//! accounts, call sites or address spaces it was put together from.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memtrace_common::{Amount, Domain, FunctionId};
use rustc_hash::FxHashMap;

use super::levels;
use crate::record::StackKey;
use crate::snapshot::{Frames, OWN_PROBES, Process, Sample, Site, Taken, Verdict};
use crate::verdict::{Judgement, VerdictConfig};

/// What makes two parts the same row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RowId {
    pub(super) function: FunctionId,
    pub(super) context: &'static str,
    pub(super) place: Place,
}

/// Where a row's memory was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// A site that has its name.
    Site(u64),
    /// A stack that has none yet.
    Raw(StackKey),
    /// A call site whose stack never came (an exact account, by its detail).
    Unseen(u64),
    /// Nobody knows.
    Unattributed,
}

/// One part of a row: an account, or a call site of one address space.
pub(super) struct Part {
    pub(super) id: RowId,
    pub(super) domain: Domain,
    pub(super) api: &'static str,
    pub(super) device: Option<u8>,
    pub(super) live: Amount,
    pub(super) allocated: Amount,
    pub(super) freed: Amount,
    pub(super) failures: u64,
    pub(super) oldest_age_seconds: Option<f64>,
    pub(super) judgement: Judgement,
    /// Whether its memory is still somebody's, so that growth of it is news.
    pub(super) current: bool,
    pub(super) frames_sampled: bool,
    pub(super) stack: Option<Taken>,
    pub(super) frames: Frames,
    pub(super) samples: Vec<Sample>,
    pub(super) note: Option<&'static str>,
}

/// A row, and what a finding about it needs.
pub(super) struct Row {
    pub(super) site: Site,
    /// Where it may be news, which few rows are.
    judgement: Option<Box<Judgement>>,
    pub(super) current: bool,
    domain: Domain,
    judged: (u64, u64),
}

/// What nobody wants to hear of in a domain: sites that somebody knows of, and what tracing itself
/// costs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hushed {
    /// Growth a second of what still has an owner.
    pub(super) growth: f64,
    /// What was allocated and not freed at such sites and at all: bytes, or objects that have none.
    pub(super) kept: u64,
    pub(super) of: u64,
}

impl Hushed {
    pub(super) fn add(&mut self, other: Self) {
        self.growth += other.growth;
        self.kept = self.kept.saturating_add(other.kept);
        self.of = self.of.saturating_add(other.of);
    }
}

/// The rows of one process.
#[derive(Default)]
pub(super) struct Rows {
    rows: Vec<Row>,
    index: FxHashMap<RowId, usize>,
}

impl Rows {
    pub(super) fn add(&mut self, part: Part) {
        let known = self.index.get(&part.id).and_then(|position| self.rows.get_mut(*position));
        if let Some(row) = known {
            row.join(part);
        } else {
            self.index.insert(part.id, self.rows.len());
            self.rows.push(Row::new(part));
        }
    }

    /// Says how old their process is, seconds.
    pub(super) fn of_age(&mut self, seconds: Option<f32>) {
        for row in &mut self.rows {
            row.site.evidence.of_age(seconds);
            if let Some(judgement) = &mut row.judgement {
                judgement.evidence.process_age_seconds = seconds;
            }
        }
    }

    /// What of the rows is no news although it may grow, by domain.
    pub(super) fn hushed(&self, config: &VerdictConfig) -> BTreeMap<Domain, Hushed> {
        let mut all: BTreeMap<Domain, Hushed> = BTreeMap::new();
        for row in &self.rows {
            let hushed = all.entry(row.domain).or_default();
            let kept = row.kept();
            hushed.of = hushed.of.saturating_add(kept);
            if row.is_hushed(config) {
                hushed.kept = hushed.kept.saturating_add(kept);
                let judgement = row.judgement.as_ref().filter(|_| row.current);
                hushed.growth +=
                    judgement.map_or(0.0, |judgement| levels::growth(judgement).max(0.0));
            }
        }
        all
    }

    /// Empties the rows into a process, largest first, and says which of them are news.
    pub(super) fn give_to(
        &mut self,
        process: &mut Process,
        config: &VerdictConfig,
    ) -> Vec<(Site, Judgement)> {
        self.index.clear();
        self.rows.sort_by(|a, b| {
            let size = |row: &Row| {
                let Site { live_bytes, live_count, allocated_bytes, id, .. } = row.site;
                (live_bytes, allocated_bytes, live_count, id)
            };
            size(b).cmp(&size(a))
        });
        let mut news = Vec::new();
        // No more room than they need: there are thousands of processes.
        process.sites.reserve_exact(self.rows.len());
        for row in self.rows.drain(..) {
            if row.is_news(config)
                && let Some(judgement) = row.judgement
            {
                news.push((row.site.clone(), *judgement));
            }
            process.sites.push(row.site);
        }
        news
    }
}

impl Row {
    fn new(part: Part) -> Self {
        let kept = keep(&part.judgement);
        let judgement = part.judgement;
        Self {
            site: Site {
                id: match part.id.place {
                    Place::Site(id) => Some(id),
                    Place::Raw(_) | Place::Unseen(_) | Place::Unattributed => None,
                },
                domain: part.domain.name(),
                api: part.api,
                context: part.id.context,
                device: part.device,
                live_bytes: part.live.bytes,
                live_count: part.live.count,
                allocated_bytes: part.allocated.bytes,
                freed_bytes: part.freed.bytes,
                allocations: part.allocated.count,
                frees: part.freed.count,
                failures: part.failures,
                growth_bytes_per_second: judgement.growth_bytes_per_second,
                oldest_age_seconds: part.oldest_age_seconds,
                verdict: judgement.verdict,
                confidence: judgement.confidence,
                evidence: judgement.evidence.into(),
                sampling: 1.0,
                frames_sampled: part.frames_sampled,
                stack: part.stack,
                frames: part.frames,
                samples: part.samples,
                note: part.note,
            },
            judgement: kept,
            current: part.current,
            domain: part.domain,
            judged: (part.live.bytes, part.live.count),
        }
    }

    fn is_news(&self, config: &VerdictConfig) -> bool {
        let Site { verdict, confidence, .. } = self.site;
        let reported = config.reports(self.domain, verdict, confidence);
        self.current && reported && !self.is_hushed(config)
    }

    /// What was allocated and not freed while it was watched, whatever its process' end gave back.
    fn kept(&self) -> u64 {
        let Site { allocated_bytes, freed_bytes, allocations, frees, .. } = self.site;
        match self.domain.is_counted() {
            true => allocations.saturating_sub(frees),
            false => allocated_bytes.saturating_sub(freed_bytes),
        }
    }

    /// Whether it is a site that somebody knows of, or what tracing itself costs.
    fn is_hushed(&self, config: &VerdictConfig) -> bool {
        let known = |id: u64| config.known_sites.contains(&id);
        self.site.id.is_some_and(known) || self.site.note == Some(OWN_PROBES)
    }

    /// Adds another part of the same site. The part that holds most has the verdict.
    fn join(&mut self, part: Part) {
        let site = &mut self.site;
        site.device = site.device.filter(|_| site.device == part.device);
        site.live_bytes += part.live.bytes;
        site.live_count += part.live.count;
        site.allocated_bytes += part.allocated.bytes;
        site.freed_bytes += part.freed.bytes;
        site.allocations += part.allocated.count;
        site.frees += part.freed.count;
        site.failures += part.failures;
        site.oldest_age_seconds = larger(site.oldest_age_seconds, part.oldest_age_seconds);
        site.samples.extend(part.samples);
        site.samples.sort_by_key(|sample| Reverse(sample.weight_bytes));
        site.note = site.note.and(part.note);
        site.growth_bytes_per_second =
            match (site.growth_bytes_per_second, part.judgement.growth_bytes_per_second) {
                (Some(a), Some(b)) => Some(a + b),
                (a, b) => a.or(b),
            };
        let held = (part.live.bytes, part.live.count);
        if (part.current, held) > (self.current, self.judged) {
            site.verdict = part.judgement.verdict;
            site.confidence = part.judgement.confidence;
            self.judgement = keep(&part.judgement);
            site.evidence = part.judgement.evidence.into();
            self.judged = held;
        }
        self.current |= part.current;
    }
}

/// What a finding would be made of, where there may be one.
fn keep(judgement: &Judgement) -> Option<Box<Judgement>> {
    let may_be_news = matches!(
        judgement.verdict,
        Verdict::Leak | Verdict::Orphaned | Verdict::Growing | Verdict::Unreliable
    );
    may_be_news.then(|| Box::new(judgement.clone()))
}

fn larger(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests;
