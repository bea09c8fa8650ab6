//! The real CUDA runtimes 12 and 13, from PyPI, on a machine without a driver, as libraries and
//! linked into a program: every symbol of the catalog is there and probed, and calls are failures
//! that move no bytes.

use anyhow::{Context, Result};
use memtrace_daemon::catalog;
use memtrace_tests::dump::{Coverage, amount};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{Run, Traced};
use memtrace_tests::paths;
use memtrace_tests::scratch::Scratch;
use serde_json::Value;

/// cudaErrorInsufficientDriver.
const NO_DRIVER: i64 = 35;

fn traced(major: u32) -> Result<Traced> {
    let library = paths::real_cudart(major)?;
    let program = fixture::build(Variant::Plain)?.real_cudart();
    let run = Run::new("cuda,managed,pinned,cuda_ipc,handles").option("--library").option(&library);
    let traced = run.trace(program, [library.as_os_str(), "10".as_ref()])?;
    traced.dump.check_conservation()?;
    Ok(traced)
}

/// The symbols that the catalog has of the runtime.
fn catalog_symbols() -> Vec<&'static str> {
    let functions = catalog::library_functions().iter();
    functions.filter(|one| one.library.name == "libcudart").map(|one| one.symbol).collect()
}

/// Checks that a file has every symbol of the runtime, and that each is probed.
fn has_every_symbol(row: &Coverage) {
    assert!(row.attached, "{row:?}");
    assert_eq!(row.library.as_deref(), Some("libcudart"));
    assert!(row.missing.is_empty(), "{row:?}");
    for symbol in catalog_symbols() {
        assert!(row.functions.iter().any(|one| one == symbol), "{symbol} is not in {row:?}");
    }
}

fn every_symbol_resolves(major: u32) -> Result<()> {
    let traced = traced(major)?;
    has_every_symbol(traced.dump.coverage_of(&paths::real_cudart(major)?)?);
    Ok(())
}

fn calls_are_failures_only(traced: &Traced) -> Result<()> {
    let line = traced.said.last_json()?;
    for (function, status) in
        line.get("status").and_then(Value::as_object).context("no statuses")?
    {
        assert_eq!(status.as_i64(), Some(NO_DRIVER), "{function}");
    }
    let process = traced.process()?;
    // Ten calls each of: three functions of device memory, one of managed, three of pinned.
    for (domain, failures, failed_frees) in
        [("cuda", 30, 20), ("managed", 10, 0), ("pinned", 30, 20)]
    {
        let terms = process.domain(domain);
        assert_eq!(terms.terms.seen, amount(0, 0), "{domain}");
        assert_eq!(terms.failures, failures, "{domain}");
        assert_eq!(terms.failed_frees, failed_frees, "{domain}");
        assert_eq!(terms.unknown_frees, 0, "{domain}");
        assert_eq!(process.at(domain, "site_real").failures, failures, "{domain}");
    }
    assert!(traced.dump.losses().is_empty(), "lost: {:?}", traced.dump.losses());
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn every_symbol_of_the_catalog_resolves_in_the_real_runtime_12() -> Result<()> {
    every_symbol_resolves(12)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn every_symbol_of_the_catalog_resolves_in_the_real_runtime_13() -> Result<()> {
    every_symbol_resolves(13)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn calls_of_the_real_runtime_12_without_a_driver_are_failures_only() -> Result<()> {
    calls_are_failures_only(&traced(12)?)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn calls_of_the_real_runtime_13_without_a_driver_are_failures_only() -> Result<()> {
    calls_are_failures_only(&traced(13)?)
}

/// A program with a real runtime in itself, whose symbols it has for itself.
fn linked(major: u32) -> Result<()> {
    const DOMAINS: &str = "cuda,managed,pinned,cuda_ipc,handles";
    let fixtures = fixture::build(Variant::Plain)?;
    let scratch = Scratch::new()?;
    let program = scratch.join("linked");
    fixtures.link_real_cudart(major, &program)?;
    // Named, it is probed from its first call on.
    let named = Run::new(DOMAINS).option("--library").option(&program).trace(&program, ["10"])?;
    has_every_symbol(named.dump.coverage_of(&program)?);
    calls_are_failures_only(&named)?;
    // By itself it is found as soon as it maps a driver: a stub, which this runtime refuses.
    scratch.copy(&fixtures.cuda())?;
    let run = Run::new(DOMAINS).switch("LD_LIBRARY_PATH", scratch.path().display());
    let found = run.trace(&program, ["300000"])?;
    let process = found.process()?;
    let mut layers = found.dump.coverage_of_process(process.pid)?.layers.clone();
    layers.sort_unstable();
    assert_eq!(layers, ["driver", "static"]);
    assert!(process.domain("pinned").failures > 0, "{:?}", process.domains);
    assert_eq!(process.domain("cuda").terms.seen, amount(0, 0));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_program_with_the_real_runtime_12_in_itself_is_probed_by_its_symbols() -> Result<()> {
    linked(12)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_program_with_the_real_runtime_13_in_itself_is_probed_by_its_symbols() -> Result<()> {
    linked(13)
}
