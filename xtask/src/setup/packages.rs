//! Debian packages: which a purpose needs, which are missing, bringing them with apt-get.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

use super::Purpose;
use crate::command::{is_root, on_path, output, run};

/// A package, and how to tell without dpkg that what it brings is there.
struct Package {
    name: &'static str,
    /// A program of it; `None` where it comes with the one before it on other systems.
    program: Option<&'static str>,
    purpose: Purpose,
    /// What it is for.
    why: &'static str,
}

const fn package(
    purpose: Purpose,
    name: &'static str,
    program: Option<&'static str>,
    why: &'static str,
) -> Package {
    Package { name, program, purpose, why }
}

const PACKAGES: [Package; 19] = [
    package(Purpose::Build, "gcc", Some("gcc"), "linking, and the programs that tests trace"),
    package(Purpose::Build, "libc6-dev", None, "the same"),
    package(Purpose::Test, "prometheus", Some("promtool"), "checking and scraping /metrics"),
    package(Purpose::Test, "bpftool", Some("bpftool"), "looking for what stayed attached"),
    package(Purpose::Test, "python3", Some("python3"), "a process to trace"),
    package(Purpose::Test, "python3-venv", None, "fetching the real libcudart"),
    package(Purpose::Test, "g++", Some("g++"), "programs in C++ to trace"),
    package(Purpose::Test, "systemtap-sdt-dev", Some("dtrace"), "static probes to trace"),
    package(Purpose::Test, "binutils", Some("addr2line"), "names to hold ours against"),
    package(Purpose::Test, "linux-perf", Some("perf"), "stacks to hold ours against"),
    package(Purpose::Test, "nodejs", Some("node"), "an interpreter to trace"),
    package(Purpose::Test, "systemd", Some("systemd-analyze"), "verifying the unit"),
    package(Purpose::Test, "util-linux", Some("setpriv"), "running with the unit's capabilities"),
    package(Purpose::Test, "golang-go", Some("go"), "building pprof, which reads profiles"),
    package(Purpose::Test, "golang-github-google-pprof-dev", None, "the same"),
    package(Purpose::Test, "chromium", Some("chromium"), "opening flame graphs"),
    package(Purpose::Test, "fonts-dejavu-core", None, "the same"),
    package(Purpose::Test, "tmux", Some("tmux"), "a terminal to look at and type into"),
    package(Purpose::Bench, "bpftrace", Some("bpftrace"), "what memtrace is measured beside"),
];

/// Brings the missing packages of a purpose, and `also` in any case.
///
/// # Errors
/// One sentence: what is missing and the command that brings it.
pub fn ensure(purpose: Purpose, also: &[&'static str]) -> Result<()> {
    let wanted = PACKAGES.iter().filter(|package| package.purpose <= purpose);
    if !on_path("apt-get") {
        return ensure_elsewhere(wanted, also);
    }
    let installed = installed()?;
    let lacking: Vec<&Package> =
        wanted.filter(|package| !installed.iter().any(|name| name == package.name)).collect();
    for package in &lacking {
        eprintln!("    {} is missing ({})", package.name, package.why);
    }
    for name in also {
        eprintln!("    {name} is needed (compiling the BPF programs)");
    }
    let names: Vec<&str> =
        lacking.iter().map(|package| package.name).chain(also.iter().copied()).collect();
    if names.is_empty() {
        return Ok(());
    }
    install(&names)
}

fn install(names: &[&str]) -> Result<()> {
    let by_hand = format!("apt-get install {}", names.join(" "));
    if !is_root()? {
        bail!("installing {} needs root: run `{by_hand}` as root", names.join(", "));
    }
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    run(apt().arg("update")).context("the lists of packages could not be fetched")?;
    // --no-remove: rustc-web conflicts with Debian's rustc, which somebody may want.
    run(apt().args(["install", "--yes", "--no-install-recommends", "--no-remove"]).args(names))
        .with_context(|| {
            format!("type `{by_hand}` to see why, or to let it remove what conflicts")
        })?;
    if names.contains(&"prometheus") {
        stop_prometheus();
    }
    Ok(())
}

/// Debian starts what it installs. The package is here for promtool, and for a server that
/// tests start themselves; nobody has asked for the service.
fn stop_prometheus() {
    if !Path::new("/run/systemd/system").exists() {
        return;
    }
    let stopped = run(Command::new("systemctl").args(["disable", "--now", "prometheus.service"]));
    if let Err(error) = stopped {
        eprintln!(
            "    the service prometheus, which came with its package, may be running: {error}"
        );
    }
}

/// Names of all installed packages.
fn installed() -> Result<Vec<String>> {
    let format = "--showformat=${db:Status-Status} ${Package}\n";
    let list = output(Command::new("dpkg-query").args(["--show", format]))?;
    Ok(list.lines().filter_map(|line| line.strip_prefix("installed ")).map(str::to_owned).collect())
}

/// Where there is no apt-get: nothing is installed, only said.
fn ensure_elsewhere<'a>(
    wanted: impl Iterator<Item = &'a Package>,
    also: &[&'static str],
) -> Result<()> {
    if !also.is_empty() {
        bail!(
            "without apt-get the BPF compiler must be rustup's: type `rustup toolchain install \
             nightly --component rust-src`"
        );
    }
    let missing: Vec<&str> =
        wanted.filter_map(|package| package.program).filter(|program| !on_path(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!("without apt-get these programs must be installed by hand: {}", missing.join(", "))
}
