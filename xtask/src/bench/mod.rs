//! `cargo xtask bench`: what tracing costs the traced, side by side, and what the daemon costs.
//!
//! Each loop runs in short pinned runs of a child program, untraced, under empty programs, under
//! memtrace, and under the bpftrace equivalent, interleaved; the smallest time of each is
//! compared, since on a shared machine everything but the minimum measures the neighbours. A
//! ratio over its bar is a failure. The daemon's own numbers come from synthetic records: its
//! memory over a bar is a failure, its times stand beside their budgets. Nothing here runs in
//! `cargo xtask test`.
//!
//! Only a release build of memtrace is worth measuring: its daemon shares the loops' CPU on a
//! small machine, and a debug build's takes a good part of it.

mod calls;
mod kernel;
mod measure;
mod readings;
mod rounds;
mod tracer;
mod verdict;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use self::rounds::Plan;
use self::tracer::Programs;
use crate::{build, command, setup};

/// Options of `cargo xtask bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// What to measure; everything without it
    #[arg(value_enum)]
    what: Option<What>,
    /// How often each tracer is started
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// Timed runs of each loop for each start, a millisecond each
    #[arg(long, default_value_t = 20)]
    runs: u32,
    /// The CPU that the loops are pinned to; the last one without it
    #[arg(long)]
    cpu: Option<usize>,
    /// The binary to measure; without it, the one of this repository is built
    #[arg(long, value_name = "PATH")]
    memtrace: Option<PathBuf>,
    /// A CUDA runtime whose calls are timed, its driver beside it as libcuda.so.1; the stub of
    /// the tests without it
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
}

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Kernel allocations: epoll and pipe loops
    Kernel,
    /// Library calls: cudaMalloc and cudaFree
    Calls,
    /// Unwinding and naming stacks
    Stacks,
    /// Intake, ledger, snapshots and reports
    Engine,
    /// The daemon's memory and the kernel's maps
    Memory,
    /// Verdicts on a labelled corpus in virtual time, and what they cost
    Verdict,
}

/// Runs the benchmarks and prints their tables.
///
/// # Errors
///
/// When something cannot be built or started, when memtrace did not see what was run, and when
/// a ratio is over its bar.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    ensure!(args.rounds > 0 && args.runs > 0, "--rounds and --runs are at least 1");
    setup::ensure(setup::Purpose::Bench)?;
    let wanted = |what| args.what.is_none_or(|only| only == what);
    if args.what == Some(What::Verdict) {
        return verdict::run();
    }
    let programs = programs(args.memtrace.as_deref())?;
    let plan = Plan { rounds: args.rounds, runs: args.runs, cpu: cpu(args.cpu)? };
    let mut failures = Vec::new();
    if wanted(What::Kernel) {
        failures.extend(kernel::run(&programs, plan)?);
    }
    if wanted(What::Calls) {
        let library = args.library.clone().map_or_else(|| stub(&programs), Ok)?;
        failures.extend(calls::run(&programs, plan, &library)?);
    }
    if wanted(What::Stacks) {
        for program in [&programs.unwinding, &programs.naming] {
            println!();
            command::run(&mut Command::new(program))?;
        }
    }
    for (what, name) in [(What::Engine, "engine"), (What::Memory, "memory")] {
        if wanted(what) {
            println!();
            // It has said what is above its bar; the others are measured all the same.
            if let Err(error) = command::run(Command::new(&programs.engine).arg(name)) {
                failures.push(format!("{error:#}"));
            }
        }
    }
    if wanted(What::Verdict)
        && let Err(error) = verdict::run()
    {
        failures.push(format!("{error:#}"));
    }
    if !failures.is_empty() {
        bail!("{}", failures.join("; "));
    }
    Ok(())
}

/// Builds what is measured and what measures.
fn programs(memtrace: Option<&Path>) -> anyhow::Result<Programs> {
    if memtrace.is_none() {
        build::release()?;
    }
    let packages = ["--package", "memtrace-daemon", "--package", "memtrace-tests"];
    let examples = ["empty_probes", "engine_costs", "unwind_costs", "symbol_costs"];
    let examples = examples.into_iter().flat_map(|name| ["--example", name]);
    let mut build = command::cargo();
    build.args(["build", "--release"]).args(packages).args(["--bin", "bench_loops"]).args(examples);
    command::run(&mut build)?;
    let release = command::root().join("target/release");
    Ok(Programs {
        memtrace: memtrace.map_or_else(build::binary, Path::to_path_buf),
        loops: release.join("bench_loops"),
        empty: release.join("examples/empty_probes"),
        engine: release.join("examples/engine_costs"),
        unwinding: release.join("examples/unwind_costs"),
        naming: release.join("examples/symbol_costs"),
    })
}

/// The stub CUDA runtime of the tests.
fn stub(programs: &Programs) -> anyhow::Result<PathBuf> {
    let path = command::output(Command::new(&programs.loops).arg("stub"))?;
    Ok(PathBuf::from(path.trim()))
}

fn cpu(wanted: Option<usize>) -> anyhow::Result<usize> {
    let available = std::thread::available_parallelism().context("counting CPUs")?.get();
    // The last one: interrupts and the tracers' own threads prefer the first.
    Ok(wanted.unwrap_or(available - 1))
}
