//! Rule 6 of the books, after a mixed workload of 8 threads: seen = live + freed + closed +
//! freed_unseen + dropped, in bytes and counts, with `seen` against the fixture's own count; and
//! the same where every failing branch of the kernel side is made to fail.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use memtrace_daemon::catalog;
use memtrace_tests::daemon::Daemon;
use memtrace_tests::dump::{Amount, ProcessTerms, Site, amount, sums};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{LIMIT, Run, Traced};
use memtrace_tests::process::Running;
use memtrace_tests::truth::{DOMAINS, Truth};

const KERNEL: &str = env!("CARGO_BIN_EXE_fixture-kernel");
const CALLS: &str = "cuda,managed,pinned";
const LATE: Duration = Duration::from_secs(30);

fn mixed(run: &Run, variant: Variant) -> Result<Traced> {
    let client = fixture::build(variant)?.client();
    let traced = run.trace(client, ["mixed", "8", "5000", "11"])?;
    traced.dump.check_conservation()?;
    Ok(traced)
}

/// What was seen is what the stub gave, whatever happened to it afterwards.
fn check_seen(traced: &Traced) -> Result<()> {
    let (truth, process) = (traced.truth()?, traced.process()?);
    for domain in DOMAINS {
        let (seen, truly) = (process.domain(domain).terms.seen, truth.domain(domain).seen);
        ensure!(truly.count > 0, "the workload did not use {domain}");
        ensure!(seen == truly, "{domain}: seen {seen:?}, truly {truly:?}");
    }
    Ok(())
}

fn is_unattributed(site: &Site) -> bool {
    site.note.as_deref() == Some("unattributed")
}

