//! The cost of the call path: a pair of cudaMalloc and cudaFree, over the same functions with
//! probes that do nothing.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};

use super::measure::Bar;
use super::rounds::{self, Bench, Loop, Plan};
use super::tracer::{Programs, Tracer};

/// memtrace over empty probes, where the stack of each call is walked in the kernel.
const WALKED: f64 = 1.4;
/// The same, where it is copied.
const COPIED: f64 = 1.8;
const COPYING: &str = "Library calls, each stack copied: a cudaMalloc/cudaFree pair below 16 \
     callers without unwind information, memtrace daemon beside empty probes";
const WALKING: &str = "Library calls at a hot site: the same below 16 callers that are known, \
     whose stack is walked in the kernel";
/// Pairs a run, a millisecond: the records of ten times as many fit into the ring buffer, which
/// is emptied every 20 ms.
const PAIRS: u32 = 200;
/// Runs at a stretch whose stacks are copied: of more than that the daemon unwinds some too late.
const COPIED_RUNS: u32 = 10;
/// What `bench_loops cuda` allocates.
const BYTES: u32 = 4_096;

/// Runs it on a CUDA runtime; its driver lies beside it.
///
/// # Errors
///
/// As [`rounds::run`], and where the libraries are not there.
pub fn run(programs: &Programs, plan: Plan, runtime: &Path) -> anyhow::Result<Vec<String>> {
    let runtime = runtime
        .canonicalize()
        .with_context(|| format!("the CUDA runtime {} is not there", runtime.display()))?;
    let driver = runtime.with_file_name("libcuda.so.1");
    ensure!(driver.exists(), "{} is not there", driver.display());
    let runtime = runtime.to_str().context("the path of the library is not UTF-8")?;
    let driver = driver.to_str().context("the path of the library is not UTF-8")?;
    // A process that has the libraries mapped when a tracer starts, so that they are probed
    // from the first call on.
    let _held = Held::new(&programs.loops, runtime)?;
    let mut over = Vec::new();
    for (title, name, ratio, runs) in [
        (COPYING, "cuda-copied", COPIED, plan.runs.min(COPIED_RUNS)),
        (WALKING, "cuda", WALKED, plan.runs),
    ] {
        let bench = Bench {
            title,
            tracers: &[Tracer::Untraced, Tracer::Empty, Tracer::Memtrace],
            loops: &[Loop { name, iterations: PAIRS, arguments: &[runtime], bytes: BYTES }],
            empty: &["libraries", runtime, driver],
            domain: "cuda",
            bar: Bar { base: Tracer::Empty, ratio },
        };
        over.extend(rounds::run(&bench, programs, Plan { runs, ..plan })?);
    }
    Ok(over)
}

/// A child that keeps the library mapped.
struct Held(Child);

impl Held {
    fn new(loops: &Path, library: &str) -> anyhow::Result<Self> {
        let mut command = Command::new(loops);
        command.args(["hold", library]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut held = Self(command.spawn().context("starting bench_loops")?);
        let output = held.0.stdout.as_mut().context("standard output is piped")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(line == "ready\n", "bench_loops could not open {library}");
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It has ended, or never began.
        let _ = self.0.wait();
    }
}
