//! A CUDA runtime that is part of a library, as nvcc links it into extension modules and plugins:
//! found by the library's own symbols, and booked by the names of its functions. What only passes
//! calls on to a runtime makes no allocation two.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::Daemon;
use memtrace_tests::dump::{Coverage, Dump};
use memtrace_tests::fixture::{self, Fixtures, Variant};
use memtrace_tests::memtrace::Run;
use memtrace_tests::process::Running;
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;

const LATE: Duration = Duration::from_secs(40);

/// Fresh copies of the stubs and of one library, which nobody has mapped yet.
fn unseen(library: impl Fn(&Fixtures) -> PathBuf) -> Result<(Scratch, PathBuf)> {
    let (scratch, built) = (Scratch::new()?, fixture::build(Variant::Plain)?);
    scratch.copy(&built.cuda())?;
    scratch.copy(&built.cudart())?;
    let library = scratch.copy(&library(&built))?;
    Ok((scratch, library))
}

/// Runs the client in a library, which waits for a line where its scenario does and before its end.
fn held(library: &Path, scenario: &str, preload: Option<&Path>) -> Result<Running> {
    let mut command = Command::new(fixture::build(Variant::Plain)?.plugin_host());
    command.arg(library).args([scenario, "--hold"]);
    command.envs(preload.map(|preload| ("LD_PRELOAD", preload)));
    Running::start_talking(&mut command)
}

fn sorted_layers(row: &Coverage) -> Vec<&str> {
    let mut layers: Vec<&str> = row.layers.iter().map(String::as_str).collect();
    layers.sort_unstable();
    layers
}

fn check_found(dump: &Dump, library: &Path, pid: u32, layers: &[&str]) -> Result<()> {
    let row = dump.coverage_of_process(pid)?;
    ensure!(row.attached && sorted_layers(row) == layers, "{row:?}");
    let file = dump.coverage_of(library)?;
    ensure!(file.attached && file.layers == ["static"], "{file:?}");
    ensure!(file.library.as_deref() == Some("libcudart"), "{file:?}");
    ensure!(file.functions.iter().any(|one| one == "cudaMalloc"), "{file:?}");
    Ok(())
}

/// Checks that a library is found by the first process that runs the client in it, and that the
/// books of those that come after are exact in all functions.
fn is_found_and_exact(library: &Path, preload: Option<&Path>, layers: &[&str]) -> Result<()> {
    let daemon = Daemon::start()?;
    let mut first = held(library, "mid-life", preload)?;
    // It waits in the middle of its calls.
    daemon.dump_until("the coverage of the first", LATE, |dump| {
        check_found(dump, library, first.pid(), layers)
    })?;
    first.go_on()?;
    daemon.dump_until("the late calls of the first", LATE, |dump| {
        let sites = dump.process(first.pid())?.sites("cuda");
        let late: Vec<_> = sites.filter(|site| site.passes("site_b")).collect();
        let [site] = late.as_slice() else { anyhow::bail!("{late:?}") };
        ensure!((site.api.as_str(), site.allocations) == ("cudaMalloc", 5), "{site:?}");
        Ok(())
    })?;
    // What fails in the runtime never comes to the driver.
    for scenario in ["kinds", "kinds-freed", "failing", "failing-free", "extra-inner"] {
        let mut client = held(library, scenario, preload)?;
        let truth = Truth::parse(client.read_json()?)?;
        daemon.dump_until(scenario, LATE, |dump| {
            dump.check_conservation()?;
            truth.check_running(dump.process(client.pid())?)?;
            let row = dump.coverage_of_process(client.pid())?;
            ensure!(sorted_layers(row) == layers && row.reason.is_none(), "{row:?}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_runtime_within_a_library_that_brings_the_driver_is_found_and_exact() -> Result<()> {
    let (_scratch, plugin) = unseen(Fixtures::plugin)?;
    is_found_and_exact(&plugin, None, &["driver", "static"])
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_runtime_within_a_library_that_is_opened_behind_the_driver_is_found_and_exact() -> Result<()> {
    let (scratch, plugin) = unseen(Fixtures::plugin)?;
    let driver = scratch.join("libcuda.so.1");
    is_found_and_exact(&plugin, Some(&driver), &["driver", "static"])
}

/// Checks that a library is not probed, and that the books of who calls the runtime through it are
/// exact.
fn is_no_second_runtime(library: &Path, client: &mut Command) -> Result<()> {
    let daemon = Daemon::start_knowing(&fixture::build(Variant::Plain)?)?;
    let mut client = Running::start_talking(client)?;
    let truth = Truth::parse(client.read_json()?)?;
    let check = |dump: &Dump| {
        truth.check_running(dump.process(client.pid())?)?;
        let row = dump.coverage_of_process(client.pid())?;
        ensure!(sorted_layers(row) == ["driver", "runtime"], "{row:?}");
        ensure!(dump.coverage_of(library).is_err(), "{:?}", dump.coverage);
        Ok(())
    };
    daemon.dump_until("its books", LATE, check)?;
    // By now it was looked through.
    std::thread::sleep(Duration::from_secs(3));
    check(&daemon.dump()?)
}

/// What has one or two functions of these names in itself is no runtime: nobody knows what they do.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_library_whose_own_functions_pass_calls_on_is_no_second_runtime() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let mut client = Command::new(fixtures.plugin_host());
    client.arg(fixtures.wrapper()).args(["kinds-freed", "--hold"]);
    is_no_second_runtime(&fixtures.wrapper(), &mut client)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_preloaded_library_that_exports_functions_of_the_runtime_is_no_second_one() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let mut client = Command::new(fixtures.client());
    client.args(["kinds-freed", "--hold"]).env("LD_PRELOAD", fixtures.preloaded());
    is_no_second_runtime(&fixtures.preloaded(), &mut client)
}

/// A library with a real runtime in itself, which refuses the stub of the driver.
fn real(major: u32) -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let scratch = Scratch::new()?;
    scratch.copy(&fixtures.cuda())?;
    let library = scratch.join("libreal.so");
    fixtures.link_real_plugin(major, &library)?;
    let run = Run::new("cuda,managed,pinned,cuda_ipc,handles")
        .switch("LD_LIBRARY_PATH", scratch.path().display());
    let traced = run.trace(fixtures.plugin_host(), [library.as_os_str(), "300000".as_ref()])?;
    let process = traced.process()?;
    check_found(&traced.dump, &library, process.pid, &["driver", "static"])?;
    let missing = &traced.dump.coverage_of(&library)?.missing;
    ensure!(missing.is_empty(), "{missing:?}");
    ensure!(process.domain("pinned").failures > 0, "{:?}", process.domains);
    traced.dump.check_conservation().context("the report")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_real_runtime_12_within_a_library_is_probed_by_its_symbols() -> Result<()> {
    real(12)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_real_runtime_13_within_a_library_is_probed_by_its_symbols() -> Result<()> {
    real(13)
}
