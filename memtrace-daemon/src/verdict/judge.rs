//! What is said about a subject when somebody asks: verdict, confidence, evidence and words.

use memtrace_common::{Amount, Domain};

use super::confidence::confidence;
use super::history::History;
use super::residence::{survival, survival_by_ages};
use super::words::reasons;
use super::{Subject, VerdictConfig};
use crate::catalog;
use crate::ledger::{Cohorts, RowKey};
use crate::snapshot::{Evidence, Interval, Survival, Verdict};

/// What the books may exceed the slab's growth by before that means anything: a tenth, and what
/// everybody else's kernel memory swings by meanwhile.
const SLAB_MARGIN: f64 = 1.1;
const SLAB_TOLERANCE: u64 = 16 << 20;
/// A row is doubted where what the slab does not show is at least this share of it.
const DOUBTED_SHARE: f64 = 0.5;
/// Kernel memory that nobody freed after its owner's end: at most this share was.
const FREED_BY_OTHERS: f64 = 0.05;
/// Fewer objects than this that outlive a process are no leak, whatever their size.
const MANY: u64 = 64;

/// What the host tells about how much can be trusted, cumulative from start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Of the kernel path.
    pub kernel: Traffic,
    /// Of the call path.
    pub calls: Traffic,
    /// By how much the slab has grown since attach, bytes (0 where it shrank); `None` while
    /// unknown.
    pub slab_growth_bytes: Option<u64>,
    /// By how much live kernel memory on the books has grown meanwhile, bytes.
    pub kernel_growth_bytes: u64,
}

/// Events of one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Allocations seen.
    pub seen: u64,
    /// Events lost.
    pub lost: u64,
}

impl Surroundings {
    pub(super) const fn of(&self, domain: Domain) -> Traffic {
        match domain {
            Domain::Kernel => self.kernel,
            _ => self.calls,
        }
    }
}

/// What is known of a row when it is judged.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowFacts<'a> {
    /// Now, monotonic ns.
    pub now_ns: u64,
    /// Live bytes.
    pub live_bytes: u64,
    /// Allocated since attach.
    pub allocated: Amount,
    /// Freed since attach.
    pub freed: Amount,
    /// What became of what was allocated when, where single objects are followed.
    pub cohorts: Option<&'a Cohorts>,
    /// Objects whose address was handed out again without a free that was seen.
    pub unseen_frees: u64,
    /// First allocation, monotonic ns.
    pub first_ns: u64,
    /// When its process ended, monotonic ns, if the memory outlives it (kernel).
    pub orphan_since_ns: Option<u64>,
}

/// What is said about a subject.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// How sure, 0 to 1; `None` where nothing was decided.
    pub confidence: Option<f64>,
    /// Growth of the floor, bytes a second; `None` while unknown.
    pub growth_bytes_per_second: Option<f64>,
    /// Since when it holds, monotonic ns.
    pub since_ns: u64,
    /// The numbers.
    pub evidence: Evidence,
    /// What decided, or would decide.
    pub decided_by: Vec<String>,
}

pub(super) fn domain(subject: &Subject) -> Domain {
    match subject {
        Subject::Row(RowKey::Account { .. }) => Domain::Kernel,
        Subject::Row(RowKey::Call { function, .. }) => {
            catalog::name_and_domain(*function).map_or(Domain::Heap, |(_, domain)| domain)
        }
        Subject::Process(_, domain) | Subject::Service(_, domain) => *domain,
    }
}

/// Why nothing can be said, if so.
pub(super) fn distrust(
    config: &VerdictConfig,
    surroundings: &Surroundings,
    domain: Domain,
    history: &History,
    live_bytes: u64,
    freed: Amount,
) -> Option<String> {
    let (lost, share) = loss(surroundings, domain, history);
    if share > config.loss_share {
        return Some(format!("{lost} events lost while this was watched, {:.0} %", share * 100.0));
    }
    let slab = surroundings.slab_growth_bytes?;
    let books = surroundings.kernel_growth_bytes;
    let excess = books.saturating_sub(slab);
    let exceeds = books as f64 > slab as f64 * SLAB_MARGIN && excess > SLAB_TOLERANCE;
    let doubted = excess as f64 >= live_bytes as f64 * DOUBTED_SHARE;
    if domain == Domain::Kernel && freed.count == 0 && exceeds && doubted {
        return Some(format!(
            "no free was ever seen here and the books have grown by {books} bytes, the slab by \
             {slab}: it is freed where it cannot be seen (kfree_rcu)"
        ));
    }
    None
}

