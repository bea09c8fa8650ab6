//! `cargo xtask test`: all tests. Those that need root are `#[ignore]`d so that `cargo test`
//! needs no privilege; here they run, on the real kernel, one at a time, because each looks
//! at what the whole machine does.

use std::ffi::OsString;

use anyhow::{Result, ensure};

use crate::{build, command, setup};

/// Sets up, builds and runs all tests.
///
/// # Errors
/// Where it is not root, setting up or building fails, or a test fails.
pub fn test(filters: &[OsString]) -> Result<()> {
    ensure!(
        command::is_root()?,
        "the tests load BPF programs and need root: run `cargo xtask test` as root, or \
         `cargo test` for those that need no privilege"
    );
    setup::ensure(setup::Purpose::Test)?;
    build::release()?;

    command::step("tests that need no privilege");
    command::run(command::cargo().args(["test", "--no-fail-fast", "--"]).args(filters))?;

    command::step("tests on the real kernel");
    command::run(
        command::cargo()
            .args(["test", "--package", "memtrace-tests", "--tests", "--no-fail-fast", "--"])
            .args(["--ignored", "--test-threads=1"])
            .args(filters),
    )
}
