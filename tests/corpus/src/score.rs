//! From outcomes to the figures that are held against bars.

use std::collections::BTreeMap;

use crate::judge::{Outcome, Turnover};

/// A leak is to be called within so many seconds of growth where its site frees something, or
/// within so many times as long as what is freed lives, where that is longer: younger memory tells
/// nothing. Windows in which there is nothing to do are no growth.
pub const SOON: f64 = 300.0;
/// See above.
pub const LIVES: f64 = 3.0;
/// Where nothing of it was ever freed, not before so many seconds have passed, and not after so
/// many seconds of growth.
pub const UNFREED: (f64, f64) = (480.0, 720.0);
/// Groups of confidence that are told apart.
const GROUPS: usize = 10;

/// Figures of one rule over some variants.
#[derive(Clone, Debug, Default)]
pub struct Score {
    /// Variants, and those of them that were right.
    pub variants: usize,
    /// Right.
    pub right: usize,
    /// Leaks that were called and still are in the end.
    pub true_positives: usize,
    /// Leaks that were not.
    pub false_negatives: usize,
    /// Different things that were wrongly called a leak.
    pub false_positives: usize,
    /// Times that something was wrongly called a leak.
    pub false_alarms: usize,
    /// Days that sites without a leak were watched for.
    pub site_days: f64,
    /// Leaks of sites whose turnover was known before they were called, and those of them that
    /// were called within the time that the contract gives.
    pub freeing: (usize, usize),
    /// The same where no free tells anything.
    pub unfreed: (usize, usize),
    /// Of these, called sooner than the contract allows.
    pub early: usize,
    delays: Vec<f64>,
    bytes: Vec<f64>,
    claims: Vec<(f64, bool)>,
}

impl Score {
    /// Takes an outcome in.
    pub fn add(&mut self, outcome: &Outcome) {
        self.variants += 1;
        self.right += usize::from(outcome.right);
        self.false_positives += outcome.false_positives;
        self.false_alarms += outcome.wrong.len();
        self.site_days += outcome.site_days;
        self.claims.extend(&outcome.claims);
        let leaks = outcome.finals.iter().filter(|(expectation, _, _)| expectation.leaks());
        for ((_, _, right), found) in leaks.zip(&outcome.found) {
            match found.after {
                Some(after) if *right => {
                    self.true_positives += 1;
                    self.delays.push(after);
                    self.bytes.push(found.bytes as f64);
                    let (group, (from, to)) = match found.turnover {
                        Turnover::Known(lives) => {
                            (&mut self.freeing, (0.0, SOON.max(lives * LIVES)))
                        }
                        Turnover::Unknown => (&mut self.unfreed, UNFREED),
                        // The contract gives times for sites.
                        Turnover::OfMany => continue,
                    };
                    group.0 += 1;
                    group.1 += usize::from(after >= from && after - found.rested <= to);
                    self.early += usize::from(after < from);
                }
                _ => self.false_negatives += 1,
            }
        }
    }

    /// Takes in what another has.
    pub fn merge(&mut self, other: &Self) {
        let Self {
            variants,
            right,
            true_positives,
            false_negatives,
            false_positives,
            false_alarms,
            site_days,
            freeing,
            unfreed,
            early,
            delays,
            bytes,
            claims,
        } = other;
        self.variants += variants;
        self.right += right;
        self.true_positives += true_positives;
        self.false_negatives += false_negatives;
        self.false_positives += false_positives;
        self.false_alarms += false_alarms;
        self.site_days += site_days;
        for (sum, more) in [(&mut self.freeing, freeing), (&mut self.unfreed, unfreed)] {
            *sum = (sum.0 + more.0, sum.1 + more.1);
        }
        self.early += early;
        self.delays.extend(delays);
        self.bytes.extend(bytes);
        self.claims.extend(claims);
    }

    /// Share of variants that were right.
    #[must_use]
    pub fn right_share(&self) -> f64 {
        share(self.right, self.variants)
    }

    /// Of what was called a leak, how much was.
    #[must_use]
    pub fn precision(&self) -> f64 {
        share(self.true_positives, self.true_positives + self.false_positives)
    }

    /// Of what is a leak, how much was called one.
    #[must_use]
    pub fn recall(&self) -> f64 {
        share(self.true_positives, self.true_positives + self.false_negatives)
    }

    /// Share of the leaks that were called within the time that the contract gives.
    #[must_use]
    pub fn in_time_share(&self) -> f64 {
        share(self.freeing.1 + self.unfreed.1, self.freeing.0 + self.unfreed.0)
    }

    /// Share of the leaks that were called sooner than the contract allows.
    #[must_use]
    pub fn early_share(&self) -> f64 {
        1.0 - share(self.true_positives - self.early.min(self.true_positives), self.true_positives)
    }

    /// Wrong calls of a leak a day and site.
    #[must_use]
    pub fn false_alarms_per_site_day(&self) -> f64 {
        if self.site_days > 0.0 { self.false_alarms as f64 / self.site_days } else { 0.0 }
    }

    /// Median seconds from the first lost byte to the call.
    #[must_use]
    pub fn median_delay(&self) -> Option<f64> {
        median(&self.delays)
    }

    /// Median bytes that were lost by then.
    #[must_use]
    pub fn median_bytes(&self) -> Option<f64> {
        median(&self.bytes)
    }

    /// By how much confidence and truth differ: the mean over groups of like confidence,
    /// weighted by their size; `None` where nothing was claimed.
    #[must_use]
    pub fn calibration_error(&self) -> Option<f64> {
        let all = self.claims.len();
        let sum: f64 = self
            .reliability()
            .iter()
            .map(|(sure, right, count)| (sure - right).abs() * *count as f64)
            .sum();
        (all > 0).then(|| sum / all as f64)
    }

    /// Of each group of confidence: how sure, how often right, how many.
    #[must_use]
    pub fn reliability(&self) -> Vec<(f64, f64, usize)> {
        let mut groups: BTreeMap<usize, (f64, usize, usize)> = BTreeMap::new();
        for (confidence, right) in &self.claims {
            let group = ((confidence * GROUPS as f64) as usize).min(GROUPS - 1);
            let (sum, rights, count) = groups.entry(group).or_default();
            *sum += confidence;
            *rights += usize::from(*right);
            *count += 1;
        }
        let mean = |(sum, rights, count): &(f64, usize, usize)| {
            (sum / *count as f64, share(*rights, *count), *count)
        };
        groups.values().map(mean).collect()
    }
}

fn share(part: usize, of: usize) -> f64 {
    if of == 0 { 1.0 } else { part as f64 / of as f64 }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}