/// Events lost while a subject was watched, and their share.
fn loss(surroundings: &Surroundings, domain: Domain, history: &History) -> (u64, f64) {
    let now = surroundings.of(domain);
    let lost = now.lost.saturating_sub(history.traffic.lost);
    let seen = now.seen.saturating_sub(history.traffic.seen);
    (lost, lost as f64 / (lost + seen).max(1) as f64)
}

/// Share of allocated bytes that were freed; by count where no bytes are known.
fn share_freed(allocated: Amount, freed: Amount) -> Option<f64> {
    if allocated.bytes > 0 {
        Some((freed.bytes as f64 / allocated.bytes as f64).min(1.0))
    } else if allocated.count > 0 {
        Some((freed.count as f64 / allocated.count as f64).min(1.0))
    } else {
        None
    }
}

pub(super) fn judge(
    config: &VerdictConfig,
    surroundings: &Surroundings,
    subject: &Subject,
    history: Option<&History>,
    row: &RowFacts<'_>,
) -> Judgement {
    let mut judgement = match history {
        Some(history) => of_history(config, surroundings, domain(subject), history, row),
        None => unwatched(config, row),
    };
    if judgement.verdict != Verdict::Unreliable {
        outlived(config, row, &mut judgement);
    }
    judgement
}

/// Kernel memory that outlives its owner: orphaned, and a leak where it is much and nobody has
/// freed of it for as long as it takes to tell.
fn outlived(config: &VerdictConfig, row: &RowFacts<'_>, judgement: &mut Judgement) {
    let Some(since_ns) = row.orphan_since_ns else { return };
    let age_ns = row.now_ns.saturating_sub(since_ns);
    if age_ns < config.min_age_ns() || row.live_bytes < config.min_bytes {
        return;
    }
    let seconds = age_ns / 1_000_000_000;
    if judgement.verdict == Verdict::Leak {
        judgement.decided_by.push(format!("its process ended {seconds} s ago; it is still live"));
        return;
    }
    let freed = share_freed(row.allocated, row.freed).unwrap_or(1.0);
    let long = age_ns >= config.window_ns().saturating_mul(u64::from(config.leak_windows));
    let nobody = freed <= FREED_BY_OTHERS && row.allocated.count >= MANY;
    judgement.decided_by = vec![format!("still live {seconds} s after its process ended")];
    if long && nobody {
        judgement.verdict = Verdict::Leak;
        judgement.confidence = Some(0.9);
        judgement.decided_by.push(format!("nobody frees it: {:.0} % was freed", freed * 100.0));
    } else {
        judgement.verdict = Verdict::Orphaned;
        judgement.confidence = Some(0.9);
    }
    judgement.since_ns = since_ns;
}

fn unwatched(config: &VerdictConfig, row: &RowFacts<'_>) -> Judgement {
    let young = row.now_ns.saturating_sub(row.first_ns) < config.min_age_ns();
    Judgement {
        verdict: if young { Verdict::Warming } else { Verdict::Steady },
        since_ns: row.first_ns,
        evidence: Evidence {
            window_seconds: config.window_seconds as f32,
            freed_share: share_freed(row.allocated, row.freed).map(|share| share as f32),
            ..Evidence::default()
        },
        ..Judgement::default()
    }
}

