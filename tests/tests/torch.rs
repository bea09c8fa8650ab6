//! PyTorch's pool from inside: a stub `libc10_cuda.so` with the static probes and the semaphores of
//! the real one, whose pool keeps true books over the stub cudaMalloc.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::{Amount, Dump, Process, amount};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{self, LIMIT, Run, Traced};
use memtrace_tests::process::Running;
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;
use serde::Deserialize;
use serde_json::Value;

const DOMAINS: &str = "cuda,torch";

/// What the stub says of its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct Pool {
    seen: Amount,
    freed: Amount,
    unknown_frees: u64,
    held_bytes: u64,
    enabled: u32,
}

fn pool(line: &Value) -> Result<Pool> {
    let pool = line.get("torch").with_context(|| format!("no torch in {line}"))?;
    Ok(serde_json::from_value(pool.clone())?)
}

fn less(all: Amount, part: Amount) -> Amount {
    amount(all.count - part.count, all.bytes - part.bytes)
}

/// Checks that the books of a process say what its pool says, and what the stub of the device does.
fn check(process: &Process, line: &Value) -> Result<Pool> {
    let truth = pool(line)?;
    let torch = process.domain("torch");
    let live = less(truth.seen, truth.freed);
    let held = if process.ended { torch.terms.closed } else { torch.terms.live };
    ensure!(torch.terms.seen == truth.seen, "seen {:?}, truly {truth:?}", torch.terms);
    ensure!(torch.terms.freed == truth.freed, "freed {:?}, truly {truth:?}", torch.terms);
    ensure!(held == live, "live {:?}, truly {live:?}", torch.terms);
    ensure!(torch.terms.freed_unseen == amount(0, 0), "{:?}", torch.terms);
    ensure!(torch.unknown_frees == truth.unknown_frees, "{torch:?}");
    ensure!((torch.failures, torch.failed_frees, torch.empty) == (0, 0, 0), "{torch:?}");
    ensure!(process.all("torch").live == live, "sites {:?}, truly {live:?}", process.all("torch"));
    let cuda = process.domain("cuda").terms;
    let held = if process.ended { cuda.closed } else { cuda.live };
    ensure!(held.bytes == truth.held_bytes, "the pool {cuda:?}, truly {truth:?}");
    Ok(truth)
}

fn traced(domains: &str, variant: Variant, arguments: &[&str]) -> Result<Traced> {
    let client = fixture::build(variant)?.torch_client();
    let traced = Run::new(domains).trace(client, arguments)?;
    traced.dump.check_conservation()?;
    let mut lost = traced.dump.losses();
    lost.remove("stack_budget");
    ensure!(lost.is_empty(), "{arguments:?} lost: {lost:?}");
    Ok(traced)
}

fn said_at(said: &str, moment: &str) -> Result<Value> {
    let mut lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .rfind(|line| line.get("at").and_then(Value::as_str) == Some(moment))
        .with_context(|| format!("nothing said at {moment}: {said}"))
}

