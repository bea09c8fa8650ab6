//! Libraries that memtrace has not seen before: opened late, named on the command line, shown
//! twice by overlay mounts, in pid namespaces, or a hundred at a time.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::{Dump, Process, amount};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{LIMIT, Run};
use memtrace_tests::process::Running;
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;

const LATE: Duration = Duration::from_secs(20);
const DOMAINS: &str = "cuda,managed,pinned";

/// Fresh copies of the stub libraries: inodes that nobody has mapped yet. The runtime's path.
fn unseen_copies(scratch: &Scratch) -> Result<PathBuf> {
    let built = fixture::build(Variant::Plain)?;
    scratch.copy(&built.cuda())?;
    scratch.copy(&built.cudart())
}

/// All late calls are on the books once, and the early one at most once.
fn check_late_calls(process: &Process, calls: u64) -> Result<()> {
    let late = process.at("cuda", "site_late").allocated;
    let all = process.all("cuda");
    ensure!(late == amount(calls, calls * 1_000), "{late:?} of {calls} late calls, all: {all:?}");
    let early = process.at("cuda", "site_early").allocated;
    ensure!(early.count <= 1, "the early call is there {} times", early.count);
    let seen = process.domain("cuda").terms.seen;
    ensure!(seen == late + early, "seen {seen:?}, at sites {late:?} and {early:?}");
    Ok(())
}

