//! `cargo xtask test --torch`: the static probes of PyTorch's own library, as its official wheel has
//! it. Not a part of all tests: the wheel has half a gigabyte.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    build,
    command::{self, output, run, run_for_output, step, target},
    setup,
};

/// The wheel, and what of it is looked at.
const PACKAGE: &str = "torch==2.11.0";
const LIBRARIES: [&str; 2] = ["torch/lib/libc10_cuda.so", "torch/lib/libc10.so"];
/// Takes single files out of a wheel: the whole would be gigabytes.
const EXTRACT: &str = "import sys, zipfile\n\
                       wheel = zipfile.ZipFile(sys.argv[1])\n\
                       for name in sys.argv[3:]: wheel.extract(name, sys.argv[2])";

/// Downloads the wheel where that was not done before, and runs the tests on it.
///
/// # Errors
/// Where it is not root, the wheel cannot be had, or a test fails: what was not looked at has not
/// passed.
pub fn test() -> Result<()> {
    ensure!(
        command::is_root()?,
        "these tests attach probes and need root: run `cargo xtask test --torch` as root"
    );
    setup::ensure(setup::Purpose::Test)?;
    build::release()?;
    let directory = target().join("torch-wheel");
    if !LIBRARIES.iter().all(|library| directory.join(library).exists()) {
        download(&directory).context(
            "NOT TESTED: PyTorch's wheel cannot be had, so nothing is known of its static probes; \
             try again with a network",
        )?;
    }
    step("PyTorch's own static probes");
    run_for_output(
        command::cargo()
            .args(["test", "-p", "memtrace-tests", "--features", "torch", "--test", "torch_real"])
            .args(["--", "--ignored", "--test-threads=1"]),
    )
}

fn download(directory: &Path) -> Result<()> {
    step("PyTorch's wheel, from PyPI (530 MB)");
    let environment = target().join("venv/bin");
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    let mut pip = Command::new(environment.join("pip"));
    pip.args(["download", "--no-deps", "--only-binary=:all:", "--dest"]).arg(directory);
    run(pip.arg(PACKAGE))?;
    let wheel = wheel(directory)?;
    let mut python = Command::new(environment.join("python3"));
    output(python.args(["-c", EXTRACT]).arg(&wheel).arg(directory).args(LIBRARIES))?;
    fs::remove_file(&wheel).with_context(|| format!("removing {}", wheel.display()))
}

fn wheel(directory: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut paths = files.flatten().map(|entry| entry.path());
    let wheel = paths.find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.with_context(|| format!("pip has left no wheel in {}", directory.display()))
}
