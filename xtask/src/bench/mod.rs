//! `cargo xtask bench`: what tracing costs the traced, side by side.
//!
//! Each loop runs in short pinned runs of a child program, untraced, under empty programs, under
//! memtrace, and under the bpftrace equivalent, interleaved; the smallest time of each is
//! compared, since on a shared machine everything but the minimum measures the neighbours. A
//! ratio over its bar is a failure. Nothing here runs in `cargo xtask test`.

mod calls;
mod kernel;
mod measure;
mod readings;
mod rounds;
mod tracer;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use self::rounds::Plan;
use self::tracer::Programs;

/// Options of `cargo xtask bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// What to measure; both without it
    #[arg(value_enum)]
    what: Option<What>,
    /// How often each tracer is started
    #[arg(long, default_value_t = 14)]
    rounds: u32,
    /// Timed runs of each loop for each start
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// The CPU that the loops are pinned to; the last one without it
    #[arg(long)]
    cpu: Option<usize>,
    /// The binary to measure; built without it
    #[arg(long, value_name = "PATH")]
    memtrace: Option<PathBuf>,
    /// A CUDA runtime whose calls are timed, its driver beside it as libcuda.so.1
    #[arg(long, value_name = "PATH", default_value = "target/fixtures/plain/libcudart.so.12")]
    library: PathBuf,
}

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Kernel allocations: epoll and pipe loops
    Kernel,
    /// Library calls: cudaMalloc and cudaFree
    Calls,
}

/// Runs the benchmarks and prints their tables.
///
/// # Errors
///
/// When something cannot be built or started, when memtrace did not see what was run, and when
/// a ratio is over its bar.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    ensure!(args.rounds > 0 && args.runs > 0, "--rounds and --runs are at least 1");
    let programs = programs(args.memtrace.as_deref())?;
    let plan = Plan { rounds: args.rounds, runs: args.runs, cpu: cpu(args.cpu)? };
    let mut failures = Vec::new();
    if args.what != Some(What::Calls) {
        failures.extend(kernel::run(&programs, plan)?);
    }
    if args.what != Some(What::Kernel) {
        failures.extend(calls::run(&programs, plan, &args.library)?);
    }
    if !failures.is_empty() {
        bail!("{}", failures.join("; "));
    }
    Ok(())
}

/// Builds what is measured and what measures.
fn programs(memtrace: Option<&Path>) -> anyhow::Result<Programs> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has no parent")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(root).args(["build", "--release", "--package", "memtrace-daemon"]);
    build.args(["--package", "memtrace-tests", "--bin", "bench_loops"]);
    build.args(["--example", "empty_probes"]);
    if memtrace.is_none() {
        build.args(["--bin", "memtrace"]);
    }
    let status = build.status().context("starting cargo")?;
    ensure!(status.success(), "cargo could not build the benchmark's programs");
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), PathBuf::from)
        .join("release");
    Ok(Programs {
        memtrace: memtrace.map_or_else(|| target.join("memtrace"), Path::to_path_buf),
        loops: target.join("bench_loops"),
        empty: target.join("examples/empty_probes"),
    })
}

fn cpu(wanted: Option<usize>) -> anyhow::Result<usize> {
    let available = std::thread::available_parallelism().context("counting CPUs")?.get();
    // The last one: interrupts and the tracers' own threads prefer the first.
    Ok(wanted.unwrap_or(available - 1))
}
