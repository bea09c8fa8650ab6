//! Bad input and bad luck: one line on standard error, the exit status of the contract, nothing
//! left attached. And what `run` passes on of its command.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::bpf::Objects;
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::Dump;
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{self, LIMIT, Run, call};
use memtrace_tests::process::{self, Running, Said};
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;
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
    assert_eq!(Objects::now()?.since(&before), Objects::default());
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn sigterm_ends_the_daemon_cleanly_with_its_books_in_the_log() -> Result<()> {
    let before = Objects::now()?;
    let daemon = Daemon::start()?;
    let socket = daemon.socket();
    let said = daemon.stop()?.expect_status(0)?;
    for domain in ["kernel", "cuda"] {
        ensure!(said.stderr.contains(domain), "no books of {domain} in {said:?}");
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
fn a_limit_of_locked_memory_that_cannot_be_raised_is_no_error() -> Result<()> {
    let client = fixture::build(Variant::Plain)?.client();
    let memtrace = memtrace_tests::paths::memtrace()?;
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource", "--"]);
    command.args(["prlimit", "--memlock=65536:65536", "--"]).arg(memtrace);
    command.args(["run", "--domains", "cuda", "--format", "json", "-o", "/dev/null", "--"]);
    let said = process::run(command.arg(client).args(["leak", "3", "1000"]), LIMIT)?;
    said.expect_status(0)?;
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn run_exits_as_its_command_does() -> Result<()> {
    let run = |script: &str| call(["run", "-o", "/dev/null", "--", "sh", "-c", script]);
    for (script, status) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill $$", 143)] {
        run(script)?.expect_status(status)?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn conditions_on_what_is_kept_exit_with_3() -> Result<()> {
    let client = fixture::build(Variant::Plain)?.client().display().to_string();
    let kept = |condition: &str| {
        let mut arguments = vec!["run", "--domains", "cuda,pinned", "-o", "/dev/null"];
        arguments.extend(["--fail-on-kept", condition, "--", &client, "leak", "10", "1000"]);
        call(arguments)
    };
    kept("10000")?.expect_status(3)?;
    kept("10000:cuda")?.expect_status(3)?;
    kept("10001:cuda")?.expect_status(0)?;
    kept("1:pinned")?.expect_status(0)?;
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_commands_own_failure_wins_over_conditions() -> Result<()> {
    let arguments = ["run", "--fail-on-kept", "1", "-o", "/dev/null", "--", "sh", "-c", "exit 7"];
    call(arguments)?.expect_status(7)?;
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_report_comes_after_the_commands_output_and_nothing_is_on_standard_error() -> Result<()> {
    let said = call(["run", "--format", "json", "--", "echo", "hello"])?.expect_status(0)?;
    let (first, rest) = said.stdout.split_once('\n').context("one line only")?;
    assert_eq!(first, "hello");
    Dump::parse(rest)?;
    assert_eq!(said.stderr, "", "progress is for terminals");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_command_gets_standard_input_and_its_arguments_untouched() -> Result<()> {
    let mut command = memtrace::command(["run", "-o", "/dev/null", "--", "sh", "-c"])?;
    command.args(["cat; echo \"$1|$2\"", "sh", "--format", "a  b"]);
    let said = process::run_with_input(&mut command, "from outside\n", LIMIT)?.expect_status(0)?;
    assert_eq!(said.stdout, "from outside\n--format|a  b\n");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_command_gets_no_descriptor_of_memtrace() -> Result<()> {
    let mut command = memtrace::command(["run", "-o", "/dev/null", "--", "ls", "-l"])?;
    let said = process::run(command.arg("/proc/self/fd"), LIMIT)?.expect_status(0)?;
    // Standard input, output and error, and the directory that ls reads.
    assert_eq!(said.stdout.lines().filter(|line| line.contains("->")).count(), 4, "{said:?}");
    assert!(!said.stdout.contains("bpf"), "{said:?}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_command_of_another_user_has_that_user_and_no_capability() -> Result<()> {
    let script = "id -u; id -g; grep -E '^Cap(Prm|Eff|Inh|Amb)' /proc/self/status";
    let said = call(["run", "--user", "nobody", "-o", "/dev/null", "--", "sh", "-c", script])?;
    let said = said.expect_status(0)?;
    let mut lines = said.stdout.lines();
    assert_eq!(lines.next(), Some("65534"));
    assert_eq!(lines.next(), Some("65534"));
    let sets: Vec<&str> = lines.collect();
    assert_eq!(sets.len(), 4, "{said:?}");
    assert!(sets.iter().all(|set| set.ends_with("0000000000000000")), "{said:?}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn sudo_user_is_the_commands_user_by_default() -> Result<()> {
    let mut command = memtrace::command(["run", "-o", "/dev/null", "--", "id", "-un"])?;
    let said = process::run(command.env("SUDO_USER", "nobody"), LIMIT)?.expect_status(0)?;
    assert_eq!(said.stdout, "nobody\n");
    refuses(&["run", "--user", "no-such-user", "--", "true"], 125, "no-such-user")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn run_beside_a_daemon_works_and_says_what_it_costs() -> Result<()> {
    let daemon = Daemon::start()?;
    let socket = daemon.socket();
    ensure!(socket.exists(), "{} is gone", socket.display());
    let client = fixture::build(Variant::Plain)?.client();
    let traced = Run::new("cuda,managed,pinned").trace(client, ["threads", "100", "1000"])?;
    traced.dump.check_conservation()?;
    traced.truth()?.check_ended(traced.process()?)?;
    let pid = traced.process()?.pid;
    let truth = traced.truth()?;
    daemon.dump_until("the daemon's own books", Duration::from_secs(20), |dump| {
        dump.check_conservation()?;
        truth.check_ended(dump.process(pid)?)
    })?;
    assert_eq!(traced.said.stderr.lines().count(), 1, "one line: {:?}", traced.said);
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
    command.args(["run", "--format", "json", "--", "sh", "-c", script]);
    let mut tracer = Running::start(&mut command)?;
    let group = Pid::from_raw(tracer.pid().cast_signed()).context("a pid")?;
    let shell = Pid::from_raw(tracer.read_line()?.trim().parse()?).context("a pid")?;
    let _shell = Killed(shell);
    // As a terminal does it: to the whole foreground group.
    kill_process_group(group, Signal::INT)?;
    assert_eq!(tracer.read_line()?, "interrupted\n");
    assert_eq!(tracer.ended()?, None, "the first one is the command's own affair");
    kill_process_group(group, Signal::INT)?;
    let said = tracer.finish(Duration::from_secs(30))?;
    let start = said.stdout.find('{').context("no report")?;
    Dump::parse(&said.stdout[start..])?.check_conservation()
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
    keys(site, &["sampling", "frames_sampled", "frames", "samples"])?;
    let frame = &site["frames"][0];
    keys(frame, &["kind", "symbol", "module", "build_id", "offset", "file", "line"])?;
    keys(frame, &["inlined", "allocator", "reason"])
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn bytes_that_are_not_utf8_are_escaped_and_not_dropped() -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let daemon = Daemon::start()?;
    let client = fixture::build(Variant::Plain)?.client();
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
