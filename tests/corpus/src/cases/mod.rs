//! The cases: one a row of the list of public bug reports (A1 to A43; a row of two phases is two
//! cases), and what every operator meets beside them (N: no leak, P: leak).
//!
//! A5, A7, A11, A13, A14, A28 and A39 rest on what the host observes, not on calls: they expect
//! words about what is measured of a process or of the host.
//!
//! Labels keep to the contract of times: a site that never frees anything is a leak from 8
//! minutes of growth on at the earliest. So whatever grows in a straight line without a free
//! and is none stops before that, or slows down for all to see.

mod bounded;
mod everyday;
mod leaks;
mod lost;
mod measured;
mod ordinary;

use crate::random::Random;
use crate::stage::Stage;

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name: the row, and the phase.
    pub name: &'static str,
    /// What happens.
    pub about: &'static str,
    /// Whether it is a leak.
    pub leaks: bool,
    build: fn(&mut Stage),
}

impl Case {
    /// The variant of a seed.
    #[must_use]
    pub fn variant(&self, seed: u64) -> Stage {
        let mut stage = Stage::new(Random::new(seed, self.name));
        (self.build)(&mut stage);
        stage
    }

    /// Whether it rests on what is measured: then something that it expects is.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.variant(0).expectations.iter().any(|one| one.target.is_measured())
    }
}

const fn leak(name: &'static str, about: &'static str, build: fn(&mut Stage)) -> Case {
    Case { name, about, leaks: true, build }
}

const fn none(name: &'static str, about: &'static str, build: fn(&mut Stage)) -> Case {
    Case { name, about, leaks: false, build }
}

/// All cases.
#[must_use]
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(leaks::CASES);
    cases.extend(bounded::CASES);
    cases.extend(measured::CASES);
    cases.extend(lost::CASES);
    cases.extend(ordinary::CASES);
    cases.extend(everyday::CASES);
    cases
}

/// How many variants a leak has, and how many another case, so that leaks are a quarter of all.
#[must_use]
pub fn variants(cases: &[Case], of_a_leak: u64) -> (u64, u64) {
    let leaks = cases.iter().filter(|case| case.leaks).count() as u64;
    let others = (cases.len() as u64 - leaks).max(1);
    (of_a_leak, (3 * leaks * of_a_leak).div_ceil(others).max(of_a_leak))
}
