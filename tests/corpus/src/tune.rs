//! What was tuned, and what it is worth where it was not: each case is judged with the numbers
//! that are best for all the other cases.

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

/// Sets of numbers to choose from: the first is what memtrace ships with.
#[must_use]
pub fn candidates() -> Vec<VerdictConfig> {
    vec![VerdictConfig::default()]
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
    let (leaks, others) = variants(cases, of_a_leak);
    let mut jobs = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let count = if case.leaks { leaks } else { others };
        jobs.extend((first_seed..first_seed + count).map(|seed| (number, *case, seed)));
    }
    let next = AtomicUsize::new(0);
    let played = Mutex::new(Vec::with_capacity(jobs.len()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((number, case, seed)) =
                    jobs.get(next.fetch_add(1, Ordering::Relaxed)).copied()
                {
                    let outcomes = run(&case, seed, plan);
                    let one = Played { case: number, seed, outcomes };
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

/// Each case with the numbers that are best for all others on the training seeds, judged on the
/// unseen ones. Where there is nothing to choose from it is what is shipped.
#[must_use]
pub fn leave_one_out(
    cases: &[Case],
    candidates: &[VerdictConfig],
    of_a_leak: u64,
    shipped: &[Played],
) -> Score {
    let mut score = Score::default();
    if candidates.len() < 2 {
        return overall(shipped, 0);
    }
    let plans: Vec<Plan> = candidates
        .iter()
        .map(|verdict| Plan { verdict: verdict.clone(), ..Plan::default() })
        .collect();
    let trained: Vec<Vec<Score>> = plans
        .iter()
        .map(|plan| by_case(cases, &play(cases, TRAINING, of_a_leak, plan), 0))
        .collect();
    let (leaks, others) = variants(cases, of_a_leak);
    for (left_out, case) in cases.iter().enumerate() {
        let merit = |scores: &Vec<Score>| {
            let kept = scores.iter().enumerate().filter(|(number, _)| *number != left_out);
            kept.map(|(_, score)| score.right_share()).sum::<f64>()
        };
        // The first of equals: what is shipped where nothing is better.
        let mut best = (f64::MIN, 0);
        for (number, scores) in trained.iter().enumerate() {
            if merit(scores) > best.0 + 1e-9 {
                best = (merit(scores), number);
            }
        }
        if best.1 == 0 {
            let own = shipped.iter().filter(|one| one.case == left_out);
            own.filter_map(|one| one.outcomes.first()).for_each(|outcome| score.add(outcome));
        } else if let Some(plan) = plans.get(best.1) {
            let count = if case.leaks { leaks } else { others };
            for seed in UNSEEN..UNSEEN + count {
                run(case, seed, plan).iter().for_each(|outcome| score.add(outcome));
            }
        }
    }
    score
}
