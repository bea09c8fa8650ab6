//! Compiles `memtrace-ebpf` for the BPF target with an inner cargo.
//!
//! The inner build has a target directory of its own, so it does not wait for the outer
//! one's lock, and an environment of its own: nothing that the outer cargo, clippy or a
//! user's flags set for the host may reach the BPF compiler.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader},
    os::unix::{ffi::OsStrExt as _, fs::symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::bpf_toolchain::{BpfToolchain, Compiler};

const TARGET: &str = "bpfel-unknown-none";

/// Flags that have been seen to build, load and run (debug information becomes BTF).
/// `target-cpu=v3` is for fetch-and-add whose result is used.
const FLAGS: [&str; 6] = [
    "--cfg",
    "bpf_target_arch=\"x86_64\"",
    "-Ctarget-cpu=v3",
    "-Cdebuginfo=2",
    "-Cpanic=abort",
    "-Clink-arg=--btf",
];

/// What of the outer cargo's variables the inner one keeps: where things are and how to
/// reach the registry, and the jobserver, so that both together use no more CPUs.
const KEPT: [&str; 6] = [
    "CARGO_HOME",
    "CARGO_MAKEFLAGS",
    "CARGO_NET_",
    "CARGO_HTTP_",
    "CARGO_REGISTR",
    "CARGO_SOURCE_",
];

/// Builds the object and returns its path.
///
/// # Errors
/// One sentence; the compiler's own words have gone to standard error before it.
pub fn compile(
    toolchain: &BpfToolchain,
    workspace: &Path,
    out: &Path,
    features: &[&str],
) -> Result<PathBuf, String> {
    let mut flags: Vec<String> = FLAGS.iter().map(|flag| (*flag).to_owned()).collect();
    flags.push(format!("-Clinker={}", toolchain.linker.display()));

    let mut command = match &toolchain.compiler {
        Compiler::Debian { rustc } => {
            let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            clean(&mut command);
            // aya-ebpf uses unstable features; this lets a release compiler have them.
            command.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1").arg("build");
            command
        }
        Compiler::Nightly { rustup } => {
            let mut command = Command::new(rustup);
            clean(&mut command);
            command.args(["run", "nightly", "cargo", "build", "-Zbuild-std=core"]);
            command
        }
    };
    if let Some(llvm) = &toolchain.llvm {
        command.env("LD_LIBRARY_PATH", llvm_directory(llvm, out)?);
    }
    let target_directory = out.join("bpf");
    command
        .args(["--package", "memtrace-ebpf", "--release", "--target", TARGET, "--target-dir"])
        .arg(&target_directory)
        .args(["--features", &features.join(",")])
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        // Empty, not absent: a user's configuration file may name a wrapper.
        .env("RUSTC_WRAPPER", "")
        .env("RUSTC_WORKSPACE_WRAPPER", "")
        .current_dir(workspace);

    run(&mut command)?;
    Ok(target_directory.join(TARGET).join("release/memtrace-ebpf"))
}

fn clean(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let bytes = name.as_bytes();
        let outer = ["CARGO", "RUSTC", "RUSTDOC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN", "CLIPPY"];
        let starts = |prefix: &&str| bytes.starts_with(prefix.as_bytes());
        if outer.iter().any(starts) && !KEPT.iter().any(starts) {
            command.env_remove(&name);
        }
    }
}

/// A directory that holds this libLLVM and nothing else: bpf-linker opens the first file
/// named libLLVM in LD_LIBRARY_PATH, of whichever version it is.
fn llvm_directory(library: &Path, out: &Path) -> Result<PathBuf, String> {
    let directory = out.join("llvm");
    let name = library.file_name().unwrap_or(OsStr::new("libLLVM.so"));
    let linked = fs::remove_dir_all(&directory)
        .or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })
        .and_then(|()| fs::create_dir_all(&directory))
        .and_then(|()| symlink(library, directory.join(name)));
    match linked {
        Ok(()) => Ok(directory),
        Err(error) => Err(format!(
            "cannot put a link to {} into {}: {error}",
            library.display(),
            directory.display()
        )),
    }
}

/// Runs the inner cargo. Cargo hides what a build script that succeeds prints, so warnings
/// of the BPF programs are passed on as warnings of this crate.
fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_owned();
    let mut child =
        command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(|error| {
            format!("cannot run {} to build the BPF programs: {error}", program.display())
        })?;
    if let Some(stderr) = child.stderr.take() {
        let mut warning = None;
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            match (warning.take(), line.trim_start().strip_prefix("--> ")) {
                (Some(warning), Some(place)) => println!("cargo::warning={place}: {warning}"),
                _ => warning = line.strip_prefix("warning: ").map(str::to_owned),
            }
            eprintln!("{line}");
        }
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            Err(format!("the BPF programs did not compile ({status}); the errors are above"))
        }
        Err(error) => Err(format!("cannot wait for the build of the BPF programs: {error}")),
    }
}
