//! More stacks than anybody can keep names of: one site that leaks among 50,000 that do not.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::Daemon;
use memtrace_tests::dump::{Dump, Frame, Process, Site, amount, sums};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{LIMIT, Run};
use memtrace_tests::process;
use memtrace_tests::stacks::build::{self, USUAL};
use memtrace_tests::stacks::programs::anonymous_kib;

const LATE: Duration = Duration::from_secs(60);
/// The bound on anonymous memory: 64 MiB, as with 10,000 sites, and 1.6 KiB for each site more.
const MOST_KIB: u64 = (64 << 10) + 40_000 * 16 / 10;

const PATHS: u64 = 50_000;
/// A path in the middle; its bits say which function calls which.
const LEAKING: u64 = 31_337;
const TIMES: u64 = 50;

/// The functions on the way, innermost first: the path's bits from the highest one used on.
fn functions_of(path: u64) -> Vec<&'static str> {
    let levels = (0..16).rev().map(|level| if path >> level & 1 == 1 { "right" } else { "left" });
    // The first function is called with the whole path, whatever it is.
    levels.chain(["left", "main"]).collect()
}

/// Holds the leaking path's site against what is true, and looks for stacks that were merged.
fn check(process: &Process) -> Result<()> {
    let kept = amount(TIMES, TIMES * 777);
    let terms = process.domain("cuda").terms;
    let all = amount(PATHS - 1, (PATHS - 1) * 1_000) + kept;
    ensure!(terms.seen == all, "seen {:?} instead of {all:?}", terms.seen);
    let leaking: Vec<_> = process.sites("cuda").filter(|site| site.live_count > 0).collect();
    let live: Vec<_> = leaking.iter().map(|s| (s.live_count, s.live_bytes, &s.stack)).collect();
    let [site] = leaking.as_slice() else {
        anyhow::bail!("{} sites hold memory: {live:?}", leaking.len())
    };
    ensure!(amount(site.live_count, site.live_bytes) == kept, "live {live:?}");
    ensure!(amount(site.allocations, site.allocated_bytes) == kept, "{:?}", sums([*site]));
    let names: Vec<_> = site.frames.iter().filter_map(|frame| frame.symbol.as_deref()).collect();
    let truth = functions_of(LEAKING);
    ensure!(names.first() == Some(&"leaf"), "{names:?}");
    ensure!(names.get(1..=truth.len()) == Some(truth.as_slice()), "{names:?}, truly {truth:?}");
    ensure!(site.stack.as_ref().is_some_and(|stack| stack.complete), "{:?}", site.stack);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn one_leak_among_50_000_stacks_is_found_exact_and_within_bounds() -> Result<()> {
    let daemon = Daemon::start_knowing(&fixture::build(Variant::Plain)?)?;
    let mut command = Command::new(build::build(USUAL)?.file("tree"));
    command.args([PATHS, LEAKING, TIMES, 1].map(|number| number.to_string()));
    let said = process::run(&mut command, LIMIT)?.expect_status(0)?;
    let line = said.last_json()?;
    ensure!(line["kept"]["count"] == TIMES && line["kept"]["bytes"] == TIMES * 777, "{line}");
    let pid = line["pid"].as_u64().context("no pid")?.to_string();
    let seen = "memtrace_bytes_total{domain=\"cuda\",state=\"seen\"}";
    memtrace_tests::until("all calls", LATE, || {
        let (seen, all) = (daemon.metric(seen)?, (PATHS - 1) * 1_000 + TIMES * 777);
        ensure!(seen >= all as f64, "{seen} of {all} bytes");
        Ok(())
    })?;
    // A dump of all sites is large: looked at once before anybody asks for one.
    let at_first = anonymous_kib(daemon.pid())?;
    let dump = memtrace_tests::until("the leaking path", LATE, || {
        let arguments = ["--format", "json", "--domain", "cuda", "--pid", &pid];
        let dump = Dump::parse(&daemon.call("dump", &arguments)?.expect_status(0)?.stdout)?;
        check(dump.process(pid.parse()?)?)?;
        Ok(dump)
    })?;
    let process = dump.process(pid.parse()?)?;
    let by = |name: &str| {
        let by = |stack: &memtrace_tests::dump::Taken| stack.taken == name;
        process.sites("cuda").filter(|site| site.stack.as_ref().is_some_and(by)).count()
    };
    // A path was taken once: what has more calls is several paths, told apart no longer. Only
    // stacks that are known to be cheap ones may be.
    let merged = process.sites("cuda").filter(|site| {
        site.allocations > 1
            && site.live_count == 0
            && site.stack.as_ref().is_some_and(|s| s.complete)
    });
    let names = |site: &Site| -> Vec<String> {
        let name = |one: &Frame| one.symbol.clone().or_else(|| one.reason.clone());
        site.frames.iter().filter_map(name).collect()
    };
    let merged: Vec<_> =
        merged.map(|site| (site.allocations, &site.stack, names(site), &site.note)).collect();
    ensure!(merged.is_empty(), "{} sites of several paths: {merged:?}", merged.len());
    let anonymous = anonymous_kib(daemon.pid())?;
    println!(
        "{} sites: {} by copy, {} by walk, {} by frame pointers; lost: {:?}; anonymous memory \
         {at_first} KiB, after dumps {anonymous} KiB",
        process.sites("cuda").count(),
        by("copy"),
        by("walk"),
        by("frame_pointers"),
        dump.losses(),
    );
    // Programs on kmalloc and kfree are skipped where an interrupt meets them.
    let expected = ["stack_budget", "recursion"];
    let unexpected: Vec<_> =
        dump.losses().into_iter().filter(|(cause, _)| !expected.contains(cause)).collect();
    ensure!(unexpected.is_empty(), "lost: {unexpected:?}");
    ensure!(by("walk") > 0, "the kernel side walked no stack");
    ensure!(anonymous < MOST_KIB, "{anonymous} KiB of anonymous memory");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_path_is_one_site_whichever_way_its_stack_was_taken() -> Result<()> {
    const PATHS: u64 = 2_000;
    const ROUNDS: u64 = 10;
    let arguments = [PATHS, 613, 20, ROUNDS].map(|number| number.to_string());
    let traced = Run::new("cuda").trace(build::build(USUAL)?.file("tree"), arguments)?;
    traced.dump.check_conservation()?;
    ensure!(traced.dump.losses().is_empty(), "lost: {:?}", traced.dump.losses());
    let process = traced.process()?;
    let mut paths = BTreeMap::new();
    let mut ways = BTreeMap::new();
    for site in process.sites("cuda") {
        let names = site.frames.iter().filter_map(|frame| frame.symbol.as_deref());
        let levels: Vec<_> = names.skip(1).take(16).collect();
        let bits = levels.iter().fold(0_u64, |path, name| path << 1 | u64::from(*name == "right"));
        let stack = site.stack.as_ref().context("not said how the stack was taken")?;
        *ways.entry(&stack.taken).or_insert(0) += 1;
        ensure!(stack.complete, "{stack:?}");
        let calls = if bits == 613 { 20 } else { ROUNDS };
        ensure!(site.allocations == calls, "path {bits}: {} calls of {calls}", site.allocations);
        let before = paths.insert(bits, site.id.clone());
        ensure!(before.is_none(), "path {bits} is two sites: {before:?} and {:?}", site.id);
    }
    println!("{} sites: {ways:?}", paths.len());
    let walked = ways.iter().any(|(way, _)| *way == "walk");
    ensure!(walked, "the kernel side walked no stack: {ways:?}");
    ensure!(paths.keys().copied().eq(0..PATHS), "{} paths of {PATHS}", paths.len());
    Ok(())
}