/// The check of `cargo xtask test --gpu`, with a stand-in for PyTorch's module.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_script_that_asks_pytorch_agrees_with_the_stub() -> Result<()> {
    memtrace_tests::gpu::check_torch(Some(&fixture::build(Variant::Plain)?.torch()))
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn tensors_are_booked_to_the_byte_with_their_stacks() -> Result<()> {
    for variant in [Variant::Plain, Variant::Endbr] {
        let traced = traced(DOMAINS, variant, &["mixed"])?;
        let (line, process) = (traced.said.last_json()?, traced.process()?);
        let truth = check(process, &line).with_context(|| format!("{variant:?}"))?;
        assert_eq!(truth.enabled, 1, "the semaphore was up");
        let (weights, activations) =
            (process.at("torch", "make_weights"), process.at("torch", "make_activation"));
        assert_eq!(weights.live, amount(1, (10 << 20) + 3));
        assert_eq!(activations.live, amount(5, 5 * 777));
        assert_eq!(activations.allocated.count, 205);
        assert_eq!(activations.freed.count, 200);
        for site in process.sites("torch") {
            assert_eq!(site.api, "pytorch:malloc");
            assert!(site.is_in("torch_allocate") && site.passes("main"), "{site:#?}");
            let stack = site.stack.as_ref().context("no stack")?;
            assert!(stack.complete, "{stack:?}");
        }
        // What the pool could not get is a failure of the device's domain.
        assert_eq!(process.domain("cuda").failures, 1);
        traced.truth()?.check_ended(process)?;
        let pool = process.pool.context("no pool")?;
        let live = less(truth.seen, truth.freed);
        assert_eq!((pool.held_bytes, pool.whole), (truth.held_bytes, true));
        assert_eq!((pool.tensors, pool.tensor_bytes), (live.count, live.bytes));
        assert_eq!(pool.cached_bytes, truth.held_bytes - live.bytes);
        let row = traced.dump.coverage_of(&fixture::build(variant)?.torch())?;
        assert!(row.attached, "{row:?}");
        assert_eq!(row.library.as_deref(), Some("libc10_cuda"));
        assert_eq!(row.functions, ["pytorch:malloc", "pytorch:free"]);
        assert_eq!(row.missing, Vec::<String>::new());
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn tensors_are_a_view_of_their_own_and_off_unless_asked_for() -> Result<()> {
    let alone = traced("torch", Variant::Plain, &["mixed"])?;
    let line = alone.said.last_json()?;
    let truth = pool(&line)?;
    let process = alone.process()?;
    assert_eq!(process.domain("torch").terms.seen, truth.seen);
    assert!(!process.domains.contains_key("cuda"), "{:?}", process.domains);

    let without = traced("cuda", Variant::Plain, &["mixed"])?;
    let truth = pool(&without.said.last_json()?)?;
    assert_eq!(truth.enabled, 0, "nobody pays for what nobody asked for");
    let process = without.process()?;
    assert!(!process.domains.contains_key("torch"), "{:?}", process.domains);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_childs_tensors_are_its_own() -> Result<()> {
    let traced = traced(DOMAINS, Variant::Plain, &["forked"])?;
    let line = traced.said.last_json()?;
    check(traced.process()?, &line)?;
    let child = traced.dump.processes.iter().find(|one| one.pid != traced.process().unwrap().pid);
    let torch = child.context("the child is not on the books")?.domain("torch");
    assert_eq!((torch.terms.seen, torch.terms.closed), (amount(1, 4 << 10), amount(1, 4 << 10)));
    assert_eq!(torch.unknown_frees, 1, "what it inherited is not on its books");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_exec_closes_what_it_takes_away() -> Result<()> {
    let traced = traced(DOMAINS, Variant::Plain, &["replaced"])?;
    let (first, last) = (pool(&said_at(&traced.said.stdout, "before")?)?, traced.said.last_json()?);
    let last = pool(&last)?;
    let torch = traced.process()?.domain("torch");
    assert_eq!(torch.terms.seen, first.seen + last.seen);
    assert_eq!(torch.terms.freed, last.freed);
    assert_eq!(torch.terms.closed, less(first.seen + last.seen, last.freed));
    assert_eq!(torch.unknown_frees, last.unknown_frees);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_kill_closes_what_was_live() -> Result<()> {
    let scratch = Scratch::new()?;
    let report = scratch.join("report.json");
    let client = fixture::build(Variant::Plain)?.torch_client();
    let mut command = memtrace::command(["run", "--format", "json", "--domains", DOMAINS, "-o"])?;
    command.arg(&report).arg("--").arg(client).arg("killed");
    let said = memtrace_tests::process::run(&mut command, LIMIT)?.expect_status(128 + 9)?;
    let dump = Dump::parse(&std::fs::read_to_string(report)?)?;
    dump.check_conservation()?;
    let line = said_at(&said.stdout, "killed")?;
    let pid = Truth::parse(line.clone())?.pid;
    check(dump.process(pid)?, &line)?;
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn attached_in_mid_life_only_what_comes_after_is_booked() -> Result<()> {
    let client = fixture::build(Variant::Plain)?.torch_client();
    let mut command = Command::new(client);
    let mut running = Running::start_talking(command.args(["late", "--hold"]))?;
    let before = pool(&running.read_json()?)?;
    let scratch = Scratch::new()?;
    let report = scratch.join("report.json");
    let report = report.to_str().context("a path that is no text")?;
    let pid = running.pid();
    let options = ["--domains", DOMAINS, "--format", "json", "-o", report];
    let mut tracer = memtrace::attach(pid, options)?;
    running.go_on()?;
    let after = pool(&running.read_json()?)?;
    running.go_on()?;
    running.go_on()?;
    running.finish(LIMIT)?.expect_status(0)?;
    tracer.finish(LIMIT)?.expect_status(0)?;
    let dump = Dump::parse(&std::fs::read_to_string(report)?)?;
    dump.check_conservation()?;
    let torch = dump.process(pid)?.domain("torch");
    let mib = |count, mib: u64| amount(count, mib << 20);
    assert_eq!((torch.terms.seen, torch.terms.freed), (mib(2, 70), mib(1, 40)));
    assert_eq!((torch.terms.closed, torch.unknown_frees), (mib(1, 30), 1));
    assert_eq!((before.enabled, after.enabled), (0, 1));
    Ok(())
}

/// A window is a second, which is when the engine looks.
const VERDICT: &str = "window_seconds = 0.9\nmin_age_seconds = 6.0\nmin_bytes = 1024";
/// More than a counter's way from the kernel takes on a busy machine.
const LATE: Duration = Duration::from_secs(20);
/// Steps of 50 ms: longer than the longest verdict takes.
const STEPS: &str = "1600";

/// A scenario that runs under its own name.
fn start(scratch: &Scratch, name: &str) -> Result<Running> {
    let program = scratch.join(name);
    std::os::unix::fs::symlink(fixture::build(Variant::Plain)?.torch_client(), &program)?;
    Running::start_talking(Command::new(program).args([name, STEPS, "--hold"]))
}

/// What is said of a process.
fn said(dump: &Dump, pid: u32) -> Vec<(&str, &str, &str)> {
    let of = dump.findings.iter().filter(|finding| finding.processes == [pid]);
    of.map(|one| (&*one.level, &*one.domain, &*one.verdict)).collect()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn tensors_that_are_kept_a_pool_that_caches_and_a_fragmented_one_are_told_apart() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let names = ["leaked", "cached", "fragmented"];
    let libraries = [fixtures.torch(), fixtures.cudart(), fixtures.cuda()];
    let configuration = format!(
        "domains = [\"cuda\", \"torch\"]\nlibraries = {libraries:?}\n[include]\ncomm = {names:?}\n[stacks]\nallocators = [\"torch_allocate\", \"take\", \"grow\"]\n"
    );
    let environment = vec![("MEMTRACE_TUNE_VERDICT", VERDICT.to_owned())];
    let daemon = Daemon::start_with(&Options { configuration: Some(configuration), environment })?;
    let scratch = Scratch::new()?;
    let mut programs = names.map(|name| start(&scratch, name));
    let mut pids = Vec::new();
    let mut ends = Vec::new();
    for program in &mut programs {
        let program = program.as_mut().map_err(|error| anyhow::anyhow!("{error:#}"))?;
        ends.push(program.read_json()?);
        pids.push(program.pid());
    }
    let dump = daemon.dump_until("the three pools", LATE, |dump| {
        dump.check_conservation()?;
        for (pid, end) in pids.iter().zip(&ends) {
            check(dump.process(*pid)?, end)?;
        }
        Ok(())
    });
    dump?;
    let dump = daemon.dump()?;
    let pools: Vec<_> = pids
        .iter()
        .map(|pid| dump.process(*pid)?.pool.context("no pool"))
        .collect::<Result<_>>()?;
    for (pool, end) in pools.iter().zip(&ends) {
        let truth = self::pool(end)?;
        let live = less(truth.seen, truth.freed);
        assert_eq!((pool.held_bytes, pool.tensor_bytes), (truth.held_bytes, live.bytes));
        assert!(pool.whole);
    }

    // Tensors are kept: at their site, and nothing else is.
    let [leaked, cached, fragmented] = [pids[0], pids[1], pids[2]];
    let of_leaked = said(&dump, leaked);
    assert!(of_leaked.contains(&("site", "torch", "leak")), "{of_leaked:?}");
    let leak = dump.findings.iter().find(|one| one.processes == [leaked] && one.verdict == "leak");
    assert_eq!(leak.and_then(|one| one.function.as_deref()), Some("remember_output"));
    let others = ["fragmentation", "orphaned", "unreliable"];
    assert!(!of_leaked.iter().any(|(.., verdict)| others.contains(verdict)), "{of_leaked:?}");
    assert!(!of_leaked.contains(&("site", "cuda", "leak")), "{of_leaked:?}");

    // The pool keeps what one request needed: nothing grows, and a figure says how much.
    let of_cached = said(&dump, cached);
    let bad = ["leak", "growing", "fragmentation"];
    assert!(!of_cached.iter().any(|(.., verdict)| bad.contains(verdict)), "{of_cached:?}");
    assert!(pools[1].cached_bytes >= 150 << 20, "{:?}", pools[1]);
    assert!(pools[1].most_bytes >= 224 << 20, "{:?}", pools[1]);

    // The pool grows and its tensors do not.
    let of_fragmented = said(&dump, fragmented);
    assert!(of_fragmented.contains(&("process", "cuda", "fragmentation")), "{of_fragmented:?}");
    assert!(!of_fragmented.iter().any(|(.., verdict)| *verdict == "leak"), "{of_fragmented:?}");
    let fragmentation = dump.findings.iter().find(|one| one.verdict == "fragmentation");
    let words = fragmentation.context("no finding")?.decided_by.join("; ");
    assert!(words.contains("empty_cache") && words.contains("expandable_segments"), "{words}");
    let mut rows = dump.process(fragmented)?.sites("torch");
    assert!(rows.all(|site| site.verdict != "leak"), "{:#?}", dump.process(fragmented)?.sites);

    let text = daemon.call("dump", &[])?.expect_status(0)?.stdout;
    assert!(text.contains("pytorch") && text.contains("empty_cache"), "{text}");
    daemon.stop()?.expect_status(0)?;
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn on_demand_one_process_is_watched_for_a_while_and_no_other() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let names = ["leaked", "cached"];
    let libraries = [fixtures.torch(), fixtures.cudart(), fixtures.cuda()];
    let configuration = format!(
        "domains = [\"cuda\"]\nlibraries = {libraries:?}\n[include]\ncomm = {names:?}\n\
         [torch]\nwatch = \"12s\"\n"
    );
    let environment = vec![("MEMTRACE_TUNE_VERDICT", VERDICT.to_owned())];
    let daemon = Daemon::start_with(&Options { configuration: Some(configuration), environment })?;
    let path = fixtures.torch();
    let row = daemon.dump()?.coverage_of(&path)?.clone();
    assert!(!row.attached, "{row:?}");
    assert!(row.reason.context("no reason")?.contains("on demand"));

    let scratch = Scratch::new()?;
    let (mut leaked, mut cached) = (start(&scratch, "leaked")?, start(&scratch, "cached")?);
    let pids = [leaked.pid(), cached.pid()];
    daemon.dump_until("its tensors are looked at", LIMIT, |dump| {
        let row = dump.coverage_of(&path)?;
        ensure!(row.attached, "{row:?}");
        let reason = row.reason.as_deref().unwrap_or_default();
        ensure!(reason.contains(&format!("in pid {} alone", pids[0])), "{row:?}");
        let torch = dump.process(pids[0])?.domain("torch");
        ensure!(torch.terms.live.count > 10, "{torch:?}");
        ensure!(dump.process(pids[1])?.domain("torch").terms.seen == amount(0, 0));
        let pool = dump.process(pids[0])?.pool.context("no pool")?;
        ensure!(!pool.whole, "{pool:?}");
        Ok(())
    })?;
    daemon.dump_until("nobody looks any more", LIMIT, |dump| {
        dump.check_conservation()?;
        let row = dump.coverage_of(&path)?;
        ensure!(!row.attached, "{row:?}");
        let process = dump.process(pids[0])?;
        let terms = process.domain("torch").terms;
        ensure!(terms.live == amount(0, 0) && terms.freed_unseen.count > 10, "{terms:?}");
        ensure!(process.pool.is_none() && !process.ended, "{:?}", process.pool);
        Ok(())
    })?;
    for program in [&mut leaked, &mut cached] {
        let end = program.read_json()?;
        assert_eq!(pool(&end)?.enabled, 0, "the semaphore is down again");
    }
    daemon.stop()?.expect_status(0)?;
    Ok(())
}

/// The pool's client and its libraries in one directory that is seen through two overlay mounts,
/// in a mount namespace that ends with its process.
const OVERLAYS: &str = "set -e; cd \"$1\"; mount -t tmpfs memtrace-test tmp
    for m in a b; do
        mkdir tmp/$m-upper tmp/$m-work
        mount -t overlay memtrace-test $m \
            -o lowerdir=lower,upperdir=tmp/$m-upper,workdir=tmp/$m-work
    done
    exec \"$1/a/torch_client\" late --hold";

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_pool_under_two_overlay_mounts_is_not_counted_twice() -> Result<()> {
    let configuration = "domains = [\"cuda\", \"torch\"]\n[include]\ncomm = [\"torch_client\"]\n";
    let options = Options { configuration: Some(configuration.to_owned()), environment: vec![] };
    let daemon = Daemon::start_with(&options)?;
    let scratch = Scratch::new()?;
    for directory in ["lower", "tmp", "a", "b"] {
        std::fs::create_dir(scratch.join(directory))?;
    }
    let built = fixture::build(Variant::Plain)?;
    for file in [built.torch_client(), built.torch(), built.cudart(), built.cuda()] {
        let name = file.file_name().context("a file without a name")?;
        std::fs::copy(&file, scratch.join("lower").join(name))?;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", OVERLAYS, "sh"]);
    let mut first = Running::start_talking(command.arg(scratch.path()))?;
    first.read_json()?;
    let mut command = Command::new("nsenter");
    command.arg(format!("--mount=/proc/{}/ns/mnt", first.pid())).arg("--");
    command.arg(scratch.join("b/torch_client")).args(["late", "--hold"]);
    let mut second = Running::start_talking(&mut command)?;
    second.read_json()?;
    daemon.dump_until("both views", LATE, |dump| {
        let views = dump
            .coverage
            .iter()
            .filter(|row| row.attached && row.library.as_deref() == Some("libc10_cuda"));
        let views = views.count();
        ensure!(views == 2, "{views} views are attached: {:?}", dump.coverage);
        Ok(())
    })?;
    for client in [&mut first, &mut second] {
        client.go_on()?;
        client.read_json()?;
        daemon.dump_until("calls through overlays", LATE, |dump| {
            dump.check_conservation()?;
            let torch = dump.process(client.pid())?.domain("torch");
            let mib = |count, mib: u64| amount(count, mib << 20);
            // The first tensor may be made before the probes are there; its free is seen anyway.
            let (seen, freed, unknown) = match torch.unknown_frees {
                0 => (mib(3, 90), mib(2, 60), 0),
                _ => (mib(2, 70), mib(1, 40), 1),
            };
            ensure!((torch.terms.seen, torch.terms.freed) == (seen, freed), "{torch:?}");
            ensure!(torch.terms.freed_unseen == amount(0, 0), "{torch:?}");
            ensure!(torch.unknown_frees == unknown, "{torch:?}");
            Ok(())
        })?;
    }
    daemon.dump_until("one of two views", LATE, |dump| {
        let rows = dump.coverage.iter().filter(|row| row.library.as_deref() == Some("libc10_cuda"));
        let attached: Vec<bool> = rows.map(|row| row.attached).collect();
        let count = attached.iter().filter(|attached| **attached).count();
        ensure!(count == 1, "{attached:?}");
        Ok(())
    })?;
    Ok(())
}
