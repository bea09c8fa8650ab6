//! NVIDIA's real libcudart 12 and 13, from PyPI, for the tests that the catalog's symbols
//! resolve and that failing calls book nothing. Left in the environment `target/venv`.

use std::{fs, path::Path, process::Command};

use anyhow::{Result, ensure};

use crate::command::{run, step, target};

/// A library below `site-packages`, and the package that brings it.
const LIBRARIES: [(&str, &str); 2] = [
    ("nvidia/cuda_runtime/lib/libcudart.so.12", "nvidia-cuda-runtime-cu12==12.9.79"),
    ("nvidia/cu13/lib/libcudart.so.13", "nvidia-cuda-runtime==13.5.37"),
];

/// Brings both libraries where one is missing.
///
/// # Errors
/// Which step failed, or which library its package does not hold.
pub fn ensure() -> Result<()> {
    let environment = target().join("venv");
    if LIBRARIES.iter().all(|(library, _)| is_in(&environment, library)) {
        return Ok(());
    }
    step("NVIDIA's libcudart 12 and 13, from PyPI");
    // Debian's own python: python3-venv belongs to it, and not to another one on PATH.
    let python = "/usr/bin/python3";
    run(Command::new(python).args(["-m", "venv"]).arg(&environment))?;
    let packages = LIBRARIES.map(|(_, package)| package);
    run(Command::new(environment.join("bin/pip")).arg("install").args(packages))?;
    for (library, package) in LIBRARIES {
        ensure!(is_in(&environment, library), "{package} came without {library}");
    }
    Ok(())
}

/// Whether a file is below `lib/python3.*/site-packages` of an environment.
fn is_in(environment: &Path, file: &str) -> bool {
    let versions = fs::read_dir(environment.join("lib")).into_iter().flatten().flatten();
    versions
        .map(|version| version.path().join("site-packages").join(file))
        .any(|path| path.exists())
}
