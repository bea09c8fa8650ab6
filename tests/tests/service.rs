//! The daemon as the systemd unit starts it, as far as that can be had without systemd as pid 1:
//! another user, exactly the unit's capabilities, its filters and its view of the file systems.
//! It keeps exact books there, and without any one of its capabilities it says which is missing.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::amount;
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::ipc::Left;
use memtrace_tests::memtrace::LIMIT;
use memtrace_tests::process::{self, Running};
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;
use memtrace_tests::{paths, unit};

const KERNEL: &str = env!("CARGO_BIN_EXE_fixture-kernel");
const LATE: Duration = Duration::from_secs(20);

fn start_as_the_unit() -> Result<Daemon> {
    let command = unit::sandboxed(&paths::memtrace()?, &unit::capabilities()?)?;
    Daemon::start_by(command, &Options::default())
}

/// The line of a status file, such as `CapEff`.
fn status_of(pid: u32, name: &str) -> Result<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.with_context(|| format!("no {name} in the status of {pid}"))?.trim().to_owned())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn as_the_unit_kernel_books_are_exact() -> Result<()> {
    let daemon = start_as_the_unit()?;
    let mut sender = Running::start(Command::new(KERNEL).args(["keep", "1000", "1000"]))?;
    let pid = sender.pid();
    let mut queues = Left::parse(&sender.finish(LIMIT)?.expect_status(0)?.last_json()?)?;
    let live = |expected: u64| {
        daemon.dump_until("messages", LATE, |dump| {
            dump.check_conservation()?;
            let process = dump.process(pid)?;
            let books = process.called_in("kernel", "load_msg");
            ensure!(books.live == amount(expected, expected * 2_048), "{books:?}");
            ensure!(process.ended, "the sender has ended");
            Ok(())
        })
    };
    live(1_000)?;
    queues.remove()?;
    live(0)
}

/// The stub libraries and their client lie where the unit sees nothing, as services do that run
/// from a home directory, and nobody has mapped them before.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn as_the_unit_libraries_in_hidden_places_are_probed_and_named() -> Result<()> {
    let daemon = start_as_the_unit()?;
    let fixtures = fixture::build(Variant::Plain)?;
    let hidden = Scratch::new()?;
    let runtime = hidden.copy(&fixtures.cudart())?;
    hidden.copy(&fixtures.cuda())?;
    let client = hidden.copy(&fixtures.client())?;
    let view = PathBuf::from(format!("/proc/{}/root", daemon.pid()));
    assert!(view.join("usr").exists() && !view.join(client.strip_prefix("/")?).exists());
    // A library is found when somebody maps it: before the first call that counts.
    let mut first = Running::start_talking(Command::new(&client).args(["kinds", "--hold"]))?;
    first.read_json()?;
    daemon.dump_until("the stub in coverage", LATE, |dump| {
        let row = dump.coverage_of(&runtime)?;
        ensure!(row.attached, "{row:?}");
        Ok(())
    })?;
    let arguments = ["threads", "100", "1000", "--hold"];
    let mut running = Running::start_talking(Command::new(&client).args(arguments))?;
    let truth = Truth::parse(running.read_json()?)?;
    daemon.dump_until("three threads", LATE, |dump| {
        dump.check_conservation()?;
        let process = dump.process(running.pid())?;
        let leaking = process.at("cuda", "site_a");
        ensure!(leaking.live == amount(100, 100_000), "{leaking:?}");
        let mut frames = process.sites("cuda").flat_map(|site| &site.frames);
        let site = frames.find(|frame| frame.symbol.as_deref() == Some("site_a"));
        let site = site.context("no frame of site_a")?;
        ensure!(site.module.as_deref() == client.to_str(), "{site:?}");
        let source = site.file.as_deref().is_some_and(|file| file.ends_with("client_sites.c"));
        ensure!(source && site.line.is_some(), "no line: {site:?}");
        truth.check_running(process)
    })?;
    // Such as that the kernel may not tell of new mappings, which only makes them late.
    let said = daemon.stop()?.expect_status(0)?;
    ensure!(!said.stderr.contains("WARN"), "the sandbox is in its way: {}", said.stderr);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_the_unit_sets_is_in_force() -> Result<()> {
    let daemon = start_as_the_unit()?;
    let status = |name| status_of(daemon.pid(), name);
    assert_eq!(status("Uid")?, "65534\t65534\t65534\t65534");
    assert_eq!((status("NoNewPrivs")?, status("Seccomp")?), ("1".into(), "2".into()));
    // sys_ptrace 19, dac_read_search 2, syslog 34, perfmon 38, bpf 39, checkpoint_restore 40.
    let six = [19, 2, 34, 38, 39, 40].iter().fold(0_u64, |set, bit| set | 1 << bit);
    for set in ["CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&status(set)?, 16)?, six, "{set}");
    }
    let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", daemon.pid()))?;
    let mounted = |line: &str| mounts.lines().any(|one| one.contains(line));
    assert!(mounted(" /root ") && mounted(" / / ro,") && mounted(" /sys ro,"), "{mounts}");
    // TasksMax=64.
    assert!(status("Threads")?.parse::<u32>()? < 32);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn without_any_one_capability_the_daemon_says_which() -> Result<()> {
    let binary = paths::memtrace()?;
    let all = unit::capabilities()?;
    for missing in &all {
        let others: Vec<String> = all.iter().filter(|one| *one != missing).cloned().collect();
        let command = unit::sandboxed(&binary, &others)?;
        let said = Daemon::refused_by(command, &Options::default())
            .with_context(|| format!("without cap_{missing} the daemon runs on"))?;
        assert_eq!(said.status, 1, "without cap_{missing}: {said:?}");
        let name = format!("CAP_{}", missing.to_ascii_uppercase());
        assert!(said.one_line()?.contains(&format!("needs {name},")), "{name}: {said:?}");
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn run_without_capabilities_names_them_and_does_not_run_the_command() -> Result<()> {
    let scratch = Scratch::new()?;
    let mark = scratch.join("executed");
    // Where every user can execute it.
    let mut command = unit::command(&scratch.copy(&paths::memtrace()?)?, &[]);
    command.args(["run", "--", "touch"]).arg(&mark);
    let said = process::run(&mut command, LIMIT)?.expect_status(125)?;
    assert!(said.one_line()?.contains("CAP_BPF"), "{said:?}");
    assert!(!mark.exists(), "the command ran untraced");
    Ok(())
}
