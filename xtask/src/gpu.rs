//! `cargo xtask test --gpu`: the books beside those of a program that calls the real driver.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::{
    build,
    command::{self, run_for_output, step},
    setup,
};

/// Where a loaded driver says which it is.
const DRIVER: &str = "/proc/driver/nvidia/version";

/// Runs the tests on the real driver.
///
/// # Errors
/// Where it is not root, there is no driver, or a test fails: what was not looked at has not passed.
pub fn test() -> Result<()> {
    ensure!(
        command::is_root()?,
        "these tests attach probes and need root: run `cargo xtask test --gpu` as root"
    );
    ensure!(
        Path::new(DRIVER).exists(),
        "NOT TESTED: no NVIDIA driver is loaded here ({DRIVER} is not there), so nothing is known \
         of how the books agree with it; run this on a machine with a GPU"
    );
    setup::ensure(setup::Purpose::Test)?;
    build::release()?;
    step("the real driver");
    run_for_output(
        command::cargo()
            .args(["test", "-p", "memtrace-tests", "--features", "gpu", "--test", "gpu"])
            .args(["--", "--ignored", "--test-threads=1"]),
    )
}
