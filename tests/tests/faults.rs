//! Faults that other tracers were reported for, on real libraries: failed calls that are booked,
//! functions that must not be probed, and symbols that are not simply one function. What is not
//! probed is said, and the books are the stub's to the byte.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use memtrace_tests::daemon::Daemon;
use memtrace_tests::dump::{Coverage, amount};
use memtrace_tests::fixture::{self, Fixtures, Variant};
use memtrace_tests::memtrace::{self, LIMIT, Run, Traced};
use memtrace_tests::process::{self, Running};
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;

const LATE: Duration = Duration::from_secs(20);

/// Runs a scenario; nothing may be lost, and all bytes must be as the stub says.
fn traced(program: &Path, scenario: &str) -> Result<Traced> {
    let traced = Run::new("cuda").trace(program, [scenario])?;
    traced.dump.check_conservation()?;
    ensure!(traced.dump.losses().is_empty(), "lost: {:?}", traced.dump.losses());
    traced.truth()?.check_ended_but_names(traced.process()?)?;
    Ok(traced)
}

/// The same with this file for its runtime, and what is said about that file.
fn with_runtime(fixtures: &Fixtures, file: &Path, scenario: &str) -> Result<(Traced, Coverage)> {
    let scratch = Scratch::new()?;
    scratch.copy(&fixtures.cuda())?;
    let program = scratch.copy(&fixtures.directory().join("faults"))?;
    let runtime = scratch.join("libcudart.so.12");
    std::fs::copy(file, &runtime)?;
    let traced = traced(&program, scenario)?;
    let row = traced.dump.coverage_of(&runtime)?.clone();
    ensure!(row.attached && has(&row.functions, "cudaFree"), "{row:?}");
    Ok((traced, row))
}

fn has(functions: &[String], function: &str) -> bool {
    functions.iter().any(|one| one == function)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn b1_a_tebibyte_that_no_device_has_moves_no_byte() -> Result<()> {
    let traced = traced(&fixture::build(Variant::Plain)?.directory().join("faults"), "huge")?;
    let process = traced.process()?;
    traced.truth()?.check_ended(process)?;
    assert_eq!(process.domain("cuda").terms.seen, amount(0, 0));
    assert_eq!(process.domain("cuda").failures, 20, "no call counts twice");
    let site = process.at("cuda", "site_new");
    assert_eq!((site.live, site.failures), (amount(0, 0), 20));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn b19_what_the_go_linker_made_is_not_probed_and_ends_unharmed() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let program = fixtures.directory().join("faults-go");
    let daemon = Daemon::start_knowing(&fixtures)?;
    let mut running = Running::start_talking(Command::new(&program).arg("calls"))?;
    let truth = Truth::parse(running.read_json()?)?.domain("cuda");
    daemon.dump_until("its calls, by the driver", LATE, |dump| {
        dump.check_conservation()?;
        let row = dump.coverage_of_process(running.pid())?;
        // The runtime in it has symbols, and is left alone.
        ensure!(row.attached && row.layers == ["driver"] && row.reason.is_some(), "{row:?}");
        let probed = dump.coverage_of(&program).map(|row| row.attached).unwrap_or_default();
        ensure!(!probed, "{:?}", dump.coverage);
        let process = dump.process(running.pid())?;
        let terms = process.domain("cuda").terms;
        ensure!((terms.seen, terms.live) == (truth.seen, truth.live), "{terms:?}, truly {truth:?}");
        ensure!(process.sites("cuda").all(|site| site.api == "cuMemAlloc_v2"), "{process:?}");
        Ok(())
    })?;
    running.go_on()?;
    running.finish(LIMIT)?.expect_status(0)?;

    // Not even where a person asks for it.
    let mut run = memtrace::command(["run", "--domains", "cuda", "-o", "/dev/null", "--library"])?;
    let said = process::run(run.arg(&program).args(["--", "true"]), LIMIT)?.expect_status(125)?;
    let why = "it was made by the Go linker, whose functions must not be probed";
    assert!(said.one_line()?.contains(why), "{said:?}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn b21_a_resolver_is_not_probed_for_its_function_which_the_driver_sees() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let file = fixtures.directory().join("libcudart-resolved.so");
    let (traced, row) = with_runtime(&fixtures, &file, "calls")?;
    ensure!(!has(&row.functions, "cudaMalloc") && has(&row.missing, "cudaMalloc"), "{row:?}");
    let process = traced.process()?;
    let site = process.at("cuda", "site_new");
    assert_eq!((site.allocated, site.freed), (amount(5, 5_000), amount(2, 2_000)));
    ensure!(process.sites("cuda").all(|site| site.api == "cuMemAlloc_v2"), "{process:?}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn b21_two_versions_of_a_function_are_both_on_the_books_once() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let file = fixtures.directory().join("libcudart-versioned.so");
    let (traced, row) = with_runtime(&fixtures, &file, "versions")?;
    ensure!(has(&row.functions, "cudaMalloc") && !has(&row.missing, "cudaMalloc"), "{row:?}");
    let process = traced.process()?;
    let (new, old) = (process.at("cuda", "site_new"), process.at("cuda", "site_old"));
    assert_eq!((new.allocated, new.freed), (amount(5, 5_000), amount(2, 2_000)));
    assert_eq!((old.allocated, old.freed), (amount(3, 1_500), amount(1, 500)));
    // The default version is the one that is probed.
    let mut sites = process.sites("cuda").filter(|site| site.passes("site_new"));
    ensure!(sites.all(|site| site.api == "cudaMalloc"), "{process:?}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn b21_a_runtime_without_symbols_but_those_it_exports_is_exact() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let scratch = Scratch::new()?;
    let file = scratch.join("stripped");
    let mut strip = Command::new("strip");
    process::run(strip.arg("-o").arg(&file).arg(fixtures.cudart()), LIMIT)?.expect_status(0)?;
    let (traced, row) = with_runtime(&fixtures, &file, "calls")?;
    ensure!(has(&row.functions, "cudaMalloc"), "{row:?}");
    let process = traced.process()?;
    traced.truth()?.check_ended(process)?;
    assert_eq!(process.at("cuda", "site_new").allocated, amount(5, 5_000));
    Ok(())
}