fn of_history(
    config: &VerdictConfig,
    surroundings: &Surroundings,
    domain: Domain,
    history: &History,
    row: &RowFacts<'_>,
) -> Judgement {
    let (lost_events, lost_share) = loss(surroundings, domain, history);
    let mut evidence = of_trend(config, history);
    let allocated = row.allocated.saturating_sub(history.allocated);
    let grown = row.live_bytes as f64 - history.live_bytes as f64;
    let age = |since_ns: u64| Evidence::seconds(row.now_ns.saturating_sub(since_ns));
    evidence.bytes_per_allocation = (allocated.count > 0).then(|| grown / allocated.count as f64);
    evidence.freed_share = share_freed(row.allocated, row.freed).map(|share| share as f32);
    evidence.survival = survivors(config, history, row);
    // There is one of each row, in each picture that somebody still reads.
    evidence.survival.shrink_to_fit();
    evidence.lost_events = lost_events;
    evidence.lost_share = lost_share as f32;
    evidence.explained_ratio = match (domain, surroundings.slab_growth_bytes) {
        (Domain::Kernel, Some(slab)) if slab > SLAB_TOLERANCE => {
            Some((surroundings.kernel_growth_bytes as f64 / slab as f64) as f32)
        }
        _ => None,
    };
    evidence.watched_seconds = age(history.watched_ns);
    evidence.site_age_seconds = Some(age(row.first_ns));
    evidence.unseen_frees = row.unseen_frees;
    let growth = evidence.slope_bytes_per_second.map(|slope| slope.value);
    if domain.is_counted() {
        evidence = evidence.of_objects();
    }
    let distrust = distrust(config, surroundings, domain, history, row.live_bytes, row.freed);
    let decided_by = match (history.verdict, distrust) {
        (Verdict::Unreliable, distrust) => distrust.into_iter().collect(),
        (verdict, _) => reasons(config, verdict, &history.weighed, &evidence),
    };
    Judgement {
        verdict: history.verdict,
        confidence: confidence(config, history, lost_share),
        growth_bytes_per_second: growth.filter(|_| !domain.is_counted()),
        since_ns: history.since_ns,
        decided_by,
        evidence,
    }
}

/// What the trend that says most has to say.
pub(super) fn of_trend(config: &VerdictConfig, history: &History) -> Evidence {
    let seconds = config.window_seconds;
    let active = f64::from(history.active) / f64::from(history.windows.max(1));
    let mut evidence = Evidence {
        window_seconds: seconds as f32,
        active_share: (history.windows > 0).then_some(active as f32),
        since_maximum_seconds: (history.active > 0)
            .then(|| (f64::from(history.since_rise) * seconds) as f32),
        new_maxima: history.rises,
        ..Evidence::default()
    };
    let weighed = &history.weighed;
    let Some(trend) = &weighed.trend else { return evidence };
    let slope = trend.slope;
    // `as` saturates: floors come from whole bytes.
    evidence.floor_first_bytes = Some(trend.first as u64);
    evidence.floor_last_bytes = Some(trend.last as u64);
    evidence.windows = trend.points;
    evidence.window_seconds = (seconds * f64::from(trend.width)) as f32;
    evidence.rising_windows = trend.rising;
    if trend.points >= 4 {
        let [low, value, high] = [slope.low, slope.value, slope.high].map(|slope| slope / seconds);
        evidence.slope_bytes_per_second = Some(Interval { low, value, high });
        evidence.trend_p = Some(slope.p);
        let more = trend.objects_last - trend.objects_first;
        let time = f64::from(trend.windows()).max(1.0) * seconds * 2.0 / 3.0;
        evidence.slope_objects_per_second = Some(more / time);
    }
    evidence.late_over_early = trend.straight().map(|ratio| ratio as f32);
    evidence.residence_seconds =
        weighed.turns_over.then(|| (f64::from(weighed.residence) * seconds) as f32);
    evidence.load_ratio = trend.load.map(|load| load as f32);
    evidence
}

fn survivors(config: &VerdictConfig, history: &History, row: &RowFacts<'_>) -> Vec<Survival> {
    match row.cohorts {
        Some(cohorts) => survival(cohorts, window_of(config, row.now_ns), config.window_seconds),
        None => survival_by_ages(
            &history.ages().frees,
            |windows| history.allocated_before(windows),
            config.window_seconds,
        ),
    }
}

/// The window that a time lies in, as cohorts count them.
pub(super) fn window_of(config: &VerdictConfig, now_ns: u64) -> u32 {
    u32::try_from(now_ns / config.window_ns()).unwrap_or(u32::MAX)
}
