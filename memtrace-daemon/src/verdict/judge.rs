//! From a history to a verdict, its evidence, and what would decide an open case.

use memtrace_common::{Amount, Domain};

use super::VerdictConfig;
use super::history::History;
use super::series::Trend;
use super::words::{confidence, reasons};
use crate::catalog;
use crate::ledger::{RowKey, RowSample};
use crate::snapshot::{Evidence, Verdict};

/// Share of the growth that must lie in the second half of what was watched: a cache that
/// fills slows down.
const LATE_SHARE: f64 = 0.25;
/// What the books may exceed the slab's growth by before that means anything, bytes.
const SLAB_TOLERANCE: u64 = 4 << 20;

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
    pub(super) fn of(&self, key: &RowKey) -> Traffic {
        match key {
            RowKey::Account { .. } => self.kernel,
            RowKey::Call { .. } => self.calls,
        }
    }
}

/// What is known of a row when it is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowFacts {
    /// Now, monotonic ns.
    pub now_ns: u64,
    /// Live bytes.
    pub live_bytes: u64,
    /// Allocated since attach.
    pub allocated: Amount,
    /// Freed since attach.
    pub freed: Amount,
    /// First allocation, monotonic ns.
    pub first_ns: u64,
    /// When its process ended, monotonic ns, if the memory outlives it (kernel).
    pub orphan_since_ns: Option<u64>,
}

/// What is said about a row.
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

/// Decides anew at the end of a window.
pub(super) fn update(
    config: &VerdictConfig,
    surroundings: &Surroundings,
    history: &mut History,
    sample: &RowSample<'_>,
    now_ns: u64,
) {
    let old = now_ns.saturating_sub(sample.first_ns) >= config.min_age_ns();
    if old && history.base.is_none() {
        history.base = Some(history.recent_trend.last);
    }
    let verdict =
        if old { decide(config, surroundings, history, sample) } else { Verdict::Warming };
    if verdict != history.verdict {
        history.verdict = verdict;
        history.since_ns = now_ns;
    }
}

fn decide(
    config: &VerdictConfig,
    surroundings: &Surroundings,
    history: &History,
    sample: &RowSample<'_>,
) -> Verdict {
    if history.high < config.min_bytes {
        return Verdict::Steady;
    }
    if distrust(config, surroundings, history, &sample.key, sample.live.bytes, sample.freed)
        .is_some()
    {
        return Verdict::Unreliable;
    }
    // A leak that rests because its process has nothing to do is still one; growth that was
    // never called a leak, and rests for whatever reason, has stopped.
    let rest = match history.verdict {
        Verdict::Leak => history.active_since_rise,
        _ => history.since_rise,
    };
    if rest >= history.patience(config.plateau_windows) {
        let base = history.base.unwrap_or(0);
        let grown = history.high.saturating_sub(base);
        return if grown >= config.min_bytes && grown >= base / 4 {
            Verdict::Plateau
        } else {
            Verdict::Steady
        };
    }
    let trends = [history.recent_trend, history.whole_trend];
    let freed_share = share_freed(
        sample.allocated.saturating_sub(history.allocated),
        sample.freed.saturating_sub(history.freed),
    );
    let little_freed = freed_share.is_none_or(|share| share <= config.leak_freed_share);
    if little_freed
        && history.windows >= config.leak_windows
        && trends.iter().any(|trend| goes_on(config, trend))
    {
        return Verdict::Leak;
    }
    let grows = trends.iter().any(|trend| trend.run >= config.growing_windows);
    match history.verdict {
        _ if grows => Verdict::Growing,
        // Neither a new step nor long enough without one: what was said stands.
        said @ (Verdict::Growing | Verdict::Leak | Verdict::Plateau | Verdict::Steady) => said,
        _ if history.windows <= config.growing_windows => Verdict::Warming,
        _ => Verdict::Steady,
    }
}

/// Whether a trend has gone on for long enough and without slowing down.
fn goes_on(config: &VerdictConfig, trend: &Trend) -> bool {
    let steps = trend.windows.saturating_sub(1);
    steps >= config.leak_windows / 2
        && f64::from(trend.rising) >= f64::from(steps) * config.leak_rising_share
        && trend.late_share >= LATE_SHARE
}

