//! `cargo xtask test --gpu`: the books beside those of a program that calls the real driver.

use std::{path::Path, process::Command};

use anyhow::{Result, ensure};

use crate::{
    build,
    command::{self, output, run_for_output, step},
    setup,
};

/// Where a loaded driver says which it is.
const DRIVER: &str = "/proc/driver/nvidia/version";

/// Fails where there is no PyTorch that could use the GPU.
const TORCH: &str = "import torch; assert torch.cuda.is_available()";

/// Runs the tests on the real driver, and on PyTorch where it is there.
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
    let mut tests = command::cargo();
    tests.args(["test", "-p", "memtrace-tests", "--features", "gpu", "--test", "gpu"]);
    tests.args(["--", "--ignored", "--test-threads=1"]);
    let has_torch = output(Command::new("python3").args(["-c", TORCH])).is_ok();
    if !has_torch {
        tests.args(["--skip", "pytorch"]);
    }
    run_for_output(&mut tests)?;
    if !has_torch {
        println!("NOT TESTED: PyTorch, for python3 has none that finds a GPU");
    }
    Ok(())
}
