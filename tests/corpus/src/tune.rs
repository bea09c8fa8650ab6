//! What was tuned, and what it is worth where it was not: each case is judged with the numbers
//! that are best for all the other cases.
//!
//! Tuned are `turnover_windows`, `leak_windows`, `leak_steps`, `straight` and `trend_p` of
//! [`VerdictConfig`]. Its other numbers are fixed by reason, which stands beside each, and are as
//! they were before there was a corpus: how long a window, start-up, growth that is worth a word
//! and rest are; what is too small, too unsure or too much lost is for a person to say.
//!
//! The constants beside the rules (`verdict/weigh.rs`, `decide.rs`) are in no configuration. What
//! of them is no statistics was settled on training seeds of all cases, so leaving a case out says
//! nothing about it: the unseen seeds do, and the recordings.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use memtrace_daemon::verdict::VerdictConfig;

use crate::cases::{Case, variants};
use crate::judge::{Outcome, Plan, run};
use crate::score::Score;

/// Seeds that numbers may be tuned on begin here.
pub const TRAINING: u64 = 0;
/// Seeds that nobody has looked at begin here.
pub const UNSEEN: u64 = 1_000_000;

/// By how much a number is stepped: an eighth of it, a probability threefold.
const STEP: u32 = 8;
const STEP_OF_P: f64 = 3.0;

/// A set of numbers to choose from.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// What is otherwise than shipped.
    pub name: String,
    /// The numbers.
    pub verdict: VerdictConfig,
}

/// Sets of numbers to choose from: what memtrace ships with, and each number that was tuned a
/// step lower and a step higher. More of them would rather be chosen by the chance of a few
/// training seeds than by what they are worth.
#[must_use]
pub fn candidates() -> Vec<Candidate> {
    let shipped = VerdictConfig::default();
    let mut all = vec![Candidate { name: "as shipped".to_owned(), verdict: shipped.clone() }];
    let mut add = |name: &str, change: &dyn Fn(&mut VerdictConfig)| {
        let mut verdict = shipped.clone();
        change(&mut verdict);
        all.push(Candidate { name: name.to_owned(), verdict });
    };
    let lower = |windows: u32| windows - (windows / STEP).max(1).min(windows);
    let higher = |windows: u32| windows + (windows / STEP).max(1);
    // What is straight is 1: a step is an eighth of the whole, halved.
    let bent = f64::from(STEP).recip() / 2.0;
    add("fewer turnover_windows", &|it| it.turnover_windows = lower(it.turnover_windows));
    add("more turnover_windows", &|it| it.turnover_windows = higher(it.turnover_windows));
    add("fewer leak_windows", &|it| it.leak_windows = lower(it.leak_windows));
    add("more leak_windows", &|it| it.leak_windows = higher(it.leak_windows));
    add("fewer leak_steps", &|it| it.leak_steps = lower(lower(it.leak_steps)));
    add("more leak_steps", &|it| it.leak_steps = higher(higher(it.leak_steps)));
    add("a less straight line", &|it| it.straight = it.straight.map(|share| share - bent));
    add("a straighter line", &|it| it.straight = it.straight.map(|share| share + bent));
    add("a smaller trend_p", &|it| it.trend_p /= STEP_OF_P);
    add("a larger trend_p", &|it| it.trend_p *= STEP_OF_P);
    all
}

/// What a candidate falls short by, 0 at best: how far each figure that has a bar is from
/// perfect, in units of what its bar allows. So a figure that is twice as bad as it may be costs
/// as much as two that are as bad as they may be, and none counts more than the others. A leak
/// that is called sooner than the contract allows is as wrong as a variant that is. Confidence has
/// numbers of its own: its calibration counts only by what it misses its bar by, or whatever
/// makes verdicts that are all right a little surer would win.
#[must_use]
pub fn shortfall(score: &Score, cases: &[Score]) -> f64 {
    let bars = Bars::default();
    let wrong: f64 = cases.iter().map(|case| 1.0 - case.right_share()).sum();
    let wrong = wrong / cases.len().max(1) as f64 + score.early_share();
    let calibration = score.calibration_error().unwrap_or(0.0) - bars.calibration;
    (1.0 - score.precision()) / (1.0 - bars.precision)
        + (1.0 - score.recall()) / (1.0 - bars.recall)
        + wrong / (1.0 - bars.each_case)
        + calibration.max(0.0) / bars.calibration
        + score.false_alarms_per_site_day() / bars.alarms
}

