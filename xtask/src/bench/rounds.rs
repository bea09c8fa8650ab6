//! Rounds: in each, every tracer is started once, the loops are run under it, and it is ended;
//! the order turns from round to round so that none always comes first.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::measure::{Bar, Samples};
use super::readings;
use super::tracer::{self, Programs, Tracer};

/// How long memtrace may be late with a number.
const LATE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);

/// How much is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Starts of each tracer.
    pub rounds: u32,
    /// Runs of each loop a start.
    pub runs: u32,
    /// The CPU of the loops.
    pub cpu: usize,
}

/// One loop of `bench_loops`.
#[derive(Clone, Copy, Debug)]
pub struct Loop<'a> {
    /// Its name there.
    pub name: &'static str,
    /// Timed iterations of a run; a tenth more warm it up.
    pub iterations: u32,
    /// What it is told beside CPU and iterations.
    pub arguments: &'a [&'a str],
    /// Bytes that memtrace must see at least for each iteration.
    pub bytes: u32,
}

/// A benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Bench<'a> {
    /// A line above the table.
    pub title: &'a str,
    /// Side by side, in the order of the table.
    pub tracers: &'a [Tracer],
    /// The loops.
    pub loops: &'a [Loop<'a>],
    /// What the empty probes are attached to.
    pub empty: &'a [&'a str],
    /// The domain that memtrace books the loops in.
    pub domain: &'a str,
    /// What passes.
    pub bar: Bar,
}

/// Runs all rounds, prints the table, and gives what is over the bar.
///
/// # Errors
///
/// Where a tracer or a loop cannot be run, or where memtrace did not see the loops.
pub fn run(bench: &Bench<'_>, programs: &Programs, plan: Plan) -> anyhow::Result<Vec<String>> {
    let scratch = Scratch::new()?;
    let mut samples = Samples::default();
    for round in 0..plan.rounds {
        eprintln!("{}: round {} of {}", bench.title, round + 1, plan.rounds);
        let turn = round as usize % bench.tracers.len().max(1);
        let (later, first) = bench.tracers.split_at(turn);
        for tracer in first.iter().chain(later) {
            let running = tracer::start(*tracer, programs, bench.empty, &scratch.0)?;
            let socket = running.as_ref().and_then(|running| running.socket());
            let before = socket.map(readings::metrics).transpose()?.unwrap_or_default();
            for one in bench.loops {
                for time in times(programs, one, plan)? {
                    samples.add(one.name, *tracer, time, one.iterations);
                }
            }
            if let Some(socket) = socket {
                check_seen(bench, plan, socket, &before)?;
            }
        }
    }
    let (table, over) = samples.report(bench.tracers, bench.bar);
    println!("\n{}\n{table}", bench.title);
    Ok(over)
}

/// The runs of a loop, in nanoseconds each.
fn times(programs: &Programs, one: &Loop<'_>, plan: Plan) -> anyhow::Result<Vec<u64>> {
    let mut command = Command::new(&programs.loops);
    let numbers = [plan.cpu.to_string(), plan.runs.to_string(), one.iterations.to_string()];
    command.arg(one.name).args(numbers);
    let output = command.args(one.arguments).output().context("starting bench_loops")?;
    if !output.status.success() {
        bail!("loop {}: {}", one.name, String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8(output.stdout).context("bench_loops prints numbers")?;
    let times: Result<Vec<u64>, _> = text.lines().map(str::parse).collect();
    let times = times.with_context(|| format!("bench_loops printed {text:?}"))?;
    ensure!(times.len() == plan.runs as usize, "bench_loops printed {text:?}");
    Ok(times)
}

/// Waits until memtrace has booked what was run since `before`.
fn check_seen(bench: &Bench<'_>, plan: Plan, socket: &Path, before: &str) -> anyhow::Result<()> {
    let each = |one: &Loop<'_>| u64::from(one.iterations) * u64::from(one.bytes);
    let expected = bench.loops.iter().map(each).sum::<u64>() * u64::from(plan.runs);
    let seen_before = readings::bytes(before, bench.domain, "seen").unwrap_or(0.0);
    let lost = |metrics: &str, cause| readings::lost(metrics, cause).unwrap_or(0.0);
    let causes = ["ring_full", "stack_budget"];
    let start = Instant::now();
    loop {
        let now = readings::metrics(socket)?;
        let seen = readings::bytes(&now, bench.domain, "seen").unwrap_or(0.0) - seen_before;
        if seen >= expected as f64 {
            for cause in causes {
                let times = lost(&now, cause) - lost(before, cause);
                ensure!(
                    times == 0.0,
                    "memtrace lost to {cause} {times} times, which is cheaper than not to: the \
                     times mean nothing; take fewer --runs"
                );
            }
            return Ok(());
        }
        ensure!(
            start.elapsed() < LATE,
            "memtrace saw {seen} bytes of domain {} where {expected} were allocated: the times \
             mean nothing",
            bench.domain
        );
        sleep(POLL);
    }
}

/// A directory that goes with the run.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("memtrace-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left in the temporary directory hurts nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
