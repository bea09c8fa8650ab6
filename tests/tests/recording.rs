//! Recordings of real programs: what a replay says is what was true, whatever ended the recording.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::dump::Dump;
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{self, LIMIT, call};
use memtrace_tests::process::{self, Running, Said};
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;
use rustix::process::Signal;
use serde_json::Value;

const LATE: Duration = Duration::from_secs(20);
const CALLS: [&str; 2] = ["--domains", "cuda,managed,pinned"];

/// `memtrace record` into a file, with options.
fn record(file: &Path, options: &[&str]) -> Result<Command> {
    let mut command = memtrace::command(["record", "-o"])?;
    command.arg(file).args(options);
    Ok(command)
}

fn replay(file: &Path, options: &[&str]) -> Result<Said> {
    let mut command = memtrace::command(["replay"])?;
    process::run(command.arg(file).args(options), LIMIT)
}

/// The JSON of a recording that was ended.
fn replayed(file: &Path) -> Result<String> {
    let said = replay(file, &["--format", "json"])?.expect_status(0)?;
    ensure!(said.stderr.is_empty(), "{said:?}");
    Ok(said.stdout)
}

/// The same of one that goes on, or was cut off.
fn replayed_so_far(file: &Path) -> Result<Dump> {
    let said = replay(file, &["--format", "json"])?.expect_status(0)?;
    ensure!(said.one_line()?.contains("recording was not ended"), "{said:?}");
    Dump::parse(&said.stdout)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_replay_says_what_the_last_picture_said() -> Result<()> {
    let scratch = Scratch::new()?;
    let (file, last) = (scratch.join("recording"), scratch.join("last.json"));
    for (domains, arguments) in [
        ("cuda,managed,pinned", ["mixed", "4", "2000", "7"]),
        ("kernel,cuda", ["slow-leak", "40", "1000000", "100"]),
    ] {
        let mut command = record(&file, &["--domains", domains, "--"])?;
        command.arg(fixture::build(Variant::Plain)?.client()).args(arguments);
        command.env("MEMTRACE_TUNE_RECORD_REPORT", &last);
        command.env("MEMTRACE_TUNE_VERDICT", "window_seconds = 1\nmin_age_seconds = 1");
        let said = process::run(&mut command, LIMIT)?.expect_status(0)?;
        ensure!(said.stderr.is_empty(), "progress is for terminals: {said:?}");

        let json = replayed(&file)?;
        ensure!(json == replayed(&file)?, "two replays of one recording differ");
        let live: Value = serde_json::from_slice(&std::fs::read(&last)?)?;
        let again: Value = serde_json::from_str(&json)?;
        for part in live.as_object().context("no object")?.keys() {
            ensure!(live[part] == again[part], "{part}: {} and {}", live[part], again[part]);
        }
        ensure!(live == again);

        let dump = Dump::parse(&json)?;
        dump.check_conservation()?;
        let truth = Truth::parse(said.last_json()?)?;
        let process = dump.process(truth.pid)?;
        if domains.starts_with("cuda") {
            truth.check_ended(process)?;
        }
        ensure!(
            process.all("cuda").rows > 0 && process.sites("cuda").all(|site| site.id.is_some())
        );
    }
    let mode = std::fs::metadata(&file)?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "{mode:o}: command lines are for the owner only");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_killed_memtrace_leaves_what_it_had_recorded() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = scratch.join("recording");
    let mut command = record(&file, &CALLS)?;
    command.arg("--").arg(fixture::build(Variant::Plain)?.client());
    let mut running = Running::start_talking(command.args(["leak", "50", "1000", "--hold"]))?;
    let truth = Truth::parse(running.read_json()?)?;
    let check = || -> Result<()> {
        let dump = replayed_so_far(&file)?;
        dump.check_conservation()?;
        truth.check_running(dump.process(truth.pid)?)
    };
    // A second later at the latest it is in the file.
    memtrace_tests::until("the recording", LATE, check)?;
    running.signal(Signal::KILL)?;
    // The command ends with its standard input.
    running.finish(LIMIT)?.expect_status(128 + 9)?;
    check()?;
    // Whatever the crash has torn off.
    let whole = std::fs::read(&file)?;
    for cut in [1, 10, 100] {
        std::fs::write(&file, &whole[..whole.len() - cut])?;
        replayed_so_far(&file)?.check_conservation()?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_host_is_recorded_until_a_signal() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = scratch.join("recording");
    let fixtures = fixture::build(Variant::Plain)?;
    let mut command = record(&file, &CALLS)?;
    command.arg("--library").arg(fixtures.cudart()).arg("--library").arg(fixtures.cuda());
    let mut running = Running::start(&mut command)?;
    memtrace_tests::until("the probes", LATE, || {
        let dump = replayed_so_far(&file)?;
        for library in [fixtures.cudart(), fixtures.cuda()] {
            ensure!(dump.coverage_of(&library)?.attached, "{:?}", dump.coverage);
        }
        Ok(())
    })?;
    let mut client = Command::new(fixtures.client());
    let said = process::run(client.args(["mixed", "4", "1000", "3"]), LIMIT)?.expect_status(0)?;
    let truth = Truth::parse(said.last_json()?)?;
    running.signal(Signal::INT)?;
    running.finish(LIMIT)?.expect_status(0)?;
    let dump = Dump::parse(&replayed(&file)?)?;
    dump.check_conservation()?;
    truth.check_ended(dump.process(truth.pid)?)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_full_disk_ends_the_recording_and_not_the_command() -> Result<()> {
    let scratch = Scratch::new()?;
    // A file system of its own, which goes with its last process.
    let script = "mount -t tmpfs -o size=64k none \"$SCRATCH\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    command.arg(memtrace_tests::paths::memtrace()?).args(["record", "-o"]);
    command.arg(scratch.join("recording")).args(CALLS).arg("--");
    command.arg(fixture::build(Variant::Plain)?.client()).args(["slow-leak", "40000", "1000", "0"]);
    let said = process::run(command.env("SCRATCH", scratch.path()), LIMIT)?.expect_status(1)?;
    let line = said.one_line()?;
    ensure!(line.contains("cannot write") && line.contains("No space left"), "{line}");
    ensure!(line.contains("the command goes on"), "{line}");
    Truth::parse(said.last_json()?)?;
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_cannot_be_recorded_is_one_line() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = scratch.join("recording");
    std::fs::write(&file, "what was here before")?;
    for (arguments, naming) in [
        (&["--", "no-such-command-anywhere"][..], "no-such-command-anywhere is not found"),
        (&["--user", "no-such-user", "--", "true"], "no-such-user"),
    ] {
        let said = process::run(&mut record(&file, arguments)?, LIMIT)?.expect_status(1)?;
        ensure!(said.one_line()?.contains(naming), "{said:?}");
    }
    assert_eq!(std::fs::read(&file)?, b"what was here before");
    for directory in [scratch.path(), &scratch.join("no/such/directory")] {
        let said = process::run(&mut record(directory, &["--", "true"])?, LIMIT)?;
        let said = said.expect_status(1)?;
        ensure!(said.one_line()?.contains(&format!("cannot write {}", directory.display())));
    }
    call(["record", "--", "true"])?.expect_status(2)?;
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_is_no_whole_recording_is_one_line() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = scratch.join("recording");
    let mut command = record(&file, &["--domains", "kernel,cuda", "--"])?;
    command.arg(fixture::build(Variant::Plain)?.client()).args(["slow-leak", "30", "1000", "100"]);
    process::run(&mut command, LIMIT)?.expect_status(0)?;
    let whole = std::fs::read(&file)?;
    replayed(&file)?;

    let refused = |bytes: &[u8], naming: &str| -> Result<()> {
        std::fs::write(&file, bytes)?;
        let said = replay(&file, &[])?.expect_status(1)?;
        let line = said.one_line()?;
        ensure!(line.contains(naming) && line.contains(&*file.to_string_lossy()), "{line}");
        ensure!(said.stdout.is_empty(), "a report of nothing: {said:?}");
        Ok(())
    };
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        bytes
    };
    refused(&flipped(whole.len() / 2), "is damaged at byte ")?;
    refused(&flipped(20), "is damaged at byte 12")?;
    refused(&flipped(0), "is no recording of memtrace")?;
    refused(&flipped(8), "is a recording of format 6")?;
    refused(&whole[..40], "was cut off before its first record")?;
    refused(b"", "is empty")?;
    refused(b"\x7fELF and so on", "is no recording of memtrace")?;
    for (path, naming) in
        [(scratch.path().to_owned(), "Is a directory"), (scratch.join("missing"), "No such file")]
    {
        let said = replay(&path, &[])?.expect_status(1)?;
        ensure!(said.one_line()?.contains(naming), "{said:?}");
    }
    for length in [whole.len() - 1, whole.len() / 2] {
        std::fs::write(&file, &whole[..length])?;
        replayed_so_far(&file)?.check_conservation()?;
    }
    // Nobody has to be root to replay, and every format can be had.
    std::fs::write(&file, &whole)?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644))?;
    for format in ["text", "json", "folded", "pprof", "svg"] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"]);
        command.arg(memtrace_tests::paths::memtrace()?).arg("replay").arg(&file);
        let report = scratch.join(format);
        std::fs::File::create(&report)?;
        std::fs::set_permissions(&report, std::fs::Permissions::from_mode(0o666))?;
        command.args(["--format", format, "-o"]).arg(&report);
        process::run(&mut command, LIMIT)?.expect_status(0)?;
        ensure!(std::fs::metadata(&report)?.len() > 0, "{format}");
    }
    Ok(())
}