/// The bars.
#[derive(Clone, Copy, Debug)]
pub struct Bars {
    /// Precision on unseen seeds, at least.
    pub precision: f64,
    /// Recall on unseen seeds, at least.
    pub recall: f64,
    /// Share of the variants of each case that are right, at least.
    pub each_case: f64,
    /// By how much less each of these may be where the case was left out of what was tuned.
    pub left_out: f64,
    /// Calibration error, at most.
    pub calibration: f64,
    /// False alarms a site and day, at most.
    pub alarms: f64,
}

impl Default for Bars {
    fn default() -> Self {
        Self {
            precision: 0.97,
            recall: 0.95,
            each_case: 0.9,
            left_out: 0.05,
            calibration: 0.05,
            alarms: 0.01,
        }
    }
}

/// One variant and what each rule made of it.
#[derive(Debug)]
pub struct Played {
    /// Number of the case in the list.
    pub case: usize,
    /// Its seed.
    pub seed: u64,
    /// By rule.
    pub outcomes: Vec<Outcome>,
}

/// Plays so many variants of each leak, and as many of the other cases as make leaks a quarter,
/// on all CPUs. In the order of cases and seeds, whatever was done first.
#[must_use]
pub fn play(cases: &[Case], first_seed: u64, of_a_leak: u64, plan: &Plan) -> Vec<Played> {
    let jobs = cases.iter().enumerate().flat_map(|(number, case)| {
        let seeds = seeds(cases, case, first_seed, of_a_leak);
        seeds.map(move |seed| (number, *case, seed, plan))
    });
    play_all(&jobs.collect::<Vec<_>>())
}

/// The seeds of a case among these.
fn seeds(cases: &[Case], case: &Case, first: u64, of_a_leak: u64) -> Range<u64> {
    let (leaks, others) = variants(cases, of_a_leak);
    first..first + if case.leaks { leaks } else { others }
}

/// Plays these, on all CPUs.
fn play_all(jobs: &[(usize, Case, u64, &Plan)]) -> Vec<Played> {
    let next = AtomicUsize::new(0);
    let played = Mutex::new(Vec::with_capacity(jobs.len()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((case, of, seed, plan)) =
                    jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let outcomes = run(of, *seed, plan);
                    let one = Played { case: *case, seed: *seed, outcomes };
                    played.lock().unwrap_or_else(PoisonError::into_inner).push(one);
                }
            });
        }
    });
    let mut played = played.into_inner().unwrap_or_else(PoisonError::into_inner);
    played.sort_by_key(|one| (one.case, one.seed));
    played
}

/// Scores of one rule by case, in the order of the cases.
#[must_use]
pub fn by_case(cases: &[Case], played: &[Played], rule: usize) -> Vec<Score> {
    let mut scores = vec![Score::default(); cases.len()];
    for one in played {
        if let (Some(score), Some(outcome)) = (scores.get_mut(one.case), one.outcomes.get(rule)) {
            score.add(outcome);
        }
    }
    scores
}

/// The score of one rule over everything.
#[must_use]
pub fn overall(played: &[Played], rule: usize) -> Score {
    let mut score = Score::default();
    for outcome in played.iter().filter_map(|one| one.outcomes.get(rule)) {
        score.add(outcome);
    }
    score
}

/// What came of leaving each case out.
#[derive(Debug)]
pub struct LeftOut {
    /// Over all cases, each judged by what was chosen without it.
    pub score: Score,
    /// By case: which candidate was chosen without it, and how it does there.
    pub cases: Vec<(usize, Score)>,
    /// What each candidate falls short by on the training seeds, over all cases.
    pub shortfalls: Vec<f64>,
    /// Training variants.
    pub trained_on: usize,
}

