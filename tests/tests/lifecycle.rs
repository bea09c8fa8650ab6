//! Books over the life of a process: exit, exec, fork, vfork, a leader that ends early, attach
//! in mid-life; and that memtrace itself leaves nothing behind.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::bpf::Objects;
use memtrace_tests::daemon::Daemon;
use memtrace_tests::dump::{Dump, Process, amount};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::ipc::Left;
use memtrace_tests::memtrace::{self, LIMIT, Run, Traced};
use memtrace_tests::process::{self, Running};
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;
use serde_json::Value;

/// Records arrive within a second or two; a busy machine gets more time.
const LATE: Duration = Duration::from_secs(20);

fn traced(arguments: &[&str]) -> Result<Traced> {
    let client = fixture::build(Variant::Plain)?.client();
    let traced = Run::new("cuda,managed,pinned").trace(client, arguments)?;
    traced.dump.check_conservation()?;
    assert!(traced.dump.losses().is_empty(), "lost: {:?}", traced.dump.losses());
    Ok(traced)
}

fn held(arguments: &[&str]) -> Result<Running> {
    let client = fixture::build(Variant::Plain)?.client();
    Running::start_talking(Command::new(client).args(arguments).arg("--hold"))
}

/// What a child says of itself on the books, if it is on them at all.
fn child_of(traced: &Traced) -> Result<Option<&Process>> {
    let child = traced.truth()?.child.context("a scenario without a child")?;
    Ok(traced.dump.process(child).ok())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_end_of_a_process_closes_its_books_and_shows_what_it_held() -> Result<()> {
    let traced = traced(&["kinds"])?;
    let process = traced.process()?;
    traced.truth()?.check_ended(process)?;
    assert!(process.ended_at.is_some());
    for domain in memtrace_tests::truth::DOMAINS {
        assert_eq!(traced.dump.domains[domain], process.domain(domain).terms, "host: {domain}");
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_exec_closes_the_books_of_the_old_program() -> Result<()> {
    let traced = traced(&["exec"])?;
    let process = traced.process()?;
    let terms = process.domain("cuda").terms;
    assert_eq!(terms.seen, amount(8, 11_000));
    assert_eq!(terms.closed, amount(8, 11_000), "5 at the exec, 3 at the end");
    assert_eq!(terms.freed, amount(0, 0));
    assert_eq!(process.all("cuda").live, amount(3, 6_000), "held at the end");
    assert_eq!(process.at("cuda", "site_a").allocated, amount(5, 5_000));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_forked_child_frees_nothing_of_its_parents() -> Result<()> {
    let traced = traced(&["fork"])?;
    traced.truth()?.check_ended(traced.process()?)?;
    assert_eq!(traced.process()?.at("cuda", "site_a").live, amount(10, 10_000));

    let child = child_of(&traced)?.context("the child is not on the books")?;
    let terms = child.domain("cuda");
    assert_eq!(terms.unknown_frees, 10, "inherited pointers are not on the child's books");
    assert_eq!(terms.terms.seen, amount(2, 1_000));
    assert_eq!(terms.terms.closed, amount(2, 1_000));
    assert_eq!(terms.terms.freed, amount(0, 0));
    assert!(child.ended);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_a_vfork_child_takes_is_its_parents() -> Result<()> {
    let traced = traced(&["vfork"])?;
    traced.truth()?.check_ended(traced.process()?)?;
    assert_eq!(traced.process()?.at("cuda", "site_b").live, amount(3, 1_500));
    if let Some(child) = child_of(&traced)? {
        assert_eq!(child.domain("cuda").terms.seen, amount(0, 0));
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_vfork_child_that_executes_closes_nothing_of_its_parents() -> Result<()> {
    let traced = traced(&["vfork-exec"])?;
    traced.truth()?.check_ended(traced.process()?)?;
    assert_eq!(traced.process()?.domain("cuda").terms.closed, amount(5, 4_500));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_leader_that_ends_early_is_no_end_of_its_process() -> Result<()> {
    let daemon = Daemon::start_knowing(&fixture::build(Variant::Plain)?)?;
    let mut client = held(&["leader"])?;
    let pid = client.pid();
    for expected in [8, 6] {
        let truth = Truth::parse(client.read_json()?)?;
        assert_eq!(truth.domain("cuda").live, amount(expected, expected * 1_000));
        daemon.dump_until("books without a leader", LATE, |dump| {
            dump.check_conservation()?;
            truth.check_running(dump.process(pid)?)
        })?;
        client.go_on()?;
    }
    client.finish(LIMIT)?.expect_status(0)?;
    daemon.dump_until("the end of the last thread", LATE, |dump| {
        dump.check_conservation()?;
        let process = dump.process(pid)?;
        ensure!(process.ended, "not ended yet");
        ensure!(process.domain("cuda").terms.closed == amount(6, 6_000), "{:?}", process.domains);
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_process_killed_in_the_middle_is_closed() -> Result<()> {
    let daemon = Daemon::start_knowing(&fixture::build(Variant::Plain)?)?;
    let mut client = held(&["kinds"])?;
    let truth = Truth::parse(client.read_json()?)?;
    let pid = client.pid();
    daemon.dump_until("a running process", LATE, |dump| truth.check_running(dump.process(pid)?))?;
    drop(client);
    daemon.dump_until("a killed process", LATE, |dump| {
        dump.check_conservation()?;
        truth.check_ended(dump.process(pid)?)
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn books_begin_at_attach_and_older_pointers_are_unknown_frees() -> Result<()> {
    let mut client = held(&["mid-life"])?;
    client.read_json()?;
    let daemon = Daemon::start()?;
    client.go_on()?;
    client.read_json()?;
    let pid = client.pid();
    daemon.dump_until("books from mid-life on", LATE, |dump| {
        dump.check_conservation()?;
        let terms = dump.process(pid)?.domain("cuda");
        ensure!(terms.unknown_frees == 10, "{terms:?}");
        ensure!(terms.terms.seen == amount(5, 2_500), "{terms:?}");
        ensure!(terms.terms.live == amount(5, 2_500), "live is never negative: {terms:?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn attach_follows_a_running_process_to_its_end() -> Result<()> {
    let scratch = Scratch::new()?;
    let report = scratch.join("report.json");
    let mut client = held(&["mid-life"])?;
    client.read_json()?;
    let pid = client.pid();
    let to = report.display().to_string();
    let domains = ["--domains", "cuda,managed,pinned", "--format", "json", "-o", &to];
    let mut tracer = memtrace::attach(pid, domains)?;
    client.go_on()?;
    client.read_json()?;
    client.go_on()?;
    client.finish(LIMIT)?.expect_status(0)?;
    tracer.finish(LIMIT)?.expect_status(0)?;

    let dump = Dump::parse(&std::fs::read_to_string(&report)?)?;
    dump.check_conservation()?;
    let process = dump.process(pid)?;
    let terms = process.domain("cuda");
    assert!(process.ended);
    assert_eq!(terms.unknown_frees, 10);
    assert_eq!(terms.terms.closed, amount(5, 2_500));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn attach_reports_after_its_duration_and_lets_the_process_run() -> Result<()> {
    let mut client = held(&["leak", "10", "1000"])?;
    client.read_json()?;
    let arguments = ["attach", "--format", "json", "--duration", "1s", "--pid"];
    let mut command = memtrace::command(arguments)?;
    command.arg(client.pid().to_string());
    let said = memtrace_tests::process::run(&mut command, LIMIT)?.expect_status(0)?;
    let dump = Dump::parse(&said.stdout)?;
    assert!(!dump.process(client.pid())?.ended);
    assert_eq!(client.ended()?, None);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn attach_follows_children_and_grandchildren_that_are_there_and_that_come() -> Result<()> {
    let scratch = Scratch::new()?;
    let report = scratch.join("report.json");
    // A shell with a child that has a child, each of which waits for its line; then one more.
    let script = "exec 3<&0; (sh -c 'echo $$; read go; \"$0\" keep 20 1000' \"$0\" <&3) & \
                  echo $$; wait; \"$0\" keep 10 1000";
    let mut command = Command::new("sh");
    let fixture = env!("CARGO_BIN_EXE_fixture-kernel");
    let mut family = Running::start_talking(command.args(["-c", script, fixture]))?;
    let pids = [family.read_line()?, family.read_line()?];
    let to = report.display().to_string();
    let domains = ["--domains", "kernel", "--format", "json", "-o", &to];
    let mut tracer = memtrace::attach(family.pid(), domains)?;
    family.go_on()?;
    let said = family.finish(LIMIT)?.expect_status(0)?;
    tracer.finish(LIMIT)?.expect_status(0)?;
    let lines: Vec<Value> =
        said.stdout.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let left: Vec<Left> = lines.iter().map(Left::parse).collect::<Result<_>>()?;
    ensure!(left.len() == 2, "{said:?}");

    let dump = Dump::parse(&std::fs::read_to_string(&report)?)?;
    dump.check_conservation()?;
    for (line, sent) in lines.iter().zip([20, 10]) {
        let pid = line["pid"].as_u64().context("no pid")?.try_into()?;
        let books = dump.process(pid)?.called_in("kernel", "load_msg");
        assert_eq!(books.live, amount(sent, sent * 2_048), "{line}");
    }
    for pid in pids {
        assert!(dump.process(pid.trim().parse()?)?.ended);
    }
    let own = std::process::id();
    assert!(dump.processes.iter().all(|one| one.pid != own), "the suite itself is followed");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn thousands_of_short_processes_stay_on_the_books_and_within_bounds() -> Result<()> {
    const PROCESSES: u64 = 5_000;
    /// What 5,000 more would take at the least if they were all remembered is three times this.
    const TOLERANCE_KIB: u64 = 16 << 10;
    let daemon = Daemon::start()?;
    let mut held = Vec::new();
    for round in 1..=3 {
        let script = "i=0; while [ $i -lt $0 ]; do /bin/true; i=$((i+1)); done";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(PROCESSES.to_string());
        process::run(&mut command, LIMIT)?.expect_status(0)?;
        daemon.dump_until("the books of ended processes", LATE, |dump| {
            dump.check_conservation()?;
            // One more line for all whose books were folded together.
            let short = dump.processes.iter().filter(|one| one.comm == "true").count();
            ensure!(short <= 1_001, "{short} processes that have ended are still told apart");
            ensure!(dump.lost("unknown_process")? == 0 && dump.lost("account_map_full")? == 0);
            let terms = dump.domains["kernel"];
            ensure!(terms.dropped == amount(0, 0), "{terms:?}");
            ensure!(terms.seen.count > round * PROCESSES, "{terms:?}");
            Ok(())
        })?;
        held.push(anonymous_kib(daemon.pid())?);
    }
    let (second, third) = (held[1], held[2]);
    assert!(third <= second + TOLERANCE_KIB, "anonymous memory grows with processes: {held:?} KiB");
    Ok(())
}

/// Anonymous memory of a process.
fn anonymous_kib(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().next()).context("no RssAnon")?;
    number.parse().with_context(|| format!("RssAnon: {number}"))
}

/// 20, or what the soak asks for.
fn cycles() -> Result<u32> {
    match std::env::var("MEMTRACE_SOAK_CYCLES") {
        Ok(text) => text.parse().context("MEMTRACE_SOAK_CYCLES is not a number"),
        Err(_) => Ok(20),
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn attach_and_detach_again_and_again_leave_nothing_in_the_kernel() -> Result<()> {
    let before = Objects::now()?;
    let client = fixture::build(Variant::Plain)?.client();
    for _ in 0..cycles()? {
        Run::new("kernel,cuda,managed,pinned").trace(&client, ["leak", "2", "1000"])?;
    }
    Objects::wait_until_only(&before)
}

/// A31: with the 20 cycles above, each of which loads everything anew, 200.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn stopping_and_going_on_again_and_again_leave_nothing_in_the_kernel() -> Result<()> {
    const CYCLES: u32 = 180;
    let before = Objects::now()?;
    let daemon = Daemon::start_knowing(&fixture::build(Variant::Plain)?)?;
    let loaded = |objects: &Objects| (objects.programs.len(), objects.maps.len());
    let attached = Objects::now()?.since(&before);
    ensure!(!attached.links.is_empty(), "no links to programs that begin with mt_");
    let wait_for = |links: usize| {
        memtrace_tests::until("the links", LATE, || {
            let now = Objects::now()?.since(&before);
            ensure!(now.links.len() == links, "{links} links expected: {now:?}");
            ensure!(loaded(&now) == loaded(&attached), "{attached:?} at first, now {now:?}");
            Ok(())
        })
    };
    for _ in 0..CYCLES {
        daemon.call("stop", &[])?.expect_status(0)?;
        wait_for(0)?;
        daemon.call("resume", &[])?.expect_status(0)?;
        wait_for(attached.links.len())?;
    }
    daemon.stop()?.expect_status(0)?;
    Objects::wait_until_only(&before)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_daemon_has_its_objects_named_and_leaves_none() -> Result<()> {
    let before = Objects::now()?;
    let daemon = Daemon::start()?;
    let client = held(&["kinds"])?;
    let now = memtrace_tests::until("links", LATE, || {
        let now = Objects::now()?.since(&before);
        ensure!(!now.links.is_empty(), "no links to programs that begin with mt_");
        Ok(now)
    })?;
    assert!(!now.programs.is_empty() && !now.maps.is_empty(), "{now:?}");
    daemon.stop()?.expect_status(0)?;
    drop(client);
    Objects::wait_until_only(&before)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_killed_daemon_leaves_nothing_in_the_kernel() -> Result<()> {
    let before = Objects::now()?;
    drop(Daemon::start()?);
    Objects::wait_until_only(&before)
}
