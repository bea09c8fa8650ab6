//! The real CUDA runtimes 12 and 13, from PyPI, on a machine without a driver: every symbol of
//! the catalog is there and probed, and calls are failures that move no bytes.

use anyhow::{Context, Result};
use memtrace_daemon::catalog;
use memtrace_tests::dump::amount;
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{Run, Traced};
use memtrace_tests::paths;
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

fn every_symbol_resolves(major: u32) -> Result<()> {
    let traced = traced(major)?;
    let row = traced.dump.coverage_of(&paths::real_cudart(major)?)?;
    assert!(row.attached, "{row:?}");
    assert_eq!(row.library.as_deref(), Some("libcudart"));
    assert!(row.missing.is_empty(), "{row:?}");
    for symbol in catalog_symbols() {
        assert!(row.functions.iter().any(|one| one == symbol), "{symbol} is not in {row:?}");
    }
    Ok(())
}

fn calls_are_failures_only(major: u32) -> Result<()> {
    let traced = traced(major)?;
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
    calls_are_failures_only(12)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn calls_of_the_real_runtime_13_without_a_driver_are_failures_only() -> Result<()> {
    calls_are_failures_only(13)
}
