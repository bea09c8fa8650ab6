//! Interpreters that call a library: native frames down to `_start`, and the names of the
//! interpreted functions where the interpreter leaves a perf map.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::Daemon;
use memtrace_tests::dump::{Frame, Process, Site};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{Run, Traced};
use memtrace_tests::process::Running;
use memtrace_tests::scratch::Scratch;
use memtrace_tests::stacks::build::{self, USUAL};
use memtrace_tests::stacks::compare::{Comparison, Table, Wanted};
use memtrace_tests::stacks::names::Names;
use memtrace_tests::stacks::notes::Notes;
use memtrace_tests::stacks::programs::{PerfMap, node, pythons};

const LATE: Duration = Duration::from_secs(20);

fn source(name: &str) -> PathBuf {
    memtrace_tests::paths::workspace().join("tests/fixtures/stacks").join(name)
}

/// Runs `leak.py` in an interpreter.
fn python(interpreter: &Path, options: &[&str]) -> Result<(Traced, Notes)> {
    let library = build::build(USUAL)?.file("libnoted.so");
    let cudart = fixture::build(Variant::Plain)?.cudart();
    let run = Run::new("cuda").option("--library").option(&cudart);
    let mut arguments: Vec<OsString> = options.iter().map(OsString::from).collect();
    arguments.extend([source("leak.py").into(), library.into(), cudart.into()]);
    let traced = run.trace(interpreter, arguments)?;
    let notes = Notes::parse(&traced.said.last_json()?)?;
    traced.dump.check_conservation()?;
    ensure!(traced.dump.losses().is_empty(), "lost: {:?}", traced.dump.losses());
    Ok((traced, notes))
}

fn of_bytes(process: &Process, bytes: u64) -> Result<&Site> {
    let site = process.sites("cuda").find(|site| site.allocated_bytes == bytes);
    site.with_context(|| format!("no site of {bytes} bytes"))
}

/// A stack is whole, and its last frame is where the thread or the program began.
fn check_ends(site: &Site, function: &str) -> Result<()> {
    let stack = site.stack.as_ref().context("it is not said how the stack was taken")?;
    ensure!(stack.complete, "not whole: {:?}\n{:#?}", stack.reason, site.frames);
    let last = site.frames.last().context("no frames")?;
    // libc has its threads' first function as a symbol of its own, and exports it on some
    // systems only.
    let named = last.symbol.as_deref() == Some(function) || last.symbol.is_none();
    let module = last.module.as_deref().unwrap_or_default();
    let place =
        if function == "_start" { module.contains("python") } else { module.contains("libc") };
    ensure!(named && place, "the last frame is {last:?}");
    Ok(())
}

/// All native frames against the notes, and the ends of the stacks that nobody noted.
fn check_native(table: &mut Table, interpreter: &Path, options: &[&str]) -> Result<()> {
    let (traced, mut notes) = python(interpreter, options)?;
    let _map = PerfMap::of(notes.pid);
    let process = traced.process()?;
    let straight = of_bytes(process, 1_002)?;
    let variant = format!("{} {}", interpreter.display(), options.join(" "));
    let line = format!("{variant} | cudaMalloc by ctypes | {} / ?", straight.calls().len());
    table.add_line(line, check_ends(straight, "_start"));
    let names = names_of_ours(&notes)?;
    let noted = notes.notes.len();
    ensure!(noted == 3, "{noted} notes");
    for note in &mut notes.notes {
        note.name = format!("{} of {} bytes", note.name, note.bytes);
    }
    // The one that nobody noted is compared above.
    let mut process = process.clone();
    process.sites.retain(|site| site.allocated_bytes != 1_002);
    table.add(&Comparison {
        variant: &variant,
        process: &process,
        notes: &notes,
        names: &names,
        wanted: Wanted::Exact,
        cut_off: &[],
    });
    let thread = of_bytes(&process, 1_003)?;
    table.add_line(format!("{variant} | thread's first function"), check_ends(thread, "clone3"));
    Ok(())
}

/// The names in our own library; those of interpreters are found by their places.
fn names_of_ours(notes: &Notes) -> Result<Names> {
    let built = build::build(USUAL)?.file("libnoted.so");
    let library = std::fs::canonicalize(&built)?;
    Names::of(&notes.notes, &library, Path::to_path_buf)
}