fn check_coverage(dump: &Dump, library: &Path) -> Result<()> {
    let row = dump.coverage_of(library)?;
    ensure!(row.attached && row.attached_at.is_some(), "{row:?}");
    ensure!(row.library.as_deref() == Some("libcudart"), "{row:?}");
    ensure!(row.functions.iter().any(|one| one == "cudaMalloc"), "{row:?}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn calls_50_ms_after_an_unseen_library_was_opened_are_on_the_daemons_books() -> Result<()> {
    let scratch = Scratch::new()?;
    let library = unseen_copies(&scratch)?;
    let daemon = Daemon::start()?;
    let mut command = Command::new(fixture::build(Variant::Plain)?.loader());
    command.arg(&library).args(["1000", "50", "--hold"]);
    let mut loader = Running::start_talking(&mut command)?;
    // It has run for a while when it opens the library.
    std::thread::sleep(Duration::from_millis(500));
    loader.go_on()?;
    loader.read_json()?;
    daemon.dump_until("calls of an unseen library", LATE, |dump| {
        dump.check_conservation()?;
        check_late_calls(dump.process(loader.pid())?, 1_000)?;
        check_coverage(dump, &library)
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn calls_50_ms_after_an_unseen_library_was_opened_are_in_the_report_of_run() -> Result<()> {
    let scratch = Scratch::new()?;
    let library = unseen_copies(&scratch)?;
    let loader = fixture::build(Variant::Plain)?.loader();
    let arguments = [library.as_os_str(), OsStr::new("1000"), OsStr::new("50")];
    let traced = Run::new(DOMAINS).trace(loader, arguments)?;
    traced.dump.check_conservation()?;
    check_late_calls(traced.process()?, 1_000)?;
    check_coverage(&traced.dump, &library)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_library_named_on_the_command_line_is_probed_before_its_first_call() -> Result<()> {
    let scratch = Scratch::new()?;
    let library = unseen_copies(&scratch)?;
    let loader = fixture::build(Variant::Plain)?.loader();
    let run = Run::new(DOMAINS).option("--library").option(&library);
    let arguments = [library.as_os_str(), OsStr::new("10"), OsStr::new("0")];
    let traced = run.trace(loader, arguments)?;
    let process = traced.process()?;
    assert_eq!(process.at("cuda", "site_early").allocated, amount(1, 100));
    assert_eq!(process.at("cuda", "site_late").allocated, amount(10, 10_000));
    check_coverage(&traced.dump, &library)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_file_that_is_only_named_like_a_library_is_not_probed() -> Result<()> {
    let scratch = Scratch::new()?;
    let named_alike = scratch.join("libcudart.so.12");
    std::fs::copy(fixture::build(Variant::Plain)?.no_allocator(), &named_alike)?;
    let daemon = Daemon::start()?;
    let mut command = Command::new(fixture::build(Variant::Plain)?.loader());
    let mut loader = Running::start(command.arg(&named_alike).args(["1", "0"]))?;
    // The loader finds no cudaMalloc in it and says so; it had mapped the file by then.
    assert_eq!(loader.finish(LIMIT)?.status, 70);
    let dump = daemon.dump()?;
    let probed = dump.coverage_of(&named_alike).map(|row| row.attached).unwrap_or_default();
    assert!(!probed, "{:?}", dump.coverage);
    Ok(())
}

/// Two overlay mounts of one directory, in a mount namespace that ends with its process.
struct TwoOverlays {
    scratch: Scratch,
    first: Running,
}

impl TwoOverlays {
    /// Starts a held loader on the library of the first mount.
    fn start(calls: &str) -> Result<Self> {
        let scratch = Scratch::new()?;
        for directory in ["lower", "tmp", "a", "b"] {
            std::fs::create_dir(scratch.join(directory))?;
        }
        let built = fixture::build(Variant::Plain)?;
        for library in [built.cuda(), built.cudart()] {
            let name = library.file_name().context("a library without a name")?;
            std::fs::copy(&library, scratch.join("lower").join(name))?;
        }
        let script = "set -e; cd \"$1\"; mount -t tmpfs memtrace-test tmp
            for m in a b; do
                mkdir tmp/$m-upper tmp/$m-work
                mount -t overlay memtrace-test $m \
                    -o lowerdir=lower,upperdir=tmp/$m-upper,workdir=tmp/$m-work
            done
            exec \"$2\" \"$1/a/libcudart.so.12\" \"$3\" 500 --hold";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
        command.arg(scratch.path()).arg(built.loader()).arg(calls);
        let first = Running::start_talking(&mut command)?;
        Ok(Self { scratch, first })
    }

    /// Starts a held loader on the library of the second mount, in the same namespace.
    fn second(&self, calls: &str) -> Result<Running> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.first.pid()));
        command.arg("--").arg(fixture::build(Variant::Plain)?.loader());
        command.arg(self.scratch.join("b/libcudart.so.12")).args([calls, "500", "--hold"]);
        Running::start_talking(&mut command)
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn one_library_under_two_overlay_mounts_is_not_counted_twice() -> Result<()> {
    // A ring that holds all 40,000 stacks, however busy the machine keeps the reader: what is
    // asked here is whether a call counts twice.
    let environment = vec![("MEMTRACE_TUNE_RING_BYTES", (64 << 20).to_string())];
    let daemon = Daemon::start_with(&Options { environment, ..Options::default() })?;
    let mut overlays = TwoOverlays::start("20000")?;
    // Nobody can enter a namespace before its maker is the loader, waiting for a line.
    let comm = format!("/proc/{}/comm", overlays.first.pid());
    memtrace_tests::until("the mounts", LATE, || {
        let name = std::fs::read_to_string(&comm)?;
        ensure!(name.trim() == "loader", "still {name}");
        Ok(())
    })?;
    let mut second = overlays.second("20000")?;
    // Both open and call at the same time: probes through the second mount come meanwhile.
    overlays.first.go_on()?;
    second.go_on()?;
    overlays.first.read_json()?;
    second.read_json()?;
    for loader in [&overlays.first, &second] {
        daemon.dump_until("calls through overlays", LATE, |dump| {
            dump.check_conservation()?;
            check_late_calls(dump.process(loader.pid())?, 20_000)
        })?;
    }
    Ok(())
}

/// The child of a process that has one, by its id here.
fn child_of(parent: u32) -> Result<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let mut children = children.split_whitespace();
    Ok(children.next().with_context(|| format!("{path} is empty"))?.parse()?)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn b13_two_first_processes_of_their_namespaces_are_two_processes() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let daemon = Daemon::start_knowing(&fixtures)?;
    let start = |scenario: &[&str]| -> Result<(Running, Truth)> {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(fixtures.client());
        let mut first = Running::start_talking(command.args(scenario).arg("--hold"))?;
        let truth = Truth::parse(first.read_json()?)?;
        ensure!(truth.pid == 1, "it is {} in its namespace", truth.pid);
        Ok((first, truth))
    };
    let (one, truth_of_one) = start(&["kinds"])?;
    let (other, truth_of_other) = start(&["leak", "7", "1000"])?;
    daemon.dump_until("books of both", LATE, |dump| {
        for (parent, truth) in [(&one, &truth_of_one), (&other, &truth_of_other)] {
            let pid = child_of(parent.pid())?;
            truth.check_running(dump.process(pid)?)?;
            let row = dump.coverage_of_process(pid)?;
            ensure!(row.attached && row.reason.is_none(), "{row:?}");
        }
        Ok(())
    })
}

/// Anonymous memory of a process, KiB.
fn anonymous_kib(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let line = line.context("no RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// How many processes open a copy of their own.
const MANY: u32 = 100;

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_hundred_processes_with_copies_of_their_own_are_all_covered() -> Result<()> {
    let built = fixture::build(Variant::Plain)?;
    let mut copies = Vec::new();
    for owner in 0..MANY {
        let scratch = Scratch::new()?;
        // Each is another user's: nobody may have more than 16 files probed.
        for library in [built.cuda(), built.cudart()] {
            let copy = scratch.copy(&library)?;
            std::os::unix::fs::chown(&copy, Some(40_000 + owner), None)?;
        }
        copies.push(scratch);
    }
    let daemon = Daemon::start()?;
    let before_kib = anonymous_kib(daemon.pid())?;
    let mut loaders = Vec::new();
    for scratch in &copies {
        let mut command = Command::new(built.loader());
        // The late calls come when all are probed: it takes some time for a hundred at once.
        command.arg(scratch.join("libcudart.so.12")).args(["10", "60000", "--hold"]);
        loaders.push(Running::start_talking(&mut command)?);
    }
    let began = std::time::Instant::now();
    for loader in &mut loaders {
        loader.go_on()?;
    }
    let late = Duration::from_secs(150);
    let all_probed = |dump: &Dump| -> Result<()> {
        for (scratch, loader) in copies.iter().zip(&loaders) {
            check_coverage(dump, &scratch.join("libcudart.so.12"))?;
            let row = dump.coverage_of_process(loader.pid())?;
            ensure!(row.attached && row.layers.len() == 2, "{row:?}");
        }
        Ok(())
    };
    memtrace_tests::until("the probes", late, || all_probed(&daemon.dump_by_socket()?))?;
    eprintln!(
        "{MANY} processes with two copies each: probed after {:.1} s, {} KiB more in the daemon",
        began.elapsed().as_secs_f64(),
        anonymous_kib(daemon.pid())?.saturating_sub(before_kib)
    );
    for loader in &mut loaders {
        loader.read_json()?;
    }
    memtrace_tests::until("the late calls", late, || {
        let dump = daemon.dump_by_socket()?;
        dump.check_conservation()?;
        loaders.iter().try_for_each(|loader| check_late_calls(dump.process(loader.pid())?, 10))
    })
}
