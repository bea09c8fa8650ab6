//! Where things are: the workspace, the release binary, what set-up brought.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The root of the workspace.
#[must_use]
pub fn workspace() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

/// The directory that cargo builds into.
#[must_use]
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// The binary under test: the release build, or what `MEMTRACE_BINARY` names.
///
/// # Errors
///
/// When it has not been built.
pub fn memtrace() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("MEMTRACE_BINARY").map(PathBuf::from);
    let path = named.unwrap_or_else(|| target().join("release/memtrace"));
    if !path.exists() {
        bail!("{} is not there: run `cargo xtask build`", path.display());
    }
    Ok(path)
}

/// The real CUDA runtime of this major version, from PyPI.
///
/// # Errors
///
/// When set-up has not brought it.
pub fn real_cudart(major: u32) -> anyhow::Result<PathBuf> {
    let venv = target().join("venv");
    let name = format!("libcudart.so.{major}");
    find(&venv, &name)
        .with_context(|| format!("no {name} under {}: run `cargo xtask setup`", venv.display()))
}

/// The same runtime as nvcc links it into a program, `libcudart_static.a`.
///
/// # Errors
///
/// When set-up has not brought it.
pub fn real_cudart_static(major: u32) -> anyhow::Result<PathBuf> {
    let path = real_cudart(major)?.with_file_name("libcudart_static.a");
    if !path.exists() {
        bail!("{} is not there: run `cargo xtask setup`", path.display());
    }
    Ok(path)
}

/// pprof, the reader of its own format.
///
/// # Errors
///
/// When set-up has not built it.
pub fn pprof() -> anyhow::Result<PathBuf> {
    let path = target().join("pprof/pprof");
    if !path.exists() {
        bail!("{} is not there: run `cargo xtask setup`", path.display());
    }
    Ok(path)
}

fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).ok()?;
    for entry in entries.flatten() {
        let path = entry.path();
        if path.file_name().is_some_and(|own| own == name) {
            return Some(path);
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Some(found) = find(&path, name)
        {
            return Some(found);
        }
    }
    None
}
