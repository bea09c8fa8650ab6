//! Builds the BPF object that the daemon carries and passes its path on as
//! `MEMTRACE_BPF_OBJECT`. Where it cannot be built the build stops with one sentence:
//! there is no stub that would make a daemon without eyes.

#[path = "build/bpf_toolchain.rs"]
mod bpf_toolchain;
#[path = "build/compile.rs"]
mod compile;

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
};

use bpf_toolchain::{BpfToolchain, Compiler};

fn main() -> ExitCode {
    let toolchain = match prepare() {
        Ok(toolchain) => toolchain,
        Err(sentence) => {
            // Makes cargo print the sentence and stop. A failing exit status would have it
            // print everything that this script has printed as well.
            println!("cargo::error={sentence}");
            return ExitCode::SUCCESS;
        }
    };
    match build(&toolchain) {
        Ok(object) => {
            println!("cargo::rustc-env=MEMTRACE_BPF_OBJECT={}", object.display());
            ExitCode::SUCCESS
        }
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}

fn prepare() -> Result<BpfToolchain, String> {
    let architecture = variable("CARGO_CFG_TARGET_ARCH")?;
    if architecture != "x86_64" {
        return Err(format!("memtrace is for x86-64 only for now, not for {architecture}"));
    }
    BpfToolchain::detect()
        .map_err(|missing| format!("{missing}; `cargo xtask setup` as root brings it"))
}

fn build(toolchain: &BpfToolchain) -> Result<PathBuf, String> {
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let workspace = package.parent().unwrap_or(Path::new("/"));
    // Only what goes into the object: a change of the daemon does not rebuild it.
    for source in ["memtrace-ebpf", "memtrace-common", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    println!("cargo::rerun-if-changed={}", toolchain.linker.display());
    if let Compiler::Debian { rustc } = &toolchain.compiler {
        println!("cargo::rerun-if-changed={}", rustc.display());
    }
    let features: &[&str] =
        if env::var_os("CARGO_FEATURE_BPF_LOG").is_some() { &["bpf-log"] } else { &[] };
    compile::compile(toolchain, workspace, Path::new(&variable("OUT_DIR")?), features)
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| format!("cargo gave the build script no {name}: {error}"))
}
