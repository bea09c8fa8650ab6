//! `cargo xtask bench`: what tracing costs, traced and untraced side by side. Never a test:
//! a number that is printed, not one that fails a build.

use anyhow::{Result, bail};
use clap::Subcommand;

/// What is measured.
#[derive(Subcommand)]
pub enum Benchmark {
    /// Kernel allocation loops, untraced, with empty programs, with memtrace, with bpftrace
    Kernel,
    /// One cudaMalloc/cudaFree pair, over the same functions with empty probes
    Calls,
    /// Intake and ledger, records a second
    Engine,
    /// Memory of the daemon and of its maps
    Memory,
}

/// Runs one benchmark.
///
/// # Errors
/// Where it cannot be run.
pub fn bench(benchmark: &Benchmark) -> Result<()> {
    let name = match benchmark {
        Benchmark::Kernel => "kernel",
        Benchmark::Calls => "calls",
        Benchmark::Engine => "engine",
        Benchmark::Memory => "memory",
    };
    bail!("the benchmark `{name}` is not there yet")
}
