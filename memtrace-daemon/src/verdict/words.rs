//! How sure a verdict is, and why, in words that a person can check.

use super::VerdictConfig;
use super::history::History;
use super::series::Trend;
use crate::snapshot::{Evidence, Verdict};

/// A rough measure, to be replaced by intervals: how much of what would be needed was seen.
pub(super) fn confidence(
    config: &VerdictConfig,
    history: &History,
    trend: &Trend,
    lost_share: f64,
) -> Option<f64> {
    let steps = f64::from(trend.windows.saturating_sub(1).max(1));
    let rising = f64::from(trend.rising) / steps;
    let watched = (f64::from(history.windows) / f64::from(config.leak_windows.max(1))).min(1.0);
    let base = match history.verdict {
        Verdict::Leak => 0.6 + 0.35 * rising,
        Verdict::Growing => 0.3 + 0.3 * watched * rising,
        Verdict::Plateau | Verdict::Steady => 0.5 + 0.4 * watched,
        _ => return None,
    };
    Some((base * (1.0 - lost_share)).clamp(0.0, 1.0))
}

/// What decided, or would decide.
pub(super) fn reasons(
    config: &VerdictConfig,
    history: &History,
    trend: &Trend,
    window_seconds: f64,
    evidence: &Evidence,
    distrust: Option<String>,
) -> Vec<String> {
    let rose = || {
        let steps = trend.windows.saturating_sub(1);
        format!("floor rose in {} of {steps} windows of {window_seconds} s", trend.rising)
    };
    match history.verdict {
        Verdict::Growing => {
            let mut reasons = vec![rose()];
            let missing = config.leak_windows.saturating_sub(history.windows);
            if missing > 0 {
                let seconds = f64::from(missing) * config.window_seconds;
                reasons.push(format!("{} more tell", duration(seconds)));
            }
            match evidence.freed_share {
                Some(share) if share > 0.0 => {
                    reasons.push(format!("{:.0} % of what was allocated was freed", share * 100.0));
                }
                _ => reasons.push("no frees seen yet".to_owned()),
            }
            reasons
        }
        Verdict::Leak => {
            let share = evidence.freed_share.unwrap_or(0.0) * 100.0;
            vec![rose(), format!("{share:.0} % of what was allocated was freed")]
        }
        Verdict::Unreliable => distrust.into_iter().collect(),
        _ => Vec::new(),
    }
}

fn duration(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}