/// Why nothing can be said, if so.
fn distrust(
    config: &VerdictConfig,
    surroundings: &Surroundings,
    history: &History,
    key: &RowKey,
    live_bytes: u64,
    freed: Amount,
) -> Option<String> {
    let (lost, share) = loss(surroundings, history, key);
    if share > config.loss_share {
        return Some(format!("{lost} events lost while this was watched, {:.0} %", share * 100.0));
    }
    let growth = surroundings.slab_growth_bytes?;
    let kernel = domain(key) == Domain::Kernel;
    if kernel && freed.count == 0 && live_bytes > growth.saturating_add(SLAB_TOLERANCE) {
        return Some(format!(
            "no free was ever seen here and the books ({live_bytes} bytes) exceed the slab's \
             growth ({growth} bytes): it is freed where it cannot be seen (kfree_rcu)"
        ));
    }
    None
}

fn loss(surroundings: &Surroundings, history: &History, key: &RowKey) -> (u64, f64) {
    let now = surroundings.of(key);
    let lost = now.lost.saturating_sub(history.traffic.lost);
    let seen = now.seen.saturating_sub(history.traffic.seen);
    (lost, lost as f64 / (lost + seen).max(1) as f64)
}

fn domain(key: &RowKey) -> Domain {
    match key {
        RowKey::Account { .. } => Domain::Kernel,
        RowKey::Call { function, .. } => {
            catalog::name_and_domain(*function).map_or(Domain::Heap, |(_, domain)| domain)
        }
    }
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
    key: &RowKey,
    history: Option<&History>,
    row: &RowFacts,
) -> Judgement {
    let mut judgement = match history {
        Some(history) => of_history(config, surroundings, key, history, row),
        None => unwatched(config, row),
    };
    let orphan_since_ns = row.orphan_since_ns.filter(|since_ns| {
        row.now_ns.saturating_sub(*since_ns) >= config.min_age_ns()
            && row.live_bytes >= config.min_bytes
    });
    if let Some(since_ns) = orphan_since_ns
        && judgement.verdict != Verdict::Unreliable
    {
        judgement.verdict = Verdict::Orphaned;
        judgement.confidence = Some(0.9);
        judgement.since_ns = since_ns;
        let seconds = row.now_ns.saturating_sub(since_ns) / 1_000_000_000;
        judgement.decided_by = vec![format!("still live {seconds} s after its process ended")];
    }
    judgement
}

fn unwatched(config: &VerdictConfig, row: &RowFacts) -> Judgement {
    let young = row.now_ns.saturating_sub(row.first_ns) < config.min_age_ns();
    Judgement {
        verdict: if young { Verdict::Warming } else { Verdict::Steady },
        since_ns: row.first_ns,
        evidence: Evidence {
            window_seconds: config.window_seconds,
            freed_share: share_freed(row.allocated, row.freed),
            ..Evidence::default()
        },
        ..Judgement::default()
    }
}

fn of_history(
    config: &VerdictConfig,
    surroundings: &Surroundings,
    key: &RowKey,
    history: &History,
    row: &RowFacts,
) -> Judgement {
    let (recent, whole) = (history.recent_trend, history.whole_trend);
    // The whole life says more where it is longer and rises.
    let long = history.whole.width > 1 && whole.rising + 1 >= whole.windows;
    let (trend, width) = if long { (whole, history.whole.width) } else { (recent, 1) };
    let window_seconds = config.window_seconds * f64::from(width);
    let steps = trend.windows.saturating_sub(1);
    let growth = (steps > 0)
        .then(|| (trend.last as f64 - trend.first as f64) / (f64::from(steps) * window_seconds));
    let allocated = row.allocated.saturating_sub(history.allocated);
    let (lost_events, lost_share) = loss(surroundings, history, key);
    let grown = row.live_bytes as f64 - history.live_bytes as f64;
    let evidence = Evidence {
        floor_first_bytes: (trend.windows > 0).then_some(trend.first),
        floor_last_bytes: (trend.windows > 0).then_some(trend.last),
        windows: trend.windows,
        window_seconds,
        rising_windows: trend.rising,
        bytes_per_allocation: (allocated.count > 0).then(|| grown / allocated.count as f64),
        freed_share: share_freed(row.allocated, row.freed),
        lost_events,
        watched_seconds: row.now_ns.saturating_sub(history.watched_ns) as f64 / 1e9,
        ..Evidence::default()
    };
    let distrust = distrust(config, surroundings, history, key, row.live_bytes, row.freed);
    Judgement {
        verdict: history.verdict,
        confidence: confidence(config, history, &trend, lost_share),
        growth_bytes_per_second: growth,
        since_ns: history.since_ns,
        decided_by: reasons(config, history, &trend, window_seconds, &evidence, distrust),
        evidence,
    }
}
