//! A budget of copied stacks that is spent: stacks are then taken by frame pointers, say so and
//! are counted, and the books are as exact as ever.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::amount;
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::LIMIT;
use memtrace_tests::process;
use memtrace_tests::truth::Truth;

const LATE: Duration = Duration::from_secs(20);

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_is_beyond_the_budget_is_taken_by_frame_pointers_and_says_so() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let libraries = [fixtures.cudart(), fixtures.cuda()];
    let configuration =
        Some(format!("libraries = {libraries:?}\n[stacks]\ncopy_bytes_per_second = 0\n"));
    let daemon = Daemon::start_with(&Options { configuration, ..Options::default() })?;
    let mut client = Command::new(fixtures.client());
    let said = process::run(client.args(["threads", "50", "1000"]), LIMIT)?.expect_status(0)?;
    let truth = Truth::parse(said.last_json()?)?;
    daemon.dump_until("stacks by frame pointers", LATE, |dump| {
        dump.check_conservation()?;
        let process = dump.process(truth.pid)?;
        truth.check_ended(process)?;
        ensure!(process.at("cuda", "site_a").live == amount(50, 50_000));
        for site in process.sites("cuda") {
            let stack = site.stack.as_ref().context("no stack")?;
            ensure!(stack.taken == "frame_pointers" && !stack.complete, "{stack:?}");
            let reason = stack.reason.as_deref().unwrap_or_default();
            ensure!(reason.starts_with("stack_budget"), "{reason}");
        }
        let calls = process.domain("cuda").terms.seen.count;
        let lost = dump.losses();
        ensure!(lost.get("stack_budget") == Some(&calls), "{calls} calls, lost {lost:?}");
        ensure!(!lost.contains_key("ring_full"), "{lost:?}");
        Ok(())
    })?;
    Ok(())
}
