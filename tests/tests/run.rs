//! What `run` passes on to its command and of it: exit status, streams, user, descriptors.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::Daemon;
use memtrace_tests::dump::Dump;
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{self, LIMIT, Run, call};
use memtrace_tests::process;

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
    let listed = |command: &mut Command| -> Result<Vec<String>> {
        let said = process::run(command.args(["ls", "/proc/self/fd"]), LIMIT)?.expect_status(0)?;
        Ok(said.stdout.lines().map(str::to_owned).collect())
    };
    // What the suite itself was given by whoever started it goes through, as with env.
    let without = listed(&mut Command::new("env"))?;
    let with = listed(&mut memtrace::command(["run", "-o", "/dev/null", "--"])?)?;
    assert_eq!(with, without);
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
fn a_command_of_a_memtrace_with_lent_capabilities_gets_none_of_them() -> Result<()> {
    const LENT: &str = "+bpf,+perfmon,+sys_ptrace,+dac_read_search,+syslog,+checkpoint_restore";
    let mut command = Command::new("setpriv");
    command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]);
    command.args(["--inh-caps", LENT, "--ambient-caps", LENT, "--"]);
    command.arg(memtrace_tests::paths::memtrace()?).args(["run", "-o", "/dev/null", "--"]);
    command.args(["grep", "-E", "^Cap(Prm|Eff|Inh|Amb)", "/proc/self/status"]);
    let said = process::run(&mut command, LIMIT)?.expect_status(0)?;
    assert_eq!(said.stdout.lines().count(), 4, "{said:?}");
    assert!(said.stdout.lines().all(|set| set.ends_with("0000000000000000")), "{said:?}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_leak_exits_with_3_where_that_is_asked_for() -> Result<()> {
    let client = fixture::build(Variant::Plain)?.client();
    let exit_after = |steps: &str, options: &[&'static str]| -> Result<i32> {
        let mut command = memtrace::command(["run", "--domains", "cuda", "-o", "/dev/null"])?;
        command.args(options).arg("--").arg(&client).args(["slow-leak", steps, "1000000", "100"]);
        // A leak is told from a cache in 8 minutes; here in as many seconds, or some more where
        // the machine is busy and growth comes unevenly.
        command.env(
            "MEMTRACE_TUNE_VERDICT",
            "window_seconds = 1\nmin_age_seconds = 1\nleak_windows = 6\ngrowing_windows = 4\n\
             leak_steps = 4",
        );
        Ok(process::run(&mut command, LIMIT)?.status)
    };
    assert_eq!(exit_after("320", &["--fail-on-leak"])?, 3);
    assert_eq!(exit_after("160", &[])?, 0);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn sudo_user_is_the_commands_user_by_default() -> Result<()> {
    let mut command = memtrace::command(["run", "-o", "/dev/null", "--", "id", "-un"])?;
    let said = process::run(command.env("SUDO_USER", "nobody"), LIMIT)?.expect_status(0)?;
    assert_eq!(said.stdout, "nobody\n");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn run_beside_a_daemon_works_and_says_what_it_costs() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let daemon = Daemon::start_knowing(&fixtures)?;
    let socket = daemon.socket();
    ensure!(socket.exists(), "{} is gone", socket.display());
    let traced =
        Run::new("cuda,managed,pinned").trace(fixtures.client(), ["threads", "100", "1000"])?;
    traced.dump.check_conservation()?;
    traced.truth()?.check_ended(traced.process()?)?;
    let pid = traced.process()?.pid;
    let truth = traced.truth()?;
    daemon.dump_until("the daemon's own books", Duration::from_secs(20), |dump| {
        dump.check_conservation()?;
        truth.check_ended(dump.process(pid)?)
    })?;
    // A daemon is known by its socket at the usual place; here that is in a file system of its
    // own, which goes with its last process.
    let script = "mount -t tmpfs none /run && mkdir /run/memtrace \
        && ln -s \"$0\" /run/memtrace/memtrace.sock && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(&socket);
    command.arg(memtrace_tests::paths::memtrace()?).args(["run", "-o", "/dev/null", "--", "true"]);
    let said = process::run(&mut command, LIMIT)?.expect_status(0)?;
    ensure!(said.one_line()?.contains("daemon"), "{said:?}");
    Ok(())
}