fn dropped(traced: &Traced) -> Result<Amount> {
    let process = traced.process()?;
    Ok(DOMAINS.iter().map(|domain| process.domain(domain).terms.dropped).sum())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_mixed_workload_of_eight_threads_is_exact() -> Result<()> {
    for variant in [Variant::Plain, Variant::Endbr, Variant::TailCall] {
        // Room for all 20,000 stacks, should the reader not run meanwhile: nothing may be lost.
        let run = Run::new(CALLS).switch("MEMTRACE_TUNE_RING_BYTES", 32 << 20);
        let traced = mixed(&run, variant)?;
        check_seen(&traced)?;
        let mut lost = traced.dump.losses();
        // A stub is called faster than stacks are unwound: some are taken by frame pointers.
        lost.remove("stack_budget");
        assert!(lost.is_empty(), "{variant:?}: {lost:?}");
        traced.truth()?.check_ended(traced.process()?)?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_mixed_workload_is_exact_while_it_is_still_held() -> Result<()> {
    let daemon = Daemon::start_knowing(&fixture::build(Variant::Plain)?)?;
    let client = fixture::build(Variant::Plain)?.client();
    let arguments = ["mixed", "8", "5000", "12", "--hold"];
    let mut client = Running::start_talking(Command::new(client).args(arguments))?;
    let truth = Truth::parse(client.read_json()?)?;
    daemon.dump_until("a mixed workload", LATE, |dump| {
        dump.check_conservation()?;
        truth.check_running(dump.process(client.pid())?)
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_full_map_of_live_calls_drops_and_says_how_much() -> Result<()> {
    let run = Run::new(CALLS).switch("MEMTRACE_TUNE_CALL_LIVE_ENTRIES", 64);
    let traced = mixed(&run, Variant::Plain)?;
    check_seen(&traced)?;
    let dropped = dropped(&traced)?;
    let lost = traced.dump.loss["live_map_full"];
    assert!(dropped.count > 0, "64 entries were enough");
    assert_eq!((lost.count, lost.bytes), (dropped.count, Some(dropped.bytes)));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_tiny_ring_loses_records_and_no_number() -> Result<()> {
    let run = Run::new(CALLS).switch("MEMTRACE_TUNE_RING_BYTES", 4_096);
    let traced = mixed(&run, Variant::Plain)?;
    check_seen(&traced)?;
    assert!(traced.dump.lost("ring_full")? > 0, "4,096 bytes were enough");
    let (truth, process) = (traced.truth()?, traced.process()?);
    for domain in DOMAINS {
        let ProcessTerms { terms, failures, unknown_frees, .. } = process.domain(domain);
        let truth = truth.domain(domain);
        assert_eq!(terms.freed, truth.freed, "{domain}");
        assert_eq!(terms.freed_unseen, truth.freed_unseen, "{domain}");
        assert_eq!(terms.closed, truth.live, "{domain}");
        assert_eq!(terms.dropped, amount(0, 0), "{domain}");
        assert_eq!((failures, unknown_frees), (0, 0), "{domain}");
        assert_eq!(process.all(domain).live, truth.live, "{domain}: with what is unattributed");
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_full_map_of_totals_makes_whose_it_is_unknown_and_no_sum_wrong() -> Result<()> {
    // The common rows, one a function of the catalog, and two for all processes.
    let rows = catalog::booked().count() + 2;
    let run = Run::new(CALLS).switch("MEMTRACE_TUNE_TOTALS", rows);
    let traced = mixed(&run, Variant::Plain)?;
    let (truth, process) = (traced.truth()?, traced.process()?);
    let unknown = traced.dump.process(0)?;
    let mut common = Amount::default();
    for domain in DOMAINS {
        let (own, rest) = (process.domain(domain).terms, unknown.domain(domain).terms);
        let truth = truth.domain(domain);
        assert_eq!(own.seen + rest.seen, truth.seen, "{domain}");
        assert_eq!(own.freed + rest.freed, truth.freed, "{domain}");
        assert_eq!(own.closed + rest.live + rest.freed_unseen, truth.live, "{domain}");
        let sites = sums(unknown.sites(domain).filter(|site| is_unattributed(site)));
        assert_eq!(sites.allocated, rest.seen, "{domain}");
        common = common + rest.seen;
    }
    let lost = traced.dump.loss["account_map_full"];
    assert!(lost.count > 0, "two rows were enough");
    assert_eq!((lost.count, lost.bytes), (common.count, Some(common.bytes)));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_full_map_of_processes_is_counted_as_a_loss() -> Result<()> {
    let script = format!("for i in 1 2 3 4 5 6 7 8; do {KERNEL} receive 20 1000 & done; wait");
    let run = Run::new("kernel").switch("MEMTRACE_TUNE_PROCESSES", 2);
    let traced = run.trace("/bin/sh", ["-c", &script])?;
    traced.dump.check_conservation()?;
    assert!(traced.dump.lost("unknown_process")? > 0, "{:?}", traced.dump.losses());
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn kernel_memory_of_eight_threads_is_exact() -> Result<()> {
    for exact in [false, true] {
        let run = if exact { Run::new("kernel").option("--exact") } else { Run::new("kernel") };
        let traced = run.trace(KERNEL, ["mixed", "8", "200"])?;
        traced.dump.check_conservation()?;
        let books = traced.process()?.called_in("kernel", "load_msg");
        assert_eq!(books.allocated.count, 8 * 200 * 5, "exact: {exact}");
        assert_eq!(books.freed, books.allocated, "exact: {exact}");
        assert_eq!(books.live, amount(0, 0), "exact: {exact}");
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_full_map_of_live_kernel_memory_drops_and_says_how_much() -> Result<()> {
    let run = Run::new("kernel").switch("MEMTRACE_TUNE_KERNEL_LIVE_ENTRIES", 256);
    let traced = run.trace(KERNEL, ["keep", "1000", "1000"])?;
    traced.dump.check_conservation()?;
    let terms = traced.process()?.domain("kernel").terms;
    assert!(terms.seen.count >= 1_000, "{terms:?}");
    assert!(terms.dropped.count >= 700, "at most 256 of 1,000 fit: {terms:?}");
    let all = traced.dump.domains["kernel"].dropped;
    let lost = traced.dump.loss["live_map_full"];
    assert_eq!((lost.count, lost.bytes), (all.count, Some(all.bytes)));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_full_map_of_accounts_makes_sites_unknown_and_no_sum_wrong() -> Result<()> {
    let run = Run::new("kernel").switch("MEMTRACE_TUNE_ACCOUNTS", 4);
    let traced = run.trace(KERNEL, ["keep", "1000", "1000"])?;
    traced.dump.check_conservation()?;
    let host = traced.dump.domains["kernel"];
    assert!(host.seen.count >= 1_000, "{host:?}");
    assert!(host.live.bytes >= 1_000 * 2_048, "the messages are followed: {host:?}");
    assert_eq!(host.dropped, amount(0, 0));
    let unknown = traced.dump.process(0)?;
    let sites = sums(unknown.sites("kernel").filter(|site| is_unattributed(site)));
    let lost = traced.dump.loss["account_map_full"];
    assert!(lost.count > 0, "4 accounts were enough");
    assert_eq!((lost.count, lost.bytes), (sites.allocated.count, Some(sites.allocated.bytes)));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_tiny_ring_loses_no_kernel_number() -> Result<()> {
    let run = Run::new("kernel").switch("MEMTRACE_TUNE_RING_BYTES", 4_096);
    let traced = run.trace(KERNEL, ["keep", "1000", "1000"])?;
    traced.dump.check_conservation()?;
    assert_eq!(traced.process()?.called_in("kernel", "load_msg").live, amount(1_000, 2_048_000));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_hosts_books_are_conserved_while_everybody_works() -> Result<()> {
    let daemon = Daemon::start_knowing(&fixture::build(Variant::Plain)?)?;
    let client = fixture::build(Variant::Plain)?.client();
    let mut calls = Running::start(Command::new(client).args(["mixed", "8", "20000", "13"]))?;
    let mut messages = Running::start(Command::new(KERNEL).args(["mixed", "8", "400"]))?;
    while calls.ended()?.is_none() || messages.ended()?.is_none() {
        daemon.dump()?.check_conservation()?;
        std::thread::sleep(Duration::from_millis(200));
    }
    calls.finish(LIMIT)?.expect_status(0)?;
    messages.finish(LIMIT)?.expect_status(0)?;
    let dump = daemon.dump()?;
    dump.check_conservation()?;
    // Kernel memory of interrupts and of everybody adds up to the host's.
    let sites = dump.processes.iter().flat_map(|process| process.sites("kernel"));
    assert!(sums(sites).allocated.count <= dump.domains["kernel"].seen.count);
    Ok(())
}
