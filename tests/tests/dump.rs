//! The dump itself: its keys, its filters, its other formats, and odd bytes in it.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::Daemon;
use memtrace_tests::dump::Dump;
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::ipc::Left;
use memtrace_tests::memtrace::{self, LIMIT, Run};
use memtrace_tests::process::{self, Running};
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;
use serde_json::Value;

#[test]
#[ignore = "needs root: cargo xtask test"]
fn every_key_of_the_dump_is_there_and_unknown_is_null() -> Result<()> {
    let client = fixture::build(Variant::Plain)?.client();
    let traced = Run::new("cuda").trace(client, ["leak", "3", "1000"])?;
    let dump: Value = serde_json::from_str(&traced.json)?;
    let keys = |value: &Value, keys: &[&str]| -> Result<()> {
        for key in keys {
            ensure!(value.get(key).is_some(), "{key} is not in {value}");
        }
        Ok(())
    };
    let top = ["schema", "generated_at", "attached_at", "host", "domains", "coverage", "not_seen"];
    keys(&dump, &top)?;
    keys(&dump, &["loss", "processes", "findings"])?;
    keys(&dump["host"], &["name", "kernel", "arch"])?;
    let process = dump["processes"]
        .as_array()
        .and_then(|all| all.iter().find(|one| one["pid"] == traced.process().map_or(0, |p| p.pid)))
        .context("no process")?;
    keys(process, &["pid", "start_ns", "ppid", "comm", "cmdline", "cgroup", "ended", "ended_at"])?;
    keys(process, &["baseline", "domains", "sites"])?;
    let terms = ["seen", "live", "freed", "closed", "freed_unseen", "dropped", "failures"];
    keys(&process["domains"]["cuda"], &terms)?;
    keys(&process["domains"]["cuda"], &["failed_frees", "unknown_frees"])?;
    let site = &process["sites"][0];
    keys(site, &["id", "domain", "api", "context", "live_bytes", "live_count", "failures"])?;
    keys(site, &["allocated_bytes", "freed_bytes", "allocations", "frees", "verdict"])?;
    keys(site, &["growth_bytes_per_second", "oldest_age_seconds", "confidence", "evidence"])?;
    keys(site, &["sampling", "frames_sampled", "stack", "frames", "samples"])?;
    keys(&site["stack"], &["taken", "complete", "reason"])?;
    let frame = &site["frames"][0];
    keys(frame, &["kind", "symbol", "module", "build_id", "offset", "file", "line"])?;
    keys(frame, &["inlined", "allocator", "reason"])
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn bytes_that_are_not_utf8_are_escaped_and_not_dropped() -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let fixtures = fixture::build(Variant::Plain)?;
    let daemon = Daemon::start_knowing(&fixtures)?;
    let client = fixtures.client();
    let mut command = Command::new(client);
    command.arg0(std::ffi::OsStr::from_bytes(b"name-\xff-of-nobody"));
    let mut running = Running::start_talking(command.args(["kinds", "--hold"]))?;
    Truth::parse(running.read_json()?)?;
    daemon.dump_until("an odd command line", Duration::from_secs(20), |dump| {
        let cmdline = dump.process(running.pid())?.cmdline.clone().context("no command line")?;
        ensure!(cmdline.contains("name-") && cmdline.contains("-of-nobody"), "{cmdline}");
        ensure!(cmdline.contains("ff") || cmdline.contains("FF"), "the byte is lost: {cmdline}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_name_that_is_no_text_breaks_no_report() -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new()?;
    let odd = scratch.path().join(std::ffi::OsStr::from_bytes(b"a\n\x1b[31m\xff\t|b"));
    std::fs::copy(env!("CARGO_BIN_EXE_fixture-kernel"), &odd)?;
    let run = |format: &str| -> Result<String> {
        let mut command = memtrace::command(["run", "--domains", "kernel", "--format", format])?;
        let said = process::run(command.arg("--").arg(&odd).args(["keep", "16", "1000"]), LIMIT)?;
        let said = said.expect_status(0)?;
        let (line, report) = said.stdout.split_once('\n').context("no report")?;
        Left::parse(&serde_json::from_str(line)?)?.remove()?;
        Ok(report.to_owned())
    };
    let dump = Dump::parse(&run("json")?)?;
    let comm = &dump.processes.iter().find(|one| one.comm.starts_with('a')).context("lost")?.comm;
    ensure!(comm.contains("ff") || comm.contains("FF"), "the byte is lost: {comm:?}");
    for format in ["text", "folded"] {
        let report = run(format)?;
        ensure!(report.contains("load_msg"), "{report}");
        let odd = report.chars().find(|one| one.is_control() && *one != '\n');
        ensure!(odd.is_none(), "{odd:?} is in {report:?}");
        ensure!(report.lines().all(|line| !line.starts_with("[31m")), "{report:?}");
    }
    Ok(())
}

/// A daemon with a client on its books that holds memory at nine sites.
fn watched() -> Result<(Daemon, Running)> {
    let fixtures = fixture::build(Variant::Plain)?;
    let daemon = Daemon::start_knowing(&fixtures)?;
    let client = fixtures.client();
    let mut client = Running::start_talking(Command::new(client).args(["kinds", "--hold"]))?;
    let truth = Truth::parse(client.read_json()?)?;
    daemon.dump_until("the client", Duration::from_secs(20), |dump| {
        truth.check_running(dump.process(client.pid())?)?;
        ensure!(dump.process(client.pid())?.at("cuda", "site_a").rows == 1, "no name yet");
        Ok(())
    })?;
    Ok((daemon, client))
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_dump_can_be_of_one_process_one_domain_one_name_one_site() -> Result<()> {
    let (daemon, client) = watched()?;
    let dump = |filter: &[&str]| -> Result<Dump> {
        let arguments = [&["--format", "json"], filter].concat();
        Dump::parse(&daemon.call("dump", &arguments)?.expect_status(0)?.stdout)
    };
    let pid = client.pid().to_string();
    let one = dump(&["--pid", &pid])?;
    assert_eq!(one.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [client.pid()]);
    let named = dump(&["--comm", "client"])?;
    assert!(named.processes.iter().any(|p| p.pid == client.pid()));
    assert!(named.processes.iter().all(|p| p.comm == "client"), "others too");
    let pinned = dump(&["--pid", &pid, "--domain", "pinned"])?;
    let sites = &pinned.process(client.pid())?.sites;
    assert_eq!(sites.len(), 4, "{sites:#?}");
    assert!(sites.iter().all(|site| site.domain == "pinned"));
    let id = sites[0].id.clone().context("a site without id")?;
    let site = dump(&["--site", &id])?;
    let ids: Vec<_> = site.processes.iter().flat_map(|p| &p.sites).map(|s| &s.id).collect();
    assert!(!ids.is_empty() && ids.iter().all(|own| **own == Some(id.clone())), "{ids:?}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_text_and_the_folded_stacks_name_the_site() -> Result<()> {
    let (daemon, client) = watched()?;
    let pid = client.pid().to_string();
    let text = daemon.call("dump", &["--pid", &pid])?.expect_status(0)?.stdout;
    assert!(text.contains("site_a") && text.contains(&pid), "{text}");
    let folded = daemon.call("dump", &["--pid", &pid, "--format", "folded"])?.expect_status(0)?;
    let line = folded.stdout.lines().find(|line| line.contains("site_a"));
    let line = line.with_context(|| format!("no site_a in\n{}", folded.stdout))?;
    assert!(line.ends_with(" 1001"), "{line}");
    Ok(())
}

#[test]
fn the_suites_read_what_the_daemon_writes() -> Result<()> {
    use memtrace_daemon::snapshot::{HostInfo, Runtime, Snapshot, Terms};
    use memtrace_tests::dump::amount;
    let seen = memtrace_common::Amount { count: 3, bytes: 300 };
    let snapshot = Snapshot {
        schema: 1,
        generated_at: Default::default(),
        attached_at: Default::default(),
        stopped_at: None,
        host: HostInfo { name: "host".into(), kernel: "6.18".into(), arch: "x86_64".into() },
        domains: [("cuda", Terms { seen, live: seen, ..Terms::default() })].into(),
        coverage: Vec::new(),
        layers: Vec::new(),
        latency: Vec::new(),
        devices: Vec::new(),
        not_seen: Vec::new(),
        loss: [("ring_full", Default::default())].into(),
        processes: Vec::new(),
        findings: Vec::new(),
        runtime: Runtime::default(),
    };
    let dump = Dump::parse(&serde_json::to_string(&snapshot)?)?;
    assert_eq!(dump.domains["cuda"].seen, amount(3, 300));
    assert_eq!(dump.lost("ring_full")?, 0);
    dump.check_conservation()
}
