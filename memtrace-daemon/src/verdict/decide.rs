//! The decision: from what was weighed, and what was said before, to a verdict.
//!
//! What was said stands until something speaks against it. A leak becomes milder only when what
//! it kept is freed, or when its process goes on working and it does not grow; never by idleness.

use super::VerdictConfig;
use super::history::History;
use super::kept::Kept;
use super::weigh::{LOAD_MARGIN, Weighed};
use crate::snapshot::Verdict;

/// A site whose live memory grew by less than this share of what it began with did not grow.
const WORTH_A_PLATEAU: u64 = 4;

/// Decides anew after weighing.
pub(super) fn decide(config: &VerdictConfig, history: &mut History, distrusted: bool, now_ns: u64) {
    if let Some(kept) = &mut history.kept {
        kept.see(history.weighed.old_bytes, history.active);
    }
    let verdict = next(config, history, distrusted);
    if verdict == history.verdict {
        return;
    }
    match (history.verdict, verdict) {
        (_, Verdict::Leak) => {
            let trend = history.weighed.trend.unwrap_or_default();
            // `as` saturates.
            history.leak_from = trend.first as u64;
            let Weighed { old_bytes, old_age, .. } = history.weighed;
            let growth = trend.growth() as u64;
            history.kept =
                old_bytes.map(|old| Box::new(Kept::new(old_age, old, growth, history.active)));
        }
        (Verdict::Leak, Verdict::Steady | Verdict::Growing) => history.begin_again(now_ns),
        _ => {}
    }
    if verdict != Verdict::Leak {
        history.kept = None;
    }
    history.verdict = verdict;
    history.since_ns = now_ns;
}

fn next(config: &VerdictConfig, history: &History, distrusted: bool) -> Verdict {
    let Some(base) = history.base else { return history.verdict };
    if history.high < config.min_bytes {
        return Verdict::Steady;
    }
    if distrusted {
        return Verdict::Unreliable;
    }
    let patience = history.patience_to_say(config);
    let weighed = &history.weighed;
    if history.verdict == Verdict::Leak {
        let (freed, rests_for) = match &history.kept {
            Some(kept) => (kept.is_freed(), kept.rests_for(history.active)),
            None => {
                let kept = history.last_floor().saturating_sub(history.leak_from);
                let grown = history.high.saturating_sub(history.leak_from);
                (kept < grown / 2, history.active_since_record)
            }
        };
        if freed {
            return Verdict::Steady;
        }
        let over = history.idle == 0 && rests_for >= history.patience_of_leak(config);
        return if over { Verdict::Plateau } else { Verdict::Leak };
    }
    if weighed.leak {
        return Verdict::Leak;
    }
    if weighed.grows && history.since_rise < patience {
        return Verdict::Growing;
    }
    // Growth that idleness interrupts when a leak is nearly sure waits for the decision.
    let nearly = history.verdict == Verdict::Growing
        && history.idle > 0
        && history.since_rise < config.leak_windows
        && weighed.nearly(config);
    if nearly {
        return Verdict::Growing;
    }
    if history.since_rise < patience {
        return match history.verdict {
            Verdict::Warming if history.active + history.idle <= config.growing_windows => {
                Verdict::Warming
            }
            Verdict::Warming | Verdict::Unreliable => Verdict::Steady,
            said => said,
        };
    }
    at_rest(config, history, base)
}

/// What has stopped growing: a cache or pool at its bound, or nothing in particular.
fn at_rest(config: &VerdictConfig, history: &History, base: u64) -> Verdict {
    let grown = history.high.saturating_sub(base);
    let floor = history.last_floor();
    let little = grown < config.min_bytes.max(base / WORTH_A_PLATEAU);
    let came_back = floor < base.saturating_add(grown / 2);
    let load = history.load().max(1.0);
    let by_load = history.weighed.turns_over && (floor as f64) < base as f64 * load * LOAD_MARGIN;
    if little || came_back || by_load { Verdict::Steady } else { Verdict::Plateau }
}
