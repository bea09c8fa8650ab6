//! The reader of records stands still for 5 seconds while events pour in: numbers come late,
//! then they are exact again; what was lost for good is counted and called `unattributed`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::{Dump, amount, sums};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::ipc::Left;
use memtrace_tests::memtrace::LIMIT;
use memtrace_tests::process::Running;
use memtrace_tests::truth::{DOMAINS, Truth};

const KERNEL: &str = env!("CARGO_BIN_EXE_fixture-kernel");
/// More than the pause and what the reader needs afterwards.
const LATE: Duration = Duration::from_secs(60);

/// A daemon whose reader pauses from its fourth second on, for 5 seconds, over a small ring. However
/// often probes fire, they stay.
fn daemon_with_a_pause(ring_bytes: u32) -> Result<Daemon> {
    let options = Options {
        environment: vec![
            ("MEMTRACE_FAULT_READER_PAUSE", "3000:5000".to_owned()),
            ("MEMTRACE_TUNE_RING_BYTES", ring_bytes.to_string()),
        ],
        configuration: Some("[ceiling]\nfirings_per_second = 0\n".to_owned()),
    };
    Daemon::start_with(&options.knowing(&fixture::build(Variant::Plain)?))
}

/// The loss is in the dump, and `/metrics` says the same or, being asked later, more.
fn check_counted(daemon: &Daemon, dump: &Dump) -> Result<()> {
    let lost = dump.lost("ring_full")?;
    ensure!(lost > 0, "nothing was lost in 5 seconds: {:?}", dump.losses());
    let metric = daemon.metric("memtrace_lost_total{cause=\"ring_full\"}")?;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let lost = lost as f64;
    ensure!(metric >= lost, "the metric says {metric}, the dump {lost}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn kernel_books_are_late_and_then_exact_again() -> Result<()> {
    let daemon = daemon_with_a_pause(8_192)?;
    let mut flood = Running::start(Command::new(KERNEL).args(["flood", "8000", "1000"]))?;
    let pid = flood.pid();
    let line = flood.finish(LIMIT)?.expect_status(0)?.last_json()?;
    let _queues = Left::parse(&line)?;
    let sent = line["sent"].as_u64().context("no count")?;
    let received = line["received"].as_u64().context("no count")?;
    let dump = daemon.dump_until("exact kernel books", LATE, |dump| {
        dump.check_conservation()?;
        let books = dump.process(pid)?.called_in("kernel", "load_msg");
        ensure!(books.allocated == amount(sent, sent * 2_048), "sent {sent}: {books:?}");
        ensure!(books.freed == amount(received, received * 2_048), "got {received}: {books:?}");
        ensure!(books.live == amount(1_000, 2_048_000), "{books:?}");
        Ok(dump.clone())
    })?;
    check_counted(&daemon, &dump)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn totals_of_calls_are_exact_and_the_lost_part_is_unattributed() -> Result<()> {
    let daemon = daemon_with_a_pause(65_536)?;
    let client = fixture::build(Variant::Plain)?.client();
    let arguments = ["flood", "8000", "100", "--hold"];
    let mut flood = Running::start_talking(Command::new(client).args(arguments))?;
    let pid = flood.pid();
    let truth = Truth::parse(flood.read_json()?)?;
    let dump = daemon.dump_until("exact totals", LATE, |dump| {
        dump.check_conservation()?;
        let process = dump.process(pid)?;
        for domain in DOMAINS {
            let (terms, truth) = (process.domain(domain).terms, truth.domain(domain));
            let losses = dump.losses();
            ensure!(terms.seen == truth.seen, "{domain}: {terms:?}, truly {truth:?}, {losses:?}");
            ensure!(terms.freed == truth.freed, "{domain}: {terms:?}, truly {truth:?}");
            ensure!(terms.live == truth.live, "{domain}: {terms:?}, truly {truth:?}");
        }
        Ok(dump.clone())
    })?;
    check_counted(&daemon, &dump)?;

    let process = dump.process(pid)?;
    let lost = sums(process.sites("cuda").filter(|s| s.note.as_deref() == Some("unattributed")));
    assert!(lost.allocated.count > 0, "nothing is unattributed: {:?}", process.all("cuda"));
    let named = process.at("cuda", "site_a");
    assert!(named.allocated.count > 0, "nothing is attributed");
    let truly = truth.domain("cuda");
    assert_eq!(lost.allocated + named.allocated, truly.seen);
    assert_eq!(lost.live + named.live, truly.live);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_process_that_ends_while_the_reader_stands_still_is_closed() -> Result<()> {
    let daemon = daemon_with_a_pause(65_536)?;
    let client = fixture::build(Variant::Plain)?.client();
    // Fills the ring and ends well within the pause.
    let mut flood = Running::start(Command::new(client).args(["flood", "2500", "100"]))?;
    let pid = flood.pid();
    let truth = Truth::parse(flood.finish(LIMIT)?.expect_status(0)?.last_json()?)?;
    daemon.dump_until("an end that nobody read", LATE, |dump| {
        dump.check_conservation()?;
        let process = dump.process(pid)?;
        let terms = process.domain("cuda").terms;
        ensure!(process.ended, "{pid} has ended");
        ensure!(terms.seen == truth.domain("cuda").seen, "{terms:?}, truly {truth:?}");
        ensure!(terms.closed == truth.domain("cuda").live, "{terms:?}, truly {truth:?}");
        Ok(())
    })
}
