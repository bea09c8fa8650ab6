//! NVIDIA's real libcudart 12 and 13, from PyPI, for the tests that the catalog's symbols
//! resolve and that failing calls book nothing. Left under `target/cudart`.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::command::{root, run, step};

/// A library: the name that tests use, its package, and where that keeps it.
const LIBRARIES: [(&str, &str, &str); 2] = [
    ("libcudart.so.12", "nvidia-cuda-runtime-cu12==12.9.79", "nvidia/cuda_runtime/lib"),
    ("libcudart.so.13", "nvidia-cuda-runtime==13.5.37", "nvidia/cu13/lib"),
];

/// Brings both libraries where one is missing.
///
/// # Errors
/// One sentence with what failed.
pub fn ensure() -> Result<()> {
    let directory = root().join("target/cudart");
    let there = |name: &str| directory.join(name).exists();
    if LIBRARIES.iter().all(|(name, ..)| there(name)) {
        return Ok(());
    }
    step("NVIDIA's libcudart 12 and 13, from PyPI");
    let environment = directory.join("venv");
    // Debian's own python: python3-venv belongs to it, and not to another one on PATH.
    let python = "/usr/bin/python3";
    run(Command::new(python).args(["-m", "venv"]).arg(&environment))?;
    let packages = LIBRARIES.map(|(_, package, _)| package);
    run(Command::new(environment.join("bin/pip")).arg("install").args(packages))?;

    let site = site_packages(&environment)?;
    for (name, package, place) in LIBRARIES {
        let library = site.join(place).join(name);
        ensure!(library.exists(), "{package} came without {}", library.display());
        let link = directory.join(name);
        if !link.exists() {
            symlink(&library, &link)
                .with_context(|| format!("cannot make the link {}", link.display()))?;
        }
    }
    Ok(())
}

/// `lib/python3.*/site-packages` of an environment.
fn site_packages(environment: &Path) -> Result<PathBuf> {
    let library = environment.join("lib");
    let versions = fs::read_dir(&library)
        .with_context(|| format!("cannot list {}", library.display()))?
        .flatten()
        .map(|entry| entry.path().join("site-packages"));
    versions
        .into_iter()
        .find(|path| path.is_dir())
        .with_context(|| format!("no site-packages below {}", library.display()))
}
