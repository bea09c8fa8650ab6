//! What memtrace does when it is told to end: reports first, then detaches, and leaves nothing.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::bpf::Objects;
use memtrace_tests::daemon::Daemon;
use memtrace_tests::dump::Dump;
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{self, LIMIT};
use memtrace_tests::process::Running;
use memtrace_tests::scratch::Scratch;

#[test]
#[ignore = "needs root: cargo xtask test"]
fn sigterm_ends_the_daemon_cleanly_with_its_books_in_the_log() -> Result<()> {
    let before = Objects::now()?;
    let daemon = Daemon::start()?;
    let socket = daemon.socket();
    let said = daemon.stop()?.expect_status(0)?;
    for domain in ["kernel", "cuda", "managed", "pinned"] {
        let books = format!("domain=\"{domain}\"");
        let line = said.stderr.lines().find(|line| line.contains(&books));
        let line = line.with_context(|| format!("no books of {domain} in {said:?}"))?;
        ensure!(line.contains("conserved=true"), "{line}");
    }
    assert!(!socket.exists(), "the socket was left");
    Objects::wait_until_only(&before)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn sigterm_makes_run_report_before_it_detaches() -> Result<()> {
    let before = Objects::now()?;
    let scratch = Scratch::new()?;
    let report = scratch.join("report.json");
    let client = fixture::build(Variant::Plain)?.client();
    let mut command = memtrace::command(["run", "--domains", "cuda", "--format", "json", "-o"])?;
    command.arg(&report).arg("--").arg(client).args(["slow-leak", "100", "1000", "100"]);
    let mut tracer = Running::start(&mut command)?;
    memtrace_tests::until("probes", Duration::from_secs(20), || {
        ensure!(!Objects::now()?.since(&before).links.is_empty(), "no links yet");
        Ok(())
    })?;
    std::thread::sleep(Duration::from_secs(2));
    tracer.signal(rustix::process::Signal::TERM)?;
    tracer.finish(LIMIT)?;
    let dump = Dump::parse(&std::fs::read_to_string(&report)?)?;
    dump.check_conservation()?;
    let seen: u64 = dump.processes.iter().map(|one| one.domain("cuda").terms.seen.count).sum();
    assert!(seen > 0, "the report knows nothing of the command");
    Objects::wait_until_only(&before)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn sigterm_makes_attach_report_and_lets_the_process_run() -> Result<()> {
    let before = Objects::now()?;
    let scratch = Scratch::new()?;
    let report = scratch.join("report.json");
    let fixture = env!("CARGO_BIN_EXE_fixture-kernel");
    let mut target =
        Running::start_talking(Command::new(fixture).args(["receive", "100", "1000", "--hold"]))?;
    target.read_json()?;
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let to = report.display().to_string();
        let domains = ["--domains", "kernel", "--format", "json", "-o", &to];
        let mut tracer = memtrace::attach(target.pid(), domains)?;
        tracer.signal(signal)?;
        tracer.finish(LIMIT)?.expect_status(0)?;
        let dump = Dump::parse(&std::fs::read_to_string(&report)?)?;
        dump.check_conservation()?;
        ensure!(!dump.process(target.pid())?.ended, "{signal:?}");
        assert_eq!(target.ended()?, None, "{signal:?}");
        Objects::wait_until_only(&before)?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_killed_run_or_attach_leaves_nothing_and_its_command_goes_on() -> Result<()> {
    let before = Objects::now()?;
    let mut command = memtrace::command(["run", "--", "sh", "-c", "echo $$; read go; echo on"])?;
    let mut tracer = Running::start_talking(&mut command)?;
    let shell: i32 = tracer.read_line()?.trim().parse()?;
    let _shell = Killed(rustix::process::Pid::from_raw(shell).context("a pid")?);
    tracer.signal(rustix::process::Signal::KILL)?;
    memtrace_tests::until("the end of memtrace", Duration::from_secs(10), || {
        ensure!(tracer.ended()?.is_some(), "it runs");
        Ok(())
    })?;
    Objects::wait_until_only(&before)?;
    tracer.go_on()?;
    assert_eq!(tracer.read_line()?, "on\n", "the command was ended with its tracer");
    Ok(())
}

/// A process that is killed by its pid at the end, should it still run.
struct Killed(rustix::process::Pid);

impl Drop for Killed {
    fn drop(&mut self) {
        // It has usually ended by then.
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::KILL);
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_first_interrupt_goes_to_the_command_and_the_second_reports_at_once() -> Result<()> {
    use rustix::process::{Pid, Signal, kill_process_group};
    let script = "trap 'echo interrupted' INT; echo $$; while :; do sleep 0.1; done";
    // A shell cannot trap what was ignored when it began, and background jobs ignore SIGINT.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(memtrace_tests::paths::memtrace()?);
    // The command goes on and holds standard output, so the report goes to a file.
    let scratch = Scratch::new()?;
    let report = scratch.join("report.json");
    command.args(["run", "--format", "json", "-o"]).arg(&report);
    command.args(["--", "sh", "-c", script]);
    let mut tracer = Running::start(&mut command)?;
    let group = Pid::from_raw(tracer.pid().cast_signed()).context("a pid")?;
    let shell = Pid::from_raw(tracer.read_line()?.trim().parse()?).context("a pid")?;
    let _shell = Killed(shell);
    // As a terminal does it: to the whole foreground group.
    kill_process_group(group, Signal::INT)?;
    assert_eq!(tracer.read_line()?, "interrupted\n");
    // As long as a person takes: two at once would be one to the kernel.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(tracer.ended()?, None, "the first one is the command's own affair");
    kill_process_group(group, Signal::INT)?;
    tracer.finish(Duration::from_secs(30))?.expect_status(130)?;
    Dump::parse(&std::fs::read_to_string(&report)?)?.check_conservation()
}
