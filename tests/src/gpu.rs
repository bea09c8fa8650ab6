//! Programs that use whatever GPU libraries they find, and keep books of their own: a C program over
//! the driver, and a Python script over PyTorch.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::dump::Amount;
use crate::fixture;
use crate::memtrace::{Run, Traced};

/// The domains that the C program takes memory in.
const DOMAINS: &str = "cuda,managed,pinned";

/// Traces the program, linked with the stub or with whatever the system has, and holds the books
/// against its own.
///
/// # Errors
///
/// The first difference, or that it could not run.
pub fn check(program: &Path) -> anyhow::Result<()> {
    let traced = Run::new(DOMAINS).trace(program, [""; 0])?;
    nothing_is_lost(&traced)?;
    traced.truth()?.check_ended(traced.process()?)
}

/// What PyTorch counts itself.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Counted {
    seen: Amount,
    freed: Amount,
    live: Amount,
    held_bytes: u64,
}

/// Traces the script with the PyTorch that `python3` has, or with the stand-in for it over the stub
/// pool, and holds the books against what it counted itself.
///
/// # Errors
///
/// The first difference, or that it could not run.
pub fn check_torch(stub: Option<&Path>) -> anyhow::Result<()> {
    let mut run = Run::new("cuda,torch");
    if let Some(stub) = stub {
        let directory = stub.parent().context("a stub without a directory")?;
        run = run.switch("LD_LIBRARY_PATH", directory.display());
        run = run.switch("PYTHONDONTWRITEBYTECODE", 1);
        run = run.switch("PYTHONPATH", fixture::sources().join("torch/stand_in").display());
    }
    let traced = run.trace("python3", [fixture::sources().join("torch/gpu.py")])?;
    nothing_is_lost(&traced)?;
    let counted: Counted = serde_json::from_value(traced.said.last_json()?)?;
    let process = traced.process()?;
    let torch = process.domain("torch").terms;
    ensure!(torch.seen == counted.seen, "the books say {torch:?}, PyTorch {counted:?}");
    ensure!(torch.freed == counted.freed, "the books say {torch:?}, PyTorch {counted:?}");
    ensure!(torch.closed == counted.live, "the books say {torch:?}, PyTorch {counted:?}");
    // Libraries beside the pool take memory as well.
    let cuda = process.domain("cuda").terms;
    ensure!(cuda.closed.bytes >= counted.held_bytes, "the books say {cuda:?}, PyTorch {counted:?}");
    Ok(())
}

fn nothing_is_lost(traced: &Traced) -> anyhow::Result<()> {
    traced.dump.check_conservation()?;
    let mut lost = traced.dump.losses();
    // Whose code nobody knows yet is copied more often.
    lost.remove("stack_budget");
    ensure!(lost.is_empty(), "lost: {lost:?}");
    Ok(())
}
