//! Kernel memory on the books, to the object and the byte, against what a fixture made of it.
//! Each test drives the release binary on the running kernel, as root; nothing is mocked.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::{Process, Site, Sums, amount, sums};
use memtrace_tests::ipc::Left;
use memtrace_tests::memtrace::{LIMIT, Run, Traced};
use memtrace_tests::process::{self, Running};
use memtrace_tests::slab;

const KERNEL: &str = env!("CARGO_BIN_EXE_fixture-kernel");

/// What the slab gives for a message of 1,000 bytes: 48 bytes of head, rounded up.
const SLAB: u64 = 2_048;
/// Counters arrive once a second; a busy machine gets more time.
const LATE: Duration = Duration::from_secs(20);

fn traced(options: &[&str], arguments: &[&str]) -> Result<Traced> {
    let run = options.iter().fold(Run::new("kernel"), |run, option| run.option(*option));
    let traced = run.trace(KERNEL, arguments)?;
    traced.dump.check_conservation()?;
    Ok(traced)
}

/// The site that a message is allocated at. `load_msg` calls it; what the slab takes for itself
/// below that is another site.
fn messages(process: &Process) -> Sums {
    process.called_in("kernel", "load_msg")
}

fn passes_something_of(site: &Site, part: &str) -> bool {
    site.frames.iter().any(|frame| frame.symbol.as_deref().is_some_and(|name| name.contains(part)))
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_thousand_kept_messages_are_live_to_the_byte_and_the_slab_agrees() -> Result<()> {
    // The slab counts what CPUs keep ready as used, so it is right to a few slabs of 16 a CPU,
    // before and after; and it is the whole host's: somebody else may free as much at this
    // moment, but hardly each time.
    let mut grown = Vec::new();
    for _ in 0..5 {
        let before = slab::active_objects(SLAB)?;
        let traced = traced(&[], &["keep", "1000", "1000"])?;
        let after = slab::active_objects(SLAB)?;

        let process = traced.process()?;
        let books = messages(process);
        assert_eq!(books.live, amount(1_000, 1_000 * SLAB));
        assert_eq!(books.allocated, amount(1_000, 1_000 * SLAB));
        assert_eq!(books.freed, amount(0, 0));
        assert!(process.ended, "the sender has ended");
        let growth = after.cast_signed() - before.cast_signed();
        if (850..=1_150).contains(&growth) {
            return Ok(());
        }
        grown.push(growth);
    }
    anyhow::bail!("the slab grew by {grown:?} objects of {SLAB} bytes, never by 1,000")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn received_messages_are_freed_and_none_is_live() -> Result<()> {
    let traced = traced(&[], &["receive", "1000", "1000"])?;
    let books = messages(traced.process()?);
    assert_eq!(books.allocated, amount(1_000, 1_000 * SLAB));
    assert_eq!(books.freed, amount(1_000, 1_000 * SLAB));
    assert_eq!(books.live, amount(0, 0));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_daemon_sees_messages_come_and_go_in_a_running_process() -> Result<()> {
    let daemon = Daemon::start()?;
    let arguments = ["receive", "1000", "1000", "--hold"];
    let mut sender = Running::start_talking(Command::new(KERNEL).args(arguments))?;
    let pid = sender.pid();
    let live = |expected: u64| {
        daemon.dump_until("messages on the books", LATE, |dump| {
            dump.check_conservation()?;
            let process = dump.process(pid)?;
            let books = messages(process);
            ensure!(!process.ended, "the sender runs");
            ensure!(books.live == amount(expected, expected * SLAB), "{books:?}");
            ensure!(books.allocated == amount(1_000, 1_000 * SLAB), "{books:?}");
            Ok(())
        })
    };
    sender.read_json()?;
    live(1_000)?;
    sender.go_on()?;
    sender.read_json()?;
    live(0)?;
    sender.go_on()?;
    assert_eq!(sender.finish(LIMIT)?.status, 0);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn messages_of_an_ended_process_stay_until_somebody_else_frees_them() -> Result<()> {
    let daemon = Daemon::start()?;
    let mut sender = Running::start(Command::new(KERNEL).args(["keep", "1000", "1000"]))?;
    let pid = sender.pid();
    let mut queues = Left::parse(&sender.finish(LIMIT)?.expect_status(0)?.last_json()?)?;
    let live = |expected: u64| {
        daemon.dump_until("messages of an ended process", LATE, |dump| {
            dump.check_conservation()?;
            let process = dump.process(pid)?;
            let books = messages(process);
            ensure!(process.ended && process.ended_at.is_some(), "the sender has ended");
            ensure!(books.live == amount(expected, expected * SLAB), "{books:?}");
            Ok(())
        })
    };
    live(1_000)?;
    queues.remove()?;
    live(0)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn one_call_site_reached_by_two_paths_is_one_netted_account() -> Result<()> {
    let traced = traced(&[], &["both-paths", "100", "1000"])?;
    let process = traced.process()?;
    let rows: Vec<&Site> = process.sites("kernel").filter(|s| s.is_in("load_msg")).collect();
    assert_eq!(rows.len(), 1, "{rows:#?}");
    assert_eq!(sums(rows.iter().copied()).live, amount(200, 200 * SLAB));
    assert!(rows[0].frames_sampled, "its stack is one of several");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn one_call_site_reached_by_two_paths_is_two_exact_sites() -> Result<()> {
    let traced = traced(&["--exact"], &["both-paths", "100", "1000"])?;
    let process = traced.process()?;
    for path in ["msgsnd", "mq_timedsend"] {
        let rows: Vec<&Site> = process
            .sites("kernel")
            .filter(|site| site.is_in("load_msg") && passes_something_of(site, path))
            .collect();
        assert_eq!(rows.len(), 1, "{path}: {rows:#?}");
        assert_eq!(sums(rows.iter().copied()).live, amount(100, 100 * SLAB), "{path}");
        assert!(!rows[0].frames_sampled, "{path}: an exact site has one stack");
    }
    assert_eq!(messages(process).live, amount(200, 200 * SLAB));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn eventfds_left_to_the_exit_are_freed_after_settling() -> Result<()> {
    let traced = traced(&[], &["eventfds", "5000"])?;
    let process = traced.process()?;
    let books = process.called_in("kernel", "do_eventfd");
    assert_eq!(books.allocated.count, 5_000);
    assert_eq!(books.freed, books.allocated);
    assert_eq!(books.live, amount(0, 0));
    // What else the process took is gone too, but for a few objects that others hold on to.
    let live = process.all("kernel").live;
    assert!(live.count < 100, "{live:?} live in all");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn descriptors_held_by_a_running_process_are_live() -> Result<()> {
    let daemon = Daemon::start()?;
    let mut holder =
        Running::start_talking(Command::new(KERNEL).args(["eventfds", "5000", "--hold"]))?;
    holder.read_json()?;
    daemon.dump_until("5,000 eventfds", LATE, |dump| {
        let books = dump.process(holder.pid())?.called_in("kernel", "do_eventfd");
        ensure!(books.live.count == 5_000 && books.freed.count == 0, "{books:?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn memory_freed_by_rcu_is_never_called_a_leak() -> Result<()> {
    let traced = traced(&[], &["epoll-loop", "20000"])?;
    let process = traced.process()?;
    let books = process.called_in("kernel", "do_epoll_create");
    assert_eq!(books.allocated.count, 20_000);
    let verdicts: Vec<_> = process.sites.iter().map(|site| site.verdict.as_str()).collect();
    assert!(!verdicts.contains(&"leak"), "{verdicts:?}");
    assert!(!traced.dump.findings.iter().any(|finding| finding.verdict == "leak"));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn named_caches_are_booked_only_when_asked_for() -> Result<()> {
    let of_caches = |traced: &Traced| -> Result<u64> {
        let sites = traced.process()?.sites("kernel").filter(|s| s.api == "kmem_cache_alloc");
        Ok(sums(sites).allocated.count)
    };
    assert_eq!(of_caches(&traced(&[], &["eventfds", "1000"])?)?, 0);
    let asked = of_caches(&traced(&["--kmem-cache"], &["eventfds", "1000"])?)?;
    assert!(asked >= 1_000, "an eventfd has a struct file at least; {asked} seen");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn objects_of_a_named_cache_are_booked_to_the_byte_and_freed() -> Result<()> {
    let path = "/sys/kernel/slab/eventpoll_pwq/object_size";
    let size: u64 = std::fs::read_to_string(path).context(path)?.trim().parse()?;
    let configuration = Some("kmem_cache = true\n".to_owned());
    let daemon = Daemon::start_with(&Options { configuration, ..Options::default() })?;
    let arguments = ["waits", "1000", "--hold"];
    let mut waiting = Running::start_talking(Command::new(KERNEL).args(arguments))?;
    let pid = waiting.pid();
    let live = |expected: u64| {
        daemon.dump_until("objects of a named cache", LATE, |dump| {
            dump.check_conservation()?;
            let books = dump.process(pid)?.called_in("kernel", "ep_ptable_queue_proc");
            ensure!(books.allocated == amount(1_000, 1_000 * size), "{books:?}");
            ensure!(books.live == amount(expected, expected * size), "{books:?}");
            ensure!(books.freed == amount(1_000 - expected, (1_000 - expected) * size));
            Ok(())
        })
    };
    waiting.read_json()?;
    live(1_000)?;
    waiting.go_on()?;
    waiting.read_json()?;
    live(0)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_an_interrupt_takes_is_not_blamed_on_who_happened_to_run() -> Result<()> {
    // Over loopback the sender itself is interrupted to take its request in and to answer it:
    // one buffer each, of one size, from one function.
    const PINGS: u64 = 500;
    const BUFFER: u64 = 2_048;
    let daemon = Daemon::start()?;
    let mut sender =
        Running::start_talking(Command::new(KERNEL).args(["pings", "500", "1000", "--hold"]))?;
    sender.read_json()?;
    let buffers = |process: &Process, context: &str, through: &str| {
        sums(process.sites("kernel").filter(|site| {
            site.is_in("__alloc_skb")
                && site.context == context
                && passes_something_of(site, through)
        }))
    };
    daemon.dump_until("buffers of requests and answers", LATE, |dump| {
        dump.check_conservation()?;
        let own = dump.process(sender.pid())?;
        let requests = buffers(own, "process", "raw_sendmsg");
        ensure!(requests.allocated == amount(PINGS, PINGS * BUFFER), "{requests:?}");
        let blamed = buffers(own, "process", "icmp");
        ensure!(blamed.rows == 0, "{blamed:?}");
        ensure!(own.sites("kernel").all(|site| site.context == "process"), "{:#?}", own.sites);
        let nobody = dump.processes.iter().find(|one| one.comm == "[interrupt]");
        let answers = buffers(nobody.context("no [interrupt]")?, "interrupt", "icmp");
        ensure!(answers.allocated == amount(PINGS, PINGS * BUFFER), "{answers:?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_a_kernel_thread_takes_is_a_workers() -> Result<()> {
    let daemon = Daemon::start()?;
    daemon.dump_until("memory that a kernel thread took", LATE, |dump| {
        // A network namespace is taken down by a kernel thread, which announces the end of its
        // interfaces.
        process::run(Command::new("unshare").args(["--net", "true"]), LIMIT)?.expect_status(0)?;
        dump.check_conservation()?;
        let sites = dump.processes.iter().flat_map(|one| one.sites("kernel"));
        let mut workers = sites.filter(|site| site.context == "worker");
        ensure!(workers.any(|site| passes_something_of(site, "kthread")), "none yet");
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn run_books_the_command_and_its_children_and_nobody_else() -> Result<()> {
    let script = format!("{KERNEL} receive 100 1000; {KERNEL} receive 50 1000");
    let traced = Run::new("kernel").trace("/bin/sh", ["-c", &script])?;
    let own = std::process::id();
    let mut sent = 0;
    for process in &traced.dump.processes {
        ensure!(process.pid != own, "the suite itself is on the books");
        sent += messages(process).allocated.count;
    }
    assert_eq!(sent, 150);
    traced.dump.check_conservation()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_daemon_never_books_itself() -> Result<()> {
    let daemon = Daemon::start()?;
    let mut holder =
        Running::start_talking(Command::new(KERNEL).args(["eventfds", "100", "--hold"]))?;
    holder.read_json()?;
    let own = daemon.pid();
    daemon.dump_until("a first process", LATE, |dump| dump.process(holder.pid()).map(|_| ()))?;
    let dump = daemon.dump()?;
    let booked = dump.processes.iter().find(|one| one.pid == own);
    let booked = booked.map(|one| one.all("kernel").allocated.count).unwrap_or_default();
    assert_eq!(booked, 0);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_kernel_site_has_the_same_id_in_every_run() -> Result<()> {
    let id = || -> Result<String> {
        let traced = traced(&[], &["receive", "10", "1000"])?;
        let process = traced.process()?;
        let site = process.sites("kernel").find(|site| site.is_in("load_msg"));
        site.and_then(|site| site.id.clone()).context("no id at load_msg")
    };
    assert_eq!(id()?, id()?);
    Ok(())
}
