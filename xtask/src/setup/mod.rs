//! `cargo xtask setup`: brings what is missing on a Debian machine with rustup's stable
//! toolchain. Quick where nothing is missing: it looks, and asks no network.
//!
//! It must never replace or remove a package that somebody else wants.

mod cudart;
mod linker;
mod packages;
mod pprof;

use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use clap::ValueEnum;

use crate::{
    bpf_toolchain::{BpfToolchain, Compiler, DEBIAN_PACKAGES, Lack, Missing},
    command::step,
};

/// What shall be possible afterwards; each includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Purpose {
    /// Building memtrace
    Build,
    /// Building it and running all tests
    Test,
    /// All of this, and measuring it beside other tools
    Bench,
}

/// Brings what is missing for a purpose.
///
/// # Errors
/// One sentence with what could not be brought and what to type.
pub fn ensure(purpose: Purpose) -> Result<()> {
    let started = Instant::now();
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "memtrace is for Linux on x86-64 only for now"
    );
    let lacks = match BpfToolchain::detect() {
        Ok(_) => Vec::new(),
        Err(Missing(lacks)) => lacks,
    };

    step(format_args!("set-up for {}: packages", purpose.name()));
    packages::ensure(purpose, toolchain_packages(&lacks))?;
    if lacks.iter().any(|lack| matches!(lack, Lack::Linker { .. })) {
        linker::install()?;
    }
    let toolchain = BpfToolchain::detect().map_err(|missing| {
        anyhow!(
            "{missing}; set-up could not change that, type `rustup toolchain install nightly \
             --component rust-src` to build with nightly instead"
        )
    })?;
    let compiler = match &toolchain.compiler {
        Compiler::Debian { rustc } => format!("{} of Debian", rustc.display()),
        Compiler::Nightly { .. } => "rustup's nightly".to_owned(),
    };
    step(format_args!("BPF toolchain: {compiler} with {}", toolchain.linker.display()));

    if purpose >= Purpose::Test {
        cudart::ensure()?;
        pprof::ensure()?;
    }
    step(format_args!("set-up done in {:.1} s", started.elapsed().as_secs_f64()));
    Ok(())
}

impl Purpose {
    const fn name(self) -> &'static str {
        match self {
            Self::Build => "building",
            Self::Test => "tests",
            Self::Bench => "benchmarks",
        }
    }
}

/// Debian's packages that a lack calls for. A compiler of another LLVM may only be old, so
/// it is asked for again.
fn toolchain_packages(lacks: &[Lack]) -> &'static [&'static str] {
    let compiler = |lack: &Lack| matches!(lack, Lack::Packages(_) | Lack::Llvm { .. });
    if lacks.iter().any(compiler) { &DEBIAN_PACKAGES } else { &[] }
}

#[cfg(test)]
mod tests;