fn every_python(version: &str) -> Result<()> {
    let mut table = Table::default();
    for interpreter in pythons(version)? {
        check_native(&mut table, &interpreter, &[])
            .with_context(|| interpreter.display().to_string())?;
    }
    table.finish()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn native_frames_of_python_3_11_are_whole() -> Result<()> {
    every_python("3.11")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn native_frames_of_python_3_13_are_whole() -> Result<()> {
    every_python("3.13")
}

/// The frames of an interpreter's functions.
fn interpreted(site: &Site) -> Vec<&Frame> {
    site.frames.iter().filter(|frame| frame.kind == "python").collect()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn functions_of_python_3_13_with_a_perf_map_are_frames() -> Result<()> {
    const NOTED: &[&str] = &["keep_a_noted_block", "handle_request", "serve", "<module>"];
    const STRAIGHT: &[&str] = &["keep_a_block", "handle_request", "serve", "<module>"];
    const THREAD: &[&str] = &["keep_a_noted_block", "Thread.run", "Thread._bootstrap_inner"];
    const SORTED: &[&str] = &["keep_a_noted_block", "sort_key", "serve", "<module>"];
    let library = build::build(USUAL)?.file("libnoted.so");
    let fixtures = fixture::build(Variant::Plain)?;
    let daemon = Daemon::start_knowing(&fixtures)?;
    for interpreter in pythons("3.13")? {
        let mut command = Command::new(&interpreter);
        command.args(["-X", "perf"]).arg(source("leak.py")).arg(&library).arg(fixtures.cudart());
        let mut running = Running::start_talking(&mut command)?;
        let notes = Notes::parse(&running.read_json()?)?;
        let _map = PerfMap::of(notes.pid);
        daemon.dump_until("names of Python's functions", LATE, |dump| {
            let process = dump.process(notes.pid)?;
            for (bytes, truth) in
                [(1_001, NOTED), (1_002, STRAIGHT), (1_003, THREAD), (1_004, SORTED)]
            {
                let site = of_bytes(process, bytes)?;
                let frames = interpreted(site);
                let names: Vec<_> = frames.iter().filter_map(|one| one.symbol.as_deref()).collect();
                ensure!(names.starts_with(truth), "{names:?}, truly {truth:?}\n{:#?}", site.frames);
                let here = frames.first().and_then(|one| one.file.as_deref());
                ensure!(here.is_some_and(|file| file.ends_with("leak.py")), "{frames:#?}");
            }
            let site = of_bytes(process, 1_001)?;
            println!("{} -X perf | {:?}", interpreter.display(), site.stack);
            ensure!(site.passes("noted_malloc"), "native frames are there as well: {site:#?}");
            let last = site.frames.last().and_then(|one| one.symbol.as_deref());
            ensure!(last == Some("_start"), "{:#?}", site.frames);
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn functions_of_node_with_a_perf_map_are_frames() -> Result<()> {
    // Enough for node to compile them: what it interprets has no code of its own to be named by.
    const CALLS: u64 = 2_000;
    let addon = build::build(USUAL)?.file("leak.node");
    let daemon = Daemon::start_knowing(&fixture::build(Variant::Plain)?)?;
    // It leaves a log where it runs.
    let scratch = Scratch::new()?;
    let mut command = Command::new(node()?);
    // What is interpreted has no code of its own to be named by: every function is compiled.
    // What is inlined has none either.
    command.args(["--perf-basic-prof", "--always-sparkplug", "--no-opt"]);
    command.arg(source("leak.js")).arg(addon).arg(CALLS.to_string());
    let mut running = Running::start_talking(command.current_dir(scratch.path()))?;
    let _map = PerfMap::of(running.pid());
    running.read_json()?;
    daemon.dump_until("names of node's functions", LATE, |dump| {
        dump.check_conservation()?;
        check_node(dump.process(running.pid())?, CALLS)
    })
}

fn check_node(process: &Process, calls: u64) -> Result<()> {
    let all = process.all("cuda");
    ensure!(all.allocated.count == calls, "{all:?}");
    let named = |site: &Site, name: &str| {
        site.frames.iter().any(|one| one.symbol.as_ref().is_some_and(|own| own.contains(name)))
    };
    let compiled = process.sites("cuda").filter(|site| named(site, "handleRequest"));
    let compiled: u64 = compiled.map(|site| site.allocations).sum();
    ensure!(
        compiled > calls / 10 * 9,
        "only {compiled} of {calls} calls name the function: {:#?}",
        process
            .sites("cuda")
            .map(|site| (
                site.allocations,
                &site.stack,
                site.frames
                    .iter()
                    .map(|one| (one.symbol.as_ref(), one.reason.as_ref()))
                    .take(14)
                    .collect::<Vec<_>>()
            ))
            .collect::<Vec<_>>()
    );
    ensure!(process.sites("cuda").any(|site| named(site, "keepABlock")), "no keepABlock");
    Ok(())
}
