//! Bad input and bad luck: one line on standard error, the exit status of the contract, nothing
//! left attached.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::bpf::Objects;
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::Dump;
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{self, LIMIT, call};
use memtrace_tests::process::{self, Running, Said};
use memtrace_tests::scratch::Scratch;
use serde_json::Value;

/// Calls with bad input: the status, one line that names what is wrong, nothing left.
fn refuses(arguments: &[&str], status: i32, naming: &str) -> Result<()> {
    let before = Objects::now()?;
    let said = call(arguments)?.expect_status(status).with_context(|| format!("{arguments:?}"))?;
    check_refusal(&said, naming).with_context(|| format!("{arguments:?}"))?;
    Objects::wait_until_only(&before)
}

fn check_refusal(said: &Said, naming: &str) -> Result<()> {
    let line = said.one_line()?;
    ensure!(line.contains(naming), "{naming:?} is not in {line:?}");
    ensure!(!line.contains("panicked"), "{line}");
    ensure!(said.stdout.is_empty(), "a report of nothing: {said:?}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_pid_that_is_nobodys_fails_with_1() -> Result<()> {
    // Beyond the largest pid that this kernel gives.
    let largest = std::fs::read_to_string("/proc/sys/kernel/pid_max")?;
    refuses(&["attach", "--pid", largest.trim(), "--duration", "1s"], 1, largest.trim())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_process_that_has_ended_but_is_not_reaped_fails_with_1() -> Result<()> {
    let mut zombie = Command::new("true").spawn()?;
    let stat = format!("/proc/{}/stat", zombie.id());
    memtrace_tests::until("the end of true", Duration::from_secs(5), || {
        ensure!(std::fs::read_to_string(&stat)?.contains(") Z "), "it runs");
        Ok(())
    })?;
    let pid = zombie.id().to_string();
    refuses(&["attach", "--pid", &pid, "--duration", "1s"], 1, &pid)?;
    zombie.wait()?;
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_process_that_ends_while_attaching_is_a_report_or_one_line() -> Result<()> {
    let before = Objects::now()?;
    for milliseconds in [1, 10, 50, 100, 200, 400] {
        let seconds = format!("0.{milliseconds:03}");
        let target = Running::start(Command::new("sleep").arg(&seconds))?;
        // Reaped by itself, as a shell would: the pid goes while the tracer attaches.
        let pid = target.pid().to_string();
        let reaper = std::thread::spawn(move || {
            let mut target = target;
            target.finish(LIMIT)
        });
        let said = call(["attach", "--format", "json", "--duration", "2s", "--pid", &pid])?;
        reaper.join().map_err(|_| anyhow::anyhow!("the reaper panicked"))??;
        match said.status {
            0 => ensure!(Dump::parse(&said.stdout).is_ok(), "{said:?}"),
            1 => check_refusal(&said, &pid)?,
            _ => ensure!(false, "{said:?}"),
        }
    }
    Objects::wait_until_only(&before)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_command_that_is_not_there_is_127_and_one_that_cannot_be_executed_126() -> Result<()> {
    let scratch = Scratch::new()?;
    let missing = scratch.join("missing");
    let text = scratch.write("not-executable", "no program")?;
    let (missing, text) = (missing.display().to_string(), text.display().to_string());
    refuses(&["run", "--", &missing], 127, &missing)?;
    refuses(&["run", "--", "no-such-command-anywhere"], 127, "no-such-command-anywhere")?;
    refuses(&["run", "--", &text], 126, &text)?;
    let directory = scratch.path().display().to_string();
    refuses(&["run", "--", &directory], 126, &directory)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_library_that_cannot_be_probed_is_named() -> Result<()> {
    let scratch = Scratch::new()?;
    let missing = scratch.join("missing.so").display().to_string();
    refuses(&["run", "--library", &missing, "--", "true"], 125, &missing)?;
    let text = scratch.write("text.so", "not ELF")?.display().to_string();
    refuses(&["run", "--library", &text, "--", "true"], 125, &text)?;
    let other = fixture::build(Variant::Plain)?.no_allocator().display().to_string();
    refuses(&["run", "--library", &other, "--", "true"], 125, &other)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn wrong_words_are_usage_errors() -> Result<()> {
    refuses(&["run", "--domains", "nonsense", "--", "true"], 2, "nonsense")?;
    refuses(&["run", "--format", "nonsense", "--", "true"], 2, "nonsense")?;
    refuses(&["dump", "--domain", "nonsense"], 2, "nonsense")?;
    refuses(&["dump", "--format", "nonsense"], 2, "nonsense")?;
    refuses(&["attach", "--pid", "nonsense"], 2, "nonsense")?;
    refuses(&["run", "--nonsense", "--", "true"], 2, "--nonsense")?;
    refuses(&["run", "--fail-on-kept", "1:nonsense", "--", "true"], 2, "nonsense")?;
    refuses(&["nonsense"], 2, "nonsense")?;
    refuses(&["run"], 2, "CMD")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_user_that_does_not_exist_is_named() -> Result<()> {
    refuses(&["run", "--user", "no-such-user", "--", "true"], 125, "no-such-user")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_daemon_that_does_not_run_fails_with_1() -> Result<()> {
    let scratch = Scratch::new()?;
    let socket = scratch.join("socket").display().to_string();
    for subcommand in ["dump", "status"] {
        refuses(&[subcommand, "--socket", &socket], 1, &socket)?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_output_file_that_cannot_be_written_fails_before_the_command_runs() -> Result<()> {
    let scratch = Scratch::new()?;
    let report = scratch.join("no/such/directory/report").display().to_string();
    let mark = scratch.join("executed");
    refuses(&["run", "-o", &report, "--", "touch", &mark.display().to_string()], 125, &report)?;
    assert!(!mark.exists(), "the command ran although its report cannot be written");

    let daemon = Daemon::start()?;
    let said = daemon.call("dump", &["-o", &report])?.expect_status(1)?;
    check_refusal(&said, &report)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_second_daemon_on_the_same_socket_explains_and_ends() -> Result<()> {
    let daemon = Daemon::start()?;
    let socket = daemon.socket().display().to_string();
    let address = memtrace_tests::daemon::free_address()?;
    let state = Scratch::new()?;
    let state = state.path().display().to_string();
    let mut command = memtrace::command(["daemon", "--socket", &socket, "--listen", &address])?;
    let said = process::run(command.args(["--state-dir", &state]), LIMIT)?.expect_status(1)?;
    ensure!(said.stderr.contains(&socket), "{said:?}");
    // The first one does not mind.
    daemon.dump()?.check_conservation()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_address_in_use_and_a_wrong_configuration_end_the_daemon_with_1() -> Result<()> {
    let before = Objects::now()?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let scratch = Scratch::new()?;
    let socket = scratch.join("socket");
    let state = scratch.path().display().to_string();
    let mut command = memtrace::command(["daemon", "--listen", &address, "--state-dir", &state])?;
    let said = process::run(command.arg("--socket").arg(&socket), LIMIT)?.expect_status(1)?;
    ensure!(said.stderr.contains(&address), "{said:?}");

    let binary = Command::new(memtrace_tests::paths::memtrace()?);
    let options =
        Options { configuration: Some("no_such_key = 1\n".to_owned()), ..Options::default() };
    let said = Daemon::refused_by(binary, &options)?.expect_status(1)?;
    ensure!(said.one_line()?.contains("no_such_key"), "{said:?}");
    Objects::wait_until_only(&before)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn check_reads_the_configuration_and_attaches_nothing() -> Result<()> {
    let scratch = Scratch::new()?;
    let before = Objects::now()?;
    let check = |text: &str| -> Result<Said> {
        let file = scratch.write("memtrace.toml", text)?.display().to_string();
        call(["daemon", "--check", "--config", &file])
    };
    check("domains = [\"cuda\"]\n")?.expect_status(0)?;
    let said = check("domains = [\"nonsense\"]\n")?.expect_status(1)?;
    ensure!(said.one_line()?.contains("nonsense"), "{said:?}");
    let sites = "[verdict]\nknown_sites = [\"0b96d93d16c8b97c\"]\n";
    check(&format!("{sites}[verdict.domain.cuda]\nminimum_bytes = \"4MiB\"\n"))?
        .expect_status(0)?;
    let said = check("[verdict.domain.cuda]\nwindow_seconds = 1.0\n")?.expect_status(1)?;
    ensure!(said.one_line()?.contains("line 2: unknown field `window_seconds`"), "{said:?}");
    assert_eq!(Objects::now()?.since(&before), Objects::default());
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn doctor_says_what_the_maps_take_and_what_is_there() -> Result<()> {
    let said = call(["doctor", "--json"])?;
    ensure!(said.status == 0 || said.status == 1, "{said:?}");
    serde_json::from_str::<Value>(&said.stdout).context("doctor --json is no JSON")?;
    let text = call(["doctor"])?.stdout;
    for ability in ["BTF", "tp_btf", "fentry", "uprobe_multi", "ring buffer", "NVML", "lockdown"] {
        assert!(text.contains(ability), "{ability} is not in\n{text}");
    }
    assert!(text.contains("MiB"), "no memory of maps in\n{text}");
    Ok(())
}
