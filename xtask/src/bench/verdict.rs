//! Verdicts: how well memtrace tells leaks from the rest, beside rules that people use today, and
//! what history and judgement cost.
//!
//! Everything is measured by a program of its own, on synthetic workloads in virtual time, which
//! fails when a bar is missed. The costs stand beside their bars and fail nothing: they are times
//! on whatever machine this is.

use std::process::Command;

use crate::command;

const PACKAGE: [&str; 2] = ["--package", "memtrace-corpus"];

/// Prints the tables.
///
/// # Errors
///
/// When something cannot be built, and when a bar is missed.
pub(super) fn run() -> anyhow::Result<()> {
    let mut build = command::cargo();
    command::run(build.args(["build", "--release"]).args(PACKAGE))?;
    println!();
    let verdicts = command::root().join("target/release/bench_verdict");
    let measured = command::run(&mut Command::new(verdicts));
    println!();
    let mut costs = command::cargo();
    command::run(costs.arg("bench").args(PACKAGE))?;
    measured
}
