//! Linear backward regression: LBR, the simpler of the LBR and Precog family.
//!
//! Source: Jindal et al., "Memory Leak Detection Algorithms in the Cloud-based Infrastructure"
//! (arXiv 2106.08938) and "Online Memory Leak Detection in the Cloud-based Infrastructures"
//! (arXiv 2101.09799). A line is fitted to windows that end now and reach ever farther back; a
//! window whose R² is at least 0.8, whose line rises, and whose line reaches the limit of memory
//! within the critical time, makes a leak. Precog learns the trend lines between change points
//! of a first part of the series, and calls later growth a leak only where it is longer and
//! steeper than any of these.
//!
//! Simplified: Precog's learning is not here, since it needs a history without a leak, of hours,
//! for each series, and its published accuracy (0.85) is no higher than what its family stands
//! for here. Of a site no limit is known, so the critical time is to twice the present level,
//! within 7 days. Windows reach back 10, 20, 40 … minutes, to 10 hours; the papers smooth
//! by resampling, here a level is taken once in ten seconds.

use std::collections::VecDeque;

use super::levels::{Levels, MIN_BYTES, Rows, WINDOW_NS};
use crate::snapshot::Verdict;
use crate::verdict::{Rule, Subject, Surroundings};

/// Least share of the variance that the line explains.
const R_SQUARED: f64 = 0.8;
/// Within how many windows the line must reach twice the level: 7 days.
const CRITICAL: f64 = 7.0 * 86_400e9 / WINDOW_NS as f64;
/// The shortest and the longest window: 10 minutes and 10 hours.
const SHORTEST: usize = 60;
const LONGEST: usize = 3_600;

/// The rule.
#[derive(Debug, Default)]
pub struct Regression {
    levels: Levels<VecDeque<f64>>,
}

/// A fitted line.
struct Line {
    slope: f64,
    r_squared: f64,
}

/// The line of least squares through levels, newest first.
fn fit(levels: impl Iterator<Item = f64>) -> Line {
    let (mut n, mut sx, mut sy, mut sxx, mut sxy, mut syy) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    for y in levels {
        let x = -n;
        n += 1.0;
        sx += x;
        sy += y;
        sxx += x * x;
        sxy += x * y;
        syy += y * y;
    }
    let (vx, vy, cov) = (n * sxx - sx * sx, n * syy - sy * sy, n * sxy - sx * sy);
    if vx <= 0.0 || vy <= 0.0 {
        return Line { slope: 0.0, r_squared: 0.0 };
    }
    Line { slope: cov / vx, r_squared: cov * cov / (vx * vy) }
}

fn judge(levels: &mut VecDeque<f64>, bytes: u64) -> Verdict {
    levels.push_front(bytes as f64);
    levels.truncate(LONGEST);
    if levels.len() < SHORTEST {
        return Verdict::Warming;
    }
    let mut length = SHORTEST;
    while length <= levels.len() {
        let line = fit(levels.iter().take(length).copied());
        let doubles_in = bytes as f64 / line.slope;
        let rises = line.slope > 0.0 && doubles_in <= CRITICAL;
        if bytes >= MIN_BYTES && rises && line.r_squared >= R_SQUARED {
            return Verdict::Leak;
        }
        length *= 2;
    }
    Verdict::Steady
}

impl Rule for Regression {
    fn observe(&mut self, now_ns: u64, _surroundings: Surroundings, rows: Rows<'_>) {
        self.levels.observe(now_ns, rows, judge);
    }

    fn said(&self, each: &mut dyn FnMut(Subject, Verdict)) {
        self.levels.said(each);
    }
}
