//! `cargo xtask lint`: formatting, clippy, licences and dependencies; what CI checks beside
//! the tests.

use anyhow::Result;

use crate::{command, setup};

const CARGO_DENY_VERSION: &str = "0.20.2";

/// Runs all checks and stops at the first that fails.
///
/// # Errors
/// Where setting up or a check fails.
pub fn lint() -> Result<()> {
    setup::ensure(setup::Purpose::Build)?;

    command::step("formatting");
    command::run(command::cargo().args(["fmt", "--all", "--check"]))?;

    command::step("clippy");
    // memtrace-ebpf is not among the default members: clippy has no compiler for its target.
    let strict = ["--all-targets", "--", "--deny", "warnings"];
    command::run(command::cargo().arg("clippy").args(strict))?;

    command::step("licences, duplicate dependencies, their sources");
    if command::output(command::cargo().args(["deny", "--version"])).is_err() {
        let version = ["--version", CARGO_DENY_VERSION, "--locked"];
        command::run(command::cargo().args(["install", "cargo-deny"]).args(version))?;
    }
    // Advisories need the database of the day, so they are apart: see CONTRIBUTING.md.
    command::run(command::cargo().args(["deny", "check", "bans", "licenses", "sources"]))
}
