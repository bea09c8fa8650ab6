//! What is said about whose calls are seen: by which layer, since when, and why not.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::{Amount, Coverage, Dump, amount};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{self, LIMIT};
use memtrace_tests::nvml::Nvml;
use memtrace_tests::process::{self, Running};
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;
use serde_json::Value;

const LATE: Duration = Duration::from_secs(40);
const GIB: u64 = 1 << 30;

/// A program that waits for a line where its scenario does, and before its end.
fn held(program: &Path, scenario: &str) -> Result<Running> {
    Running::start_talking(Command::new(program).args([scenario, "--hold"]))
}

fn layers(row: &Coverage) -> Vec<&str> {
    row.layers.iter().map(String::as_str).collect()
}

/// The sum that one layer has seen of a domain.
fn seen(dump: &Dump, layer: &str, domain: &str) -> Amount {
    let rows = dump.layers.iter().filter(|row| row.layer == layer && row.domain == domain);
    rows.map(|row| row.terms.seen).sum()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_process_that_came_after_the_probes_is_covered_by_both_layers() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let daemon = Daemon::start_knowing(&fixtures)?;
    let mut client = held(&fixtures.client(), "kinds")?;
    let truth = Truth::parse(client.read_json()?)?;
    let pid = client.pid();
    daemon.dump_until("its coverage", LATE, |dump| {
        let row = dump.coverage_of_process(pid)?;
        ensure!(row.attached && row.attached_at.is_some() && row.reason.is_none(), "{row:?}");
        ensure!(row.by.as_deref() == Some("uprobe_multi"), "{row:?}");
        let mut layers = layers(row);
        layers.sort_unstable();
        ensure!(layers == ["driver", "runtime"], "{row:?}");
        // The runtime calls the driver: each call is the runtime's, and is there once. Others on
        // this host may call too.
        for domain in ["cuda", "managed", "pinned"] {
            let by_layer: Amount = dump
                .layers
                .iter()
                .filter(|row| row.domain == domain)
                .map(|row| row.terms.seen)
                .sum();
            let host = dump.domains.get(domain).context("no such domain")?.seen;
            ensure!(by_layer == host, "{domain}: {by_layer:?} by layer, {host:?} in all");
            let own = truth.domain(domain).seen;
            ensure!(host.bytes >= own.bytes, "{host:?}, truly {own:?}");
        }
        ensure!(seen(dump, "runtime", "cuda").count >= 2, "{:?}", dump.layers);
        Ok(())
    })?;
    let line = "memtrace_coverage{kind=\"process\",layer=\"runtime\",state=\"probed\"}";
    memtrace_tests::until("the metric", LATE, || {
        ensure!(daemon.metric(line)? >= 1.0);
        Ok(())
    })?;
    let status = daemon.call("status", &[])?.expect_status(0)?.stdout;
    let own = format!("{pid}  client");
    let line = status.lines().find(|line| line.contains(&own)).context("not in the table")?;
    assert!(line.contains("probed") && line.contains("runtime"), "{line}");
    // The doctor attaches nothing, and sees who could be.
    let said = process::run(&mut memtrace::command(["doctor", "--json"])?, LIMIT)?;
    let doctor: Value = serde_json::from_str(&said.stdout)?;
    let rows = doctor.get("coverage").and_then(Value::as_array).context("no coverage")?;
    let own = rows.iter().find(|row| row.get("pid") == Some(&Value::from(pid)));
    let own = own.with_context(|| format!("{pid} is not in {rows:?}"))?;
    assert_eq!(own.get("can_be_probed"), Some(&Value::from(true)), "{own}");
    assert_eq!(own.get("reason"), Some(&Value::Null), "{own}");
    client.go_on()?;
    client.finish(LIMIT)?.expect_status(0)?;
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn calls_before_the_probes_were_there_are_a_row_and_no_silence() -> Result<()> {
    let scratch = Scratch::new()?;
    let fixtures = fixture::build(Variant::Plain)?;
    scratch.copy(&fixtures.cuda())?;
    scratch.copy(&fixtures.cudart())?;
    let program = scratch.copy(&fixtures.client())?;
    // One that runs before the daemon does, and one that is the second to map its libraries.
    let mut before = held(&program, "kinds")?;
    before.read_json()?;
    let daemon = Daemon::start()?;
    let mut after = held(&program, "kinds")?;
    after.read_json()?;
    daemon.dump_until("their coverage", LATE, |dump| {
        let row = dump.coverage_of_process(before.pid())?;
        let reason = row.reason.as_deref().unwrap_or_default();
        ensure!(row.attached && reason.contains("are not on the books"), "{row:?}");
        ensure!(reason.contains("libcuda.so.1, libcudart.so.12"), "{row:?}");
        let row = dump.coverage_of_process(after.pid())?;
        ensure!(row.attached && row.reason.is_none(), "{row:?}");
        Ok(())
    })?;
    for client in [&mut before, &mut after] {
        client.go_on()?;
        client.finish(LIMIT)?.expect_status(0)?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn who_is_left_out_has_a_row_that_says_so() -> Result<()> {
    let scratch = Scratch::new()?;
    let fixtures = fixture::build(Variant::Plain)?;
    scratch.copy(&fixtures.cuda())?;
    let excluded = scratch.copy(&fixtures.cudart())?;
    let program = scratch.copy(&fixtures.client())?;
    let nameless = scratch.join("leave-me-alone");
    std::fs::copy(&program, &nameless)?;
    let sections = format!(
        "[exclude]\nlibrary_path = [\"{}\"]\ncomm = [\"leave-me-alone\"]\n",
        excluded.display()
    );
    let options = Options { configuration: Some(sections), ..Options::default() };
    let daemon = Daemon::start_with(&options)?;
    let (mut half, mut none) = (held(&program, "kinds")?, held(&nameless, "kinds")?);
    half.read_json()?;
    none.read_json()?;
    daemon.dump_until("their coverage", LATE, |dump| {
        let row = dump.coverage_of_process(half.pid())?;
        ensure!(row.attached && layers(row) == ["driver"], "{row:?}");
        let reason = row.reason.as_deref().unwrap_or_default();
        ensure!(reason.contains("libcudart.so.12: excluded by its path"), "{row:?}");
        let row = dump.coverage_of_process(none.pid())?;
        ensure!(!row.attached && row.attached_at.is_none(), "{row:?}");
        ensure!(row.reason.as_deref() == Some("left out by the configuration"), "{row:?}");
        Ok(())
    })?;
    Ok(())
}

/// A program with the runtime in itself: that is probed by the program's own symbols.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_runtime_within_an_executable_is_probed_by_its_symbols() -> Result<()> {
    let scratch = Scratch::new()?;
    let fixtures = fixture::build(Variant::Plain)?;
    scratch.copy(&fixtures.cuda())?;
    let program = scratch.copy(&fixtures.client_static())?;
    let daemon = Daemon::start()?;
    let mut first = held(&program, "mid-life")?;
    // It waits in the middle of its calls.
    daemon.dump_until("the coverage of the first", LATE, |dump| {
        let row = dump.coverage_of_process(first.pid())?;
        let mut layers = layers(row);
        layers.sort_unstable();
        ensure!(row.attached && layers == ["driver", "static"], "{row:?}");
        let file = dump.coverage_of(&program)?;
        ensure!(file.library.as_deref() == Some("libcudart"), "{file:?}");
        ensure!(file.functions.iter().any(|one| one == "cudaMalloc"), "{file:?}");
        Ok(())
    })?;
    first.go_on()?;
    let second = held(&program, "kinds")?;
    daemon.dump_until("their calls", LATE, |dump| {
        // 5 blocks of 500 bytes after the pause, each once and by the name of the runtime.
        let sites = dump.process(first.pid())?.sites("cuda");
        let late: Vec<_> = sites.filter(|site| site.passes("site_b")).collect();
        let [site] = late[..] else { anyhow::bail!("{late:?}") };
        ensure!((site.api.as_str(), site.allocations) == ("cudaMalloc", 5), "{site:?}");
        // The next process is covered from its first call on.
        let row = dump.coverage_of_process(second.pid())?;
        ensure!(row.attached && row.reason.is_none(), "{row:?}");
        let first_site = dump.process(second.pid())?.at("cuda", "site_a");
        ensure!(first_site.allocated == amount(1, 1_001), "{first_site:?}");
        Ok(())
    })?;
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_stripped_runtime_is_seen_by_the_drivers_library() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let daemon = Daemon::start_knowing(&fixtures)?;
    let mut client = held(&fixtures.client_stripped(), "kinds")?;
    let truth = Truth::parse(client.read_json()?)?;
    daemon.dump_until("its coverage", LATE, |dump| {
        let row = dump.coverage_of_process(client.pid())?;
        ensure!(row.attached && layers(row) == ["driver"], "{row:?}");
        let reason = row.reason.as_deref().unwrap_or_default();
        ensure!(reason.contains("by the driver's library alone"), "{row:?}");
        let process = dump.process(client.pid())?;
        let (seen, truly) = (process.domain("cuda").terms.seen, truth.domain("cuda").seen);
        ensure!(seen.count == truly.count, "{seen:?}, truly {truly:?}");
        ensure!(process.sites("cuda").all(|site| site.api.starts_with("cuMem")), "{process:?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_gpu_that_is_open_without_a_known_library_is_a_row() -> Result<()> {
    let daemon = Daemon::start()?;
    // A device of its own: in a mount namespace that ends with the process.
    let script = "mount -t tmpfs memtrace-test /dev && : > /dev/nvidia0 && \
        exec sleep 600 3< /dev/nvidia0";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    let program = Running::start(&mut command)?;
    daemon.dump_until("its coverage", LATE, |dump| {
        let row = dump.coverage_of_process(program.pid())?;
        ensure!(!row.attached && row.layers.is_empty(), "{row:?}");
        let reason = row.reason.as_deref().unwrap_or_default();
        ensure!(reason.contains("it has /dev/nvidia0 open and maps no library"), "{row:?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn b9_device_memory_without_a_call_is_said() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let device = format!("device {} 0 {}", 80 * GIB, 9 * GIB);
    let nvml = Nvml::new(&fixtures, std::slice::from_ref(&device))?;
    let daemon = Daemon::start_with(&nvml.seen_by(Options::default().knowing(&fixtures))?)?;
    let program = Running::start(Command::new("sleep").arg("600"))?;
    let mut client = held(&fixtures.client(), "kinds")?;
    client.read_json()?;
    let on = |pid: u32| format!("process 0 {pid} {GIB}");
    nvml.say(&[device, on(program.pid()), on(client.pid())])?;
    daemon.dump_until("its coverage", LATE, |dump| {
        let row = dump.coverage_of_process(program.pid())?;
        let reason = row.reason.as_deref().unwrap_or_default();
        ensure!(!row.attached, "{row:?}");
        let said = "no events from an allocating process: NVML counts 1.0 GiB";
        ensure!(reason.contains(said), "{row:?}");
        let row = dump.coverage_of_process(client.pid())?;
        ensure!(row.reason.is_none(), "one that calls is not silent: {row:?}");
        Ok(())
    })
}
