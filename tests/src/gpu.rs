//! The program that calls whatever driver library it is linked with, and keeps its own books.

use std::path::Path;

use crate::memtrace::Run;

/// The domains that it takes memory in.
const DOMAINS: &str = "cuda,managed,pinned";

/// Traces the program, linked with the stub or with whatever the system has, and holds the books
/// against its own.
///
/// # Errors
///
/// The first difference, or that it could not run.
pub fn check(program: &Path) -> anyhow::Result<()> {
    let traced = Run::new(DOMAINS).trace(program, [""; 0])?;
    traced.dump.check_conservation()?;
    let mut lost = traced.dump.losses();
    // Whose code nobody knows yet is copied more often.
    lost.remove("stack_budget");
    anyhow::ensure!(lost.is_empty(), "lost: {lost:?}");
    traced.truth()?.check_ended(traced.process()?)
}
