//! How sure a verdict is, 0 to 1: how often verdicts with such evidence are right.
//!
//! The figures were fitted to the labelled corpus and are checked on seeds that were not seen
//! (`cargo xtask bench verdict`, calibration error). More loss never raises a confidence.

use super::VerdictConfig;
use super::history::History;
use super::weigh::{needed, straight_margin};
use crate::snapshot::Verdict;

/// The confidence of what was last said; `None` where nothing was decided.
pub(super) fn confidence(
    config: &VerdictConfig,
    history: &History,
    lost_share: f64,
) -> Option<f64> {
    let weighed = &history.weighed;
    let needed = f64::from(needed(config, weighed).max(1));
    let longer = |windows: u32| (f64::from(windows) / needed).min(3.0);
    let base = match history.verdict {
        Verdict::Leak => {
            let trend = weighed.trend.unwrap_or_default();
            // Longer than it takes, straighter than it must be, seen to turn over.
            let time = (longer(trend.windows()) - 1.0).clamp(0.0, 1.0) * 0.05;
            let straight = straight_margin(config, weighed).clamp(0.0, 0.2) * 0.1;
            let turnover = if weighed.turns_over { 0.02 } else { 0.0 };
            0.91 + time + straight + turnover
        }
        Verdict::Growing => {
            let trend = weighed.trend.unwrap_or_default();
            0.5 + 0.3 * longer(trend.windows()).min(1.0)
        }
        Verdict::Plateau | Verdict::Steady => {
            let watched =
                f64::from(history.since_rise) / f64::from(history.patience(config).max(1));
            0.95 + 0.04 * (watched / 3.0).min(1.0)
        }
        _ => return None,
    };
    Some((base * (1.0 - lost_share)).clamp(0.0, 1.0))
}