/// Each case with the numbers that fall least short for all others on the training seeds, judged
/// on the unseen ones. `shipped` is what the first candidate made of those.
#[must_use]
pub fn leave_one_out(
    cases: &[Case],
    candidates: &[Candidate],
    (training, unseen): (u64, u64),
    shipped: &[Played],
) -> LeftOut {
    let plans: Vec<Plan> = candidates
        .iter()
        .map(|candidate| Plan { verdict: candidate.verdict.clone(), ..Plan::default() })
        .collect();
    let trained: Vec<Vec<Score>> = plans
        .iter()
        .map(|plan| by_case(cases, &play(cases, TRAINING, training, plan), 0))
        .collect();
    let chosen: Vec<usize> =
        (0..cases.len()).map(|left_out| choose(&trained, Some(left_out))).collect();
    // What was chosen as shipped was played already.
    let mut jobs = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let plan = chosen.get(number).filter(|chosen| **chosen > 0);
        if let Some(plan) = plan.and_then(|chosen| plans.get(*chosen)) {
            let seeds = seeds(cases, case, UNSEEN, unseen);
            jobs.extend(seeds.map(|seed| (number, *case, seed, plan)));
        }
    }
    let others = play_all(&jobs);
    let mut score = Score::default();
    let mut by_cases = Vec::new();
    for (number, chosen) in chosen.into_iter().enumerate() {
        let played = if chosen == 0 { shipped } else { &others };
        let mut own = Score::default();
        let outcomes = played.iter().filter(|one| one.case == number);
        outcomes.filter_map(|one| one.outcomes.first()).for_each(|outcome| own.add(outcome));
        score.merge(&own);
        by_cases.push((chosen, own));
    }
    let trained_on = trained.first().map_or(0, |cases| cases.iter().map(|one| one.variants).sum());
    let shortfalls = trained.iter().map(|scores| without(scores, None)).collect();
    LeftOut { score, cases: by_cases, shortfalls, trained_on }
}

/// Which candidate falls least short without this case. The first of equals: what is shipped
/// where nothing is better.
fn choose(trained: &[Vec<Score>], left_out: Option<usize>) -> usize {
    let mut best = (f64::MAX, 0);
    for (number, scores) in trained.iter().enumerate() {
        let short = without(scores, left_out);
        if short < best.0 - 1e-9 {
            best = (short, number);
        }
    }
    best.1
}

/// What a candidate falls short by without this case.
fn without(scores: &[Score], left_out: Option<usize>) -> f64 {
    let kept = scores.iter().enumerate().filter(|(number, _)| Some(*number) != left_out);
    let kept: Vec<Score> = kept.map(|(_, score)| score.clone()).collect();
    let mut sum = Score::default();
    kept.iter().for_each(|score| sum.merge(score));
    shortfall(&sum, &kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(variants: usize, right: usize) -> Score {
        let mut score = Score::default();
        (score.variants, score.right) = (variants, right);
        score
    }

    #[test]
    fn candidates_differ_and_the_first_is_what_is_shipped() {
        let all = candidates();
        assert_eq!(all[0].verdict, VerdictConfig::default());
        for (number, one) in all.iter().enumerate() {
            assert!(all[..number].iter().all(|other| other.verdict != one.verdict), "{}", one.name);
        }
    }

    #[test]
    fn a_case_that_is_left_out_does_not_choose() {
        // The second is better in the second case alone.
        let trained = [
            vec![score(10, 9), score(10, 2), score(10, 10)],
            vec![score(10, 8), score(10, 10), score(10, 10)],
        ];
        assert_eq!(choose(&trained, None), 1);
        assert_eq!(choose(&trained, Some(1)), 0);
        let equal = [trained[0].clone(), trained[0].clone()];
        assert_eq!(choose(&equal, Some(0)), 0, "what is shipped, of equals");
    }

    #[test]
    fn each_figure_at_its_bar_costs_as_much() {
        let mut one = score(100, 90);
        one.true_positives = 95;
        one.false_negatives = 5;
        let perfect = score(100, 100);
        let by_case = shortfall(&one, &[one.clone()]) - shortfall(&one, &[perfect]);
        assert!((by_case - 1.0).abs() < 1e-9, "{by_case}");
        let missed = shortfall(&one, &[]) - shortfall(&score(100, 90), &[]);
        assert!((missed - 1.0).abs() < 1e-9, "{missed}");
        one.early = 19;
        let early = shortfall(&one, &[]) - missed;
        assert!((early - 2.0).abs() < 1e-9, "a fifth, where a tenth may be wrong: {early}");
    }
}
