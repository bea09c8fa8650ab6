//! The moving median plus 1.8 times the interquartile range, in steps of 1.15.
//!
//! A common alert on memory: a level is out of the ordinary when it is above the median of a
//! moving window by more than 1.8 times the distance between the quartiles; it is a leak when
//! that happens and each time the level is at least 1.15 times what it was the last time, three
//! times running. A level that falls below where the first step began starts over.
//!
//! Simplified: the window is 30 minutes or as much as there is, from 2 minutes on.

use std::collections::VecDeque;

use super::levels::{Levels, MIN_BYTES, Rows};
use crate::snapshot::Verdict;
use crate::verdict::{Rule, Subject, Surroundings};

/// How far above the median is out of the ordinary, in interquartile ranges.
const RANGES: f64 = 1.8;
/// What one step is, as a factor.
const STEP: f64 = 1.15;
/// Steps that make a leak.
const STEPS: u32 = 3;
/// The window, and what it takes to begin: 30 and 2 minutes of windows of ten seconds.
const WINDOW: usize = 180;
const ENOUGH: usize = 12;

/// The rule.
#[derive(Debug, Default)]
pub struct Quartile {
    levels: Levels<State>,
}

#[derive(Debug, Default)]
struct State {
    window: VecDeque<u64>,
    /// The level that the first step began from, and the level of the last step.
    base: f64,
    last: f64,
    steps: u32,
}

impl State {
    fn judge(&mut self, bytes: u64) -> Verdict {
        let level = bytes as f64;
        let mut sorted: Vec<u64> = self.window.iter().copied().collect();
        sorted.sort_unstable();
        self.window.push_back(bytes);
        if self.window.len() > WINDOW {
            self.window.pop_front();
        }
        if sorted.len() < ENOUGH {
            return Verdict::Warming;
        }
        let at =
            |quarter: usize| sorted.get(sorted.len() * quarter / 4).copied().unwrap_or(0) as f64;
        let (low, median, high) = (at(1), at(2), at(3));
        if self.steps > 0 && level <= self.base {
            self.steps = 0;
        }
        let unusual = bytes >= MIN_BYTES && level > median + RANGES * (high - low);
        if self.steps == 0 && unusual {
            self.base = median;
            self.last = level;
            self.steps = 1;
        } else if self.steps > 0 && level >= self.last * STEP && level > median {
            self.last = level;
            self.steps += 1;
        }
        match self.steps {
            0 => Verdict::Steady,
            steps if steps > STEPS => Verdict::Leak,
            _ => Verdict::Growing,
        }
    }
}

impl Rule for Quartile {
    fn observe(&mut self, now_ns: u64, _surroundings: Surroundings, rows: Rows<'_>) {
        self.levels.observe(now_ns, rows, State::judge);
    }

    fn said(&self, each: &mut dyn FnMut(Subject, Verdict)) {
        self.levels.said(each);
    }
}
