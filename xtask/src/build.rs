//! `cargo xtask build`: sets up what building needs and leaves `target/release/memtrace`.

use std::path::PathBuf;

use anyhow::Result;

use crate::{command, setup};

/// Sets up and builds.
///
/// # Errors
/// What could not be brought or compiled.
pub fn build() -> Result<()> {
    setup::ensure(setup::Purpose::Build)?;
    release()
}

/// Builds the release binary; what it needs is there.
///
/// # Errors
/// Where it does not compile.
pub fn release() -> Result<()> {
    command::step("release build");
    let package = ["--package", "memtrace-daemon", "--bin", "memtrace"];
    command::run(command::cargo().args(["build", "--release"]).args(package))
}

/// Where the release binary is.
pub fn binary() -> PathBuf {
    command::root().join("target/release/memtrace")
}
