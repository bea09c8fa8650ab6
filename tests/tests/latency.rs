//! How long calls take: a histogram a function, whose buckets add up to the calls that there were.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::http::get_tcp;
use memtrace_tests::memtrace::LIMIT;
use memtrace_tests::process::{self, Running};
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;

const LATE: Duration = Duration::from_secs(40);

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_buckets_of_a_function_add_up_to_its_calls() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let scratch = Scratch::new()?;
    // One name that nobody else has: others on this host call too.
    let name = format!("mt-lat-{}", std::process::id());
    let program = scratch.join(&name);
    std::fs::copy(fixtures.client(), &program)?;
    scratch.copy(&fixtures.cuda())?;
    scratch.copy(&fixtures.cudart())?;
    let own = fixture::Fixtures::at(scratch.path());
    let sections = format!("[include]\ncomm = [\"{name}\"]\n");
    let options = Options { configuration: Some(sections), ..Options::default() };
    let daemon = Daemon::start_with(&options.knowing(&own))?;
    let mut client = Command::new(&program);
    let mut client = Running::start_talking(client.args(["mixed", "2", "2000", "7", "--hold"]))?;
    let truth = Truth::parse(client.read_json()?)?;
    let calls = |function: &str| -> u64 {
        let truly = truth.books.functions.get(function);
        truly.map_or(0, |truly| truly.seen.count + truly.failures + truly.frees)
    };
    daemon.dump_until("the calls", LATE, |dump| {
        for function in ["cudaMalloc", "cudaMallocManaged", "cudaHostAlloc", "cudaFree"] {
            let row = dump.latency.iter().find(|row| row.function == function);
            let row = row.with_context(|| format!("no {function} in {:?}", dump.latency))?;
            let sum: u64 = row.buckets.iter().map(|(_, calls)| calls).sum();
            ensure!(sum == row.calls, "{row:?}");
            ensure!(sum == calls(function) && sum > 0, "{row:?}, truly {}", calls(function));
            ensure!(row.sum_seconds > 0.0 && row.p50_seconds <= row.p99_seconds, "{row:?}");
        }
        // What the runtime calls inside is the driver's too: at least as many.
        let inner = dump.latency.iter().find(|row| row.function == "cuMemAlloc_v2");
        let inner = inner.context("no cuMemAlloc_v2")?;
        ensure!(inner.calls >= calls("cudaMalloc") + calls("cuMemAlloc_v2"), "{inner:?}");
        Ok(())
    })?;
    let body = get_tcp(daemon.address(), "/metrics", &[])?.body;
    let value = |line: &str| -> Result<u64> {
        let found = body.lines().find(|one| one.starts_with(line));
        let found = found.with_context(|| format!("no {line} in\n{body}"))?;
        Ok(found.rsplit(' ').next().unwrap_or_default().parse()?)
    };
    let start = "memtrace_call_duration_seconds";
    let all = value(&format!("{start}_count{{function=\"cudaMalloc\"}}"))?;
    assert_eq!(all, calls("cudaMalloc"));
    let last = body.lines().find(|line| {
        line.starts_with(&format!("{start}_bucket"))
            && line.contains("cudaMalloc\"")
            && line.contains("le=\"+Inf\"")
    });
    let last = last.context("no last bucket")?;
    assert_eq!(last.rsplit(' ').next(), Some(all.to_string().as_str()), "{last}");
    let mut promtool = Command::new("promtool");
    let said = process::run_with_input(promtool.args(["check", "metrics"]), &body, LIMIT)?;
    assert!(said.status == 0 && said.stderr.is_empty(), "{said:?}");
    Ok(())
}
