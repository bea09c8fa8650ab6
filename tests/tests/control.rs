//! The kill switch: tracing stops at once, says so everywhere, and goes on with books that have
//! kept what they had; and a probe that fires too often is taken away for a while.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::{Coverage, Dump, amount};
use memtrace_tests::fixture::{self, Fixtures, Variant};
use memtrace_tests::memtrace::LIMIT;
use memtrace_tests::process::Running;
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;

const KERNEL: &str = env!("CARGO_BIN_EXE_fixture-kernel");
const LATE: Duration = Duration::from_secs(40);

fn held(fixtures: &Fixtures, arguments: &[&str]) -> Result<(Running, Truth)> {
    let mut client = Command::new(fixtures.client());
    let mut client = Running::start_talking(client.args(arguments).arg("--hold"))?;
    let truth = Truth::parse(client.read_json()?)?;
    Ok((client, truth))
}

/// Attachments that a process holds in the kernel.
fn links(pid: u32) -> Result<usize> {
    let mut links = 0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // A descriptor that is closed meanwhile holds nothing.
        let text = std::fs::read_to_string(entry?.path()).unwrap_or_default();
        links += usize::from(text.lines().any(|line| line.starts_with("link_type:")));
    }
    Ok(links)
}

fn is_unknown(dump: &Dump, pid: u32) -> Result<()> {
    let process = dump.process(pid).ok();
    let seen = process.into_iter().flat_map(|one| one.domains.values());
    let seen: Vec<_> = seen.map(|terms| terms.terms.seen).filter(|seen| seen.count > 0).collect();
    ensure!(seen.is_empty(), "{pid} is on the books with {seen:?}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn tracing_stops_at_once_and_goes_on_with_what_the_books_had() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let daemon = Daemon::start_knowing(&fixtures)?;
    ensure!(links(daemon.pid())? > 0, "nothing is attached");
    let (stays, truth) = held(&fixtures, &["kinds"])?;
    let (mut ends, _) = held(&fixtures, &["kinds"])?;
    daemon.dump_until("the books", LATE, |dump| {
        truth.check_running(dump.process(stays.pid())?)?;
        dump.process(ends.pid()).map(|_| ())
    })?;

    let said = daemon.call("stop", &[])?.expect_status(0)?;
    assert!(said.stdout.contains("tracing is stopped"), "{said:?}");
    // A second time changes nothing.
    daemon.call("stop", &[])?.expect_status(0)?;
    memtrace_tests::until("nothing in the kernel is attached", LATE, || {
        let left = links(daemon.pid())?;
        ensure!(left == 0, "{left} links are left");
        Ok(())
    })?;
    let ready = daemon.get("/readyz")?;
    assert_eq!(ready.status, 503, "{ready:?}");
    assert!(ready.body.contains("memtrace resume"), "{ready:?}");
    assert_eq!(daemon.metric("memtrace_tracing ")?, 0.0);
    let status = daemon.call("status", &[])?.expect_status(0)?.stdout;
    assert!(status.contains("STOPPED"), "{status}");
    let (unseen, _) = held(&fixtures, &["kinds"])?;
    let mut kernel =
        Running::start_talking(Command::new(KERNEL).args(["resident", "1", "--hold"]))?;
    kernel.read_json()?;
    ends.go_on()?;
    ends.finish(LIMIT)?.expect_status(0)?;
    let dump = daemon.dump()?;
    assert!(dump.stopped_at.is_some(), "the dump does not say so");
    truth.check_running(dump.process(stays.pid())?)?;
    is_unknown(&dump, unseen.pid())?;
    is_unknown(&dump, kernel.pid())?;
    assert_eq!(dump.losses().get("stopped"), Some(&1), "{:?}", dump.losses());

    let said = daemon.call("resume", &[])?.expect_status(0)?;
    assert!(said.stdout.contains("tracing goes on"), "{said:?}");
    assert_eq!(daemon.get("/readyz")?.status, 200);
    memtrace_tests::until("the probes", LATE, || {
        let dump = daemon.dump()?;
        let row = dump.coverage_of(&fixtures.cudart())?;
        ensure!(row.attached, "{row:?}");
        Ok(())
    })?;
    let (again, truth_of_again) = held(&fixtures, &["kinds"])?;
    daemon.dump_until("the books after it", LATE, |dump| {
        ensure!(dump.stopped_at.is_none(), "still stopped");
        truth_of_again.check_running(dump.process(again.pid())?)?;
        truth.check_running(dump.process(stays.pid())?)?;
        // It has ended while nobody looked.
        ensure!(dump.process(ends.pid())?.ended, "{} is still running", ends.pid());
        is_unknown(dump, unseen.pid())?;
        let row = dump.coverage_of_process(unseen.pid())?;
        let reason = row.reason.as_deref().unwrap_or_default();
        ensure!(reason.contains("are not on the books"), "{row:?}");
        ensure!(dump.losses().get("stopped") == Some(&1), "{:?}", dump.losses());
        dump.check_conservation()
    })?;
    assert_eq!(daemon.metric("memtrace_tracing ")?, 1.0);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_switch_is_on_the_socket_alone_and_not_by_get() -> Result<()> {
    let daemon = Daemon::start()?;
    for name in ["stop", "resume"] {
        let path = format!("/api/v1/control/{name}");
        assert_eq!(daemon.get(&path)?.status, 405, "{path}");
        let answer = memtrace_tests::http::get_tcp(daemon.address(), &path, &[])?;
        assert_eq!(answer.status, 404, "{path} on TCP");
    }
    assert_eq!(daemon.get("/readyz")?.status, 200);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn probes_that_fire_too_often_are_away_for_a_while() -> Result<()> {
    let scratch = Scratch::new()?;
    let fixtures = fixture::build(Variant::Plain)?;
    // Copies: nobody else's calls fire their probes.
    let driver = scratch.copy(&fixtures.cuda())?;
    let runtime = scratch.copy(&fixtures.cudart())?;
    let program = scratch.copy(&fixtures.client())?;
    let own = Fixtures::at(scratch.path());
    let sections = "[ceiling]\nfirings_per_second = 1000\npause = '15s'\n".to_owned();
    let options = Options { configuration: Some(sections), ..Options::default() };
    let daemon = Daemon::start_with(&options.knowing(&own))?;
    assert_eq!(daemon.dump()?.lost("rate_ceiling")?, 0);
    // Who calls rarely keeps its books, although its files are the same.
    let mut quiet = Running::start_talking(Command::new(&program).args(["kinds", "--hold"]))?;
    let truly = Truth::parse(quiet.read_json()?)?.domain("cuda");
    // A call a millisecond.
    let mut busy = Command::new(&program);
    let busy = Running::start(busy.args(["slow-leak", "100000", "1000", "1"]))?;
    let has = |row: &Coverage, function: &str| row.functions.iter().any(|one| one == function);
    let rests = |dump: &Dump| -> Result<()> {
        for (library, gives) in [(&runtime, "cudaMalloc"), (&driver, "cuMemAlloc_v2")] {
            let row = dump.coverage_of(library)?;
            let reason = row.reason.as_deref().unwrap_or_default();
            ensure!(reason.contains("times a second"), "{row:?}");
            ensure!(!has(row, gives) && row.attached, "{row:?}");
        }
        ensure!(has(dump.coverage_of(&runtime)?, "cudaHostAlloc"), "{:?}", dump.coverage);
        let row = dump.coverage_of_process(busy.pid())?;
        ensure!(row.attached && row.reason.is_some(), "{row:?}");
        Ok(())
    };
    daemon.dump_until("the probes to be away", LATE, rests)?;
    let seen = |dump: &Dump| -> Result<u64> {
        Ok(dump.process(busy.pid())?.domain("cuda").terms.seen.count)
    };
    let first = daemon.dump()?;
    std::thread::sleep(Duration::from_secs(2));
    let second = daemon.dump()?;
    rests(&second)?;
    assert_eq!(seen(&first)?, seen(&second)?, "calls are seen although the probes are away");
    assert_eq!(second.lost("rate_ceiling")?, 1);
    // What may be freed meanwhile is not kept as if it stayed.
    let terms = second.process(busy.pid())?.domain("cuda").terms;
    assert_eq!((terms.live, terms.freed_unseen), (amount(0, 0), terms.seen));
    let kept = second.process(quiet.pid())?.domain("cuda").terms;
    assert_eq!((kept.live, kept.freed_unseen), (truly.live, amount(0, 0)));
    second.check_conservation()?;
    // Who uses other functions of these files is on the books as before.
    let mut quiet = Running::start_talking(Command::new(&program).args(["kinds", "--hold"]))?;
    let truth = Truth::parse(quiet.read_json()?)?;
    daemon.dump_until("pinned memory of another process", LATE, |dump| {
        let process = dump.process(quiet.pid())?;
        let (seen, truly) = (process.domain("pinned").terms.seen, truth.domain("pinned").seen);
        ensure!(seen == truly, "{seen:?}, truly {truly:?}");
        dump.check_conservation()
    })?;
    drop(busy);
    daemon.dump_until("the probes to be back", LATE, |dump| {
        for (library, gives) in [(&runtime, "cudaMalloc"), (&driver, "cuMemAlloc_v2")] {
            let row = dump.coverage_of(library)?;
            ensure!(has(row, gives) && row.reason.is_none(), "{row:?}");
        }
        Ok(())
    })?;
    let mut again = Running::start_talking(Command::new(&program).args(["kinds", "--hold"]))?;
    let truth = Truth::parse(again.read_json()?)?;
    daemon.dump_until("books to the byte", LATE, |dump| {
        truth.check_running(dump.process(again.pid())?)
    })?;
    Ok(())
}
