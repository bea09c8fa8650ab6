//! What the daemon measures beside its books: memory of processes, limits of their cgroups, and
//! shared memory that is left over, held against what programs did and the kernel was told.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::cgroup::Cgroup;
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::memtrace::LIMIT;
use memtrace_tests::process::{self, Running};

const KERNEL: &str = env!("CARGO_BIN_EXE_fixture-kernel");
/// Processes are measured every 5 s, the host every 10 s.
const LATE: Duration = Duration::from_secs(40);
const MIB: u64 = 1 << 20;

#[test]
#[ignore = "needs root: cargo xtask test"]
fn pages_that_a_program_writes_to_are_measured_and_so_is_its_limit() -> Result<()> {
    let daemon = Daemon::start()?;
    let group = Cgroup::limited(&format!("mt-measured-{}", std::process::id()), 512 * MIB)?;
    let mut program =
        Running::start_talking(Command::new(KERNEL).args(["resident", "64", "--hold"]))?;
    program.read_json()?;
    group.take(program.pid())?;
    let before = daemon.dump_until("its first measurement", LATE, |dump| {
        let measured = dump.process(program.pid())?.measured;
        ensure!(measured.cgroup_limit_bytes == Some(512 * MIB), "{measured:?}");
        measured.anonymous_bytes.context("not measured")
    })?;
    program.go_on()?;
    program.read_json()?;
    daemon.dump_until("64 MiB more", LATE, |dump| {
        let measured = dump.process(program.pid())?.measured;
        let now = measured.anonymous_bytes.context("not measured")?;
        ensure!((64 * MIB..66 * MIB).contains(&now.saturating_sub(before)), "{measured:?}");
        let used = measured.cgroup_used_bytes.context("no limit")?;
        ensure!((64 * MIB..128 * MIB).contains(&used), "{measured:?}");
        ensure!(measured.threads == Some(1) && measured.swap_bytes == Some(0), "{measured:?}");
        ensure!(measured.virtual_bytes > measured.anonymous_bytes, "{measured:?}");
        ensure!(measured.device_bytes.is_none() || measured.device_bytes == Some(0));
        Ok(())
    })?;
    program.go_on()?;
    program.finish(LIMIT)?.expect_status(0)?;
    Ok(())
}

/// A file, removed on drop.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            eprintln!("left behind: {}: {error}", self.0.display());
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_file_in_memory_that_its_maker_left_behind_is_the_hosts() -> Result<()> {
    let configuration = Some("[verdict]\nwindow_seconds = 1\n".to_owned());
    let daemon = Daemon::start_with(&Options { configuration, ..Options::default() })?;
    let host = |dump: &memtrace_tests::dump::Dump, path: &str| {
        let said = dump.findings.iter().find(|finding| {
            finding.level == "host" && finding.decided_by.iter().any(|word| word.contains(path))
        });
        said.cloned()
    };
    // What was there at first is looked at before any process is.
    daemon.dump_until("a first measurement", LATE, |dump| {
        let measured = dump.processes.iter().any(|one| one.measured.anonymous_bytes.is_some());
        ensure!(measured, "nobody is measured");
        Ok(())
    })?;
    // Its size is more than the noise of any host that runs tests.
    let said = process::run(Command::new(KERNEL).args(["shared", "96"]), LIMIT)?;
    let line = said.expect_status(0)?.last_json()?;
    let path = line.get("path").and_then(serde_json::Value::as_str).context("no path")?;
    let file = File(PathBuf::from(path));
    let finding = daemon.dump_until("the finding", 2 * LATE, |dump| {
        host(dump, path).with_context(|| format!("{:?}", dump.findings))
    })?;
    ensure!(finding.verdict == "orphaned" && finding.processes.is_empty(), "{finding:?}");
    ensure!(finding.domain == "host" && finding.site.is_none(), "{finding:?}");
    // Somebody opens it: it is not left over any more.
    let held = std::fs::File::open(&file.0)?;
    daemon.dump_until("its end", 2 * LATE, |dump| {
        ensure!(host(dump, path).is_none(), "still said");
        Ok(())
    })?;
    drop(held);
    Ok(())
}
