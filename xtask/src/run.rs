//! `cargo xtask run -- ARGS`: everything from a fresh machine to a running memtrace.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result};

use crate::{build, command};

/// Sets up, builds, and becomes `memtrace ARGS`: signals and the exit status are its own.
///
/// # Errors
/// Where setting up or building fails, or memtrace cannot be executed.
pub fn run(arguments: &[OsString]) -> Result<()> {
    build::build()?;
    let binary = build::binary();
    command::step("memtrace");
    let error = Command::new(&binary).args(arguments).exec();
    Err(error).with_context(|| format!("cannot execute {}", binary.display()))
}
