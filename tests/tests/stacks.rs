//! Stacks of compiled programs, held against what the programs noted of themselves with glibc's
//! `backtrace()`: same depth, same places, same functions. `--nocapture` shows the tables.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::Process;
use memtrace_tests::memtrace::{LIMIT, Run, Traced};
use memtrace_tests::process::{self, Running};
use memtrace_tests::stacks::build::{self, Flavour, USUAL};
use memtrace_tests::stacks::compare::{Comparison, Table, Wanted, names_by_note, real};
use memtrace_tests::stacks::names::{Names, same};
use memtrace_tests::stacks::notes::Notes;
use memtrace_tests::stacks::programs::Root;

const LATE: Duration = Duration::from_secs(20);

/// On a signal's own stack a copy holds that stack alone. And glibc starts a coroutine in a
/// function without unwind information, which looks like any other one without.
const ON_OTHER_STACK: &[&str] = &["signal handler, other stack", "coroutine"];

fn run() -> Run {
    Run::new("cuda")
}

/// The notes of a traced program.
fn notes(traced: &Traced) -> Result<Notes> {
    Notes::parse(&traced.said.last_json()?)
}

fn all_there(traced: &Traced) -> Result<()> {
    traced.dump.check_conservation()?;
    let losses = traced.dump.losses();
    ensure!(losses.is_empty(), "lost: {losses:?}");
    Ok(())
}

/// Runs a program of one flavour and adds its calls to a table.
fn add(table: &mut Table, program: &Path, flavour: Flavour, language: &str) -> Result<()> {
    let traced = run().trace(program, [""; 0])?;
    all_there(&traced)?;
    let notes = notes(&traced)?;
    let directory = real(program.parent().context("a program in no directory")?)?;
    let names = Names::of(&notes.notes, &directory, Path::to_path_buf)?;
    table.add(&Comparison {
        variant: &format!("{language} {flavour}"),
        process: traced.process()?,
        notes: &notes,
        names: &names,
        wanted: Wanted::Exact,
        cut_off: ON_OTHER_STACK,
    });
    Ok(())
}

fn every_flavour_of(program: &str, language: &str) -> Result<()> {
    let mut table = Table::default();
    for flavour in build::flavours() {
        let built = build::build(flavour)?;
        add(&mut table, &built.file(program), flavour, language)
            .with_context(|| format!("{language} {flavour}"))?;
    }
    table.finish()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn stacks_of_c_are_what_the_program_noted() -> Result<()> {
    every_flavour_of("c", "C")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn stacks_of_cpp_are_what_the_program_noted() -> Result<()> {
    every_flavour_of("cc", "C++")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn stacks_of_rust_are_what_the_program_noted() -> Result<()> {
    every_flavour_of("rust", "Rust")
}

/// Runs one shipped form of `stacks.c`, with the names of its twin.
fn add_shipped(table: &mut Table, program: &Path, wanted: Wanted, run: &Run) -> Result<()> {
    let shipped = build::shipped()?;
    let (program, twin) = (real(program)?, shipped.twin());
    let traced = run.trace(&program, [""; 0])?;
    all_there(&traced)?;
    let notes = notes(&traced)?;
    let directory = program.parent().context("a program in no directory")?;
    let bare = [shipped.stripped(), shipped.debuglink()].map(|path| real(&path));
    let bare: Vec<PathBuf> = bare.into_iter().collect::<Result<_>>()?;
    let instead = |module: &Path| {
        if bare.iter().any(|one| one == module) { twin.clone() } else { module.to_path_buf() }
    };
    let names = Names::of(&notes.notes, directory, instead)?;
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // The library between is never stripped: its names are there whatever the program's are.
    table.add(&Comparison {
        variant: &name,
        process: traced.process()?,
        notes: &notes,
        names: &names,
        wanted,
        cut_off: ON_OTHER_STACK,
    });
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_stripped_program_has_whole_stacks_and_no_wrong_name() -> Result<()> {
    let mut table = Table::default();
    add_shipped(&mut table, &build::shipped()?.stripped(), Wanted::NotWrong, &run())?;
    table.finish()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_program_with_a_debug_file_beside_it_has_all_names() -> Result<()> {
    let mut table = Table::default();
    add_shipped(&mut table, &build::shipped()?.debuglink(), Wanted::Exact, &run())?;
    table.finish()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_program_at_a_fixed_address_has_whole_stacks() -> Result<()> {
    let mut table = Table::default();
    add_shipped(&mut table, &build::shipped()?.fixed(), Wanted::Exact, &run())?;
    table.finish()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_static_pie_with_its_own_runtime_has_whole_stacks() -> Result<()> {
    let program = build::shipped()?.static_pie();
    let named = run().option("--library").option(&program);
    let mut table = Table::default();
    add_shipped(&mut table, &program, Wanted::Exact, &named)?;
    table.finish()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn unwind_information_in_debug_frame_alone_is_enough() -> Result<()> {
    let shipped = build::shipped()?;
    // The program cannot unwind itself; its twin, which is the same code, can.
    let said = process::run(&mut Command::new(shipped.twin()), LIMIT)?.expect_status(0)?;
    let twin = Notes::parse(&said.last_json()?)?;
    let directory = real(&shipped.twin())?.parent().context("no directory")?.to_path_buf();
    let names = names_by_note(&twin, &Names::of(&twin.notes, &directory, Path::to_path_buf)?);
    let traced = run().trace(shipped.debug_frame(), [""; 0])?;
    all_there(&traced)?;
    let mut table = Table::default();
    for note in twin.notes.iter().filter(|note| !ON_OTHER_STACK.contains(&note.name.as_str())) {
        let truth = names.get(&note.name).context("a note without names")?;
        let site = traced.process()?.sites("cuda").find(|site| site.allocated_bytes == note.bytes);
        let site = site.with_context(|| format!("no site of {} bytes", note.bytes))?;
        let calls = site.calls();
        let line = format!("debug-frame | {} | {} / {}", note.name, calls.len(), truth.len());
        let named = calls.iter().zip(truth).all(|(call, truth)| {
            let both = call.iter().zip(truth);
            truth.is_empty()
                || call.len() == truth.len()
                    && both.into_iter().all(|(f, t)| f.symbol.as_ref().is_some_and(|s| same(s, t)))
        });
        let whole = site.stack.as_ref().is_some_and(|stack| stack.complete);
        let check = || -> Result<()> {
            ensure!(whole, "not whole: {:?}", site.stack);
            ensure!(calls.len() == truth.len(), "other depth: {calls:#?}");
            ensure!(named, "other names: {calls:#?}, truly {truth:?}");
            Ok(())
        };
        table.add_line(line, check());
    }
    table.finish()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn debug_files_by_build_id_are_found_in_the_process_own_root() -> Result<()> {
    let shipped = build::shipped()?;
    let root = Root::new()?;
    // At its own path: its library lies beside it.
    let program = shipped.stripped();
    root.put_program(&program, &program)?;
    let build_id = build_id(&shipped.twin())?;
    let (start, rest) = build_id.split_at(2);
    let debug_file = format!("/usr/lib/debug/.build-id/{start}/{rest}.debug");
    root.put(&shipped.debug_file(), Path::new(&debug_file))?;
    // The runtime is a new inode there: named before, it is probed at its first call.
    let cudart = memtrace_tests::fixture::build(memtrace_tests::fixture::Variant::Plain)?.cudart();
    let libraries = format!("libraries = [{:?}]", root.inside(&cudart));
    let daemon =
        Daemon::start_with(&Options { configuration: Some(libraries), ..Options::default() })?;
    // Its root is there to be looked into as long as it runs.
    let mut command = root.container(&program);
    let mut running = Running::start_talking(command.arg("--hold"))?;
    running.read_json()?;
    daemon.dump_until("names by a debug file in a root", LATE, |dump| {
        let mut sites = dump.processes.iter().flat_map(|process| process.sites("cuda"));
        let site = sites.find(|site| site.allocated_bytes == 1_003).context("no site")?;
        let names: Vec<_> = site.frames.iter().map(|one| one.symbol.as_deref()).collect();
        let truth = ["inlined_innermost", "inlined_middle", "inlined_outer", "inlining", "main"];
        ensure!(names.starts_with(&truth.map(Some)), "{names:?} instead of {truth:?}");
        Ok(())
    })
}

fn build_id(program: &Path) -> Result<String> {
    let output = Command::new("readelf").args(["-n", "-W"]).arg(program).output()?;
    let text = String::from_utf8(output.stdout)?;
    let (_, id) = text.split_once("Build ID: ").context("no build id")?;
    Ok(id.lines().next().unwrap_or_default().trim().to_owned())
}

/// How deep the recursion of the test goes.
const DEPTHS: [u64; 5] = [1_000, 1_002, 2_000, 3_998, 5_000];

#[test]
#[ignore = "needs root: cargo xtask test"]
fn recursion_is_one_site_however_deep() -> Result<()> {
    for flavour in build::flavours() {
        let traced =
            run().trace(build::build(flavour)?.file("recursion"), DEPTHS.map(|d| d.to_string()))?;
        all_there(&traced)?;
        for function in ["site_recursed", "site_mutual"] {
            one_site(traced.process()?, function).with_context(|| flavour.to_string())?;
        }
    }
    Ok(())
}

fn one_site(process: &Process, function: &str) -> Result<()> {
    let rows: Vec<_> = process.sites("cuda").filter(|site| site.is_in(function)).collect();
    let depths: Vec<_> = rows.iter().map(|s| (s.calls().len(), s.allocations, &s.stack)).collect();
    let [site] = rows.as_slice() else { anyhow::bail!("{function} is {depths:?}") };
    ensure!(site.allocations == DEPTHS.len() as u64, "{} allocations", site.allocations);
    println!("recursion | {function} | {depths:?}");
    let outer = if function == "site_recursed" { "recurse" } else { "even" };
    ensure!(site.passes(outer), "no {outer} in {:#?}", site.frames);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn two_callers_of_one_function_are_two_sites_at_any_level() -> Result<()> {
    const FUNCTIONS: [(&str, &str); 9] = [
        ("cudaMalloc", "cuda"),
        ("cudaMallocManaged", "managed"),
        ("cudaMallocPitch", "cuda"),
        ("cudaMallocHost", "pinned"),
        ("cudaHostAlloc", "pinned"),
        ("cuMemAlloc_v2", "cuda"),
        ("cuMemAllocManaged", "managed"),
        ("cuMemAllocHost_v2", "pinned"),
        ("cuMemHostAlloc", "pinned"),
    ];
    for flavour in build::flavours() {
        let program = build::build(flavour)?.file("callers");
        let traced = Run::new("cuda,managed,pinned").trace(program, [""; 0])?;
        all_there(&traced)?;
        for (function, domain) in FUNCTIONS {
            let process = traced.process()?;
            let rows: Vec<_> = process.sites(domain).filter(|site| site.api == function).collect();
            let caller = format!("twice_{function}");
            let what = format!("{flavour}, {function}: {rows:#?}");
            ensure!(rows.len() == 2, "{what}");
            ensure!(rows.iter().all(|site| site.is_in(&caller) && site.allocations == 1), "{what}");
            ensure!(rows[0].frames[0].offset != rows[1].frames[0].offset, "{what}");
            ensure!(rows[0].id != rows[1].id && rows[0].id.is_some(), "{what}");
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn stacks_of_calls_inside_probed_calls_reach_the_programs_start() -> Result<()> {
    // The return addresses of the outer calls are not on the stack while these run.
    let client = memtrace_tests::fixture::build(memtrace_tests::fixture::Variant::Plain)?.client();
    for (scenario, number, inside) in [("extra-inner", "1", "site_host"), ("nested", "3", "site_b")]
    {
        let traced = Run::new("cuda,pinned").trace(&client, [scenario, number])?;
        all_there(&traced)?;
        let sites = || traced.dump.processes.iter().flat_map(|process| &process.sites);
        for site in sites().filter(|site| site.domain != "kernel") {
            let last = site.frames.last().and_then(|frame| frame.symbol.as_deref());
            let whole = site.stack.as_ref().is_some_and(|stack| stack.complete);
            let calls = site.calls().len();
            println!("{scenario} | {} | {calls} | {:?}", site.api, site.stack);
            ensure!(last == Some("_start"), "{scenario}: {site:#?}");
            // Of a call inside another one, what lies between the two is taken along in part.
            let reason = site.stack.as_ref().and_then(|stack| stack.reason.as_deref());
            let inside = reason.is_some_and(|reason| reason.contains("outer call"));
            ensure!(whole || inside, "{scenario}: {site:#?}");
        }
        let deep = sites().any(|site| site.passes(inside) && site.passes("cudaMalloc"));
        let deep = deep || sites().any(|site| site.passes(inside) && site.passes("cudaMallocHost"));
        ensure!(deep, "{scenario}: nothing of {inside} passes through a probed function");
    }
    Ok(())
}

/// Runs a program under `perf record --call-graph dwarf` with a probe at cudaMalloc, and prints
/// every stack: offset and file of each frame, an empty line between two. perf mounts what it
/// needs where we do not see it.
const PERF: &str = r#"
cd "$1"
perf probe --quiet --exec "$2" --add memtrace_suite=cudaMalloc >&2
trap 'perf probe --quiet --del "probe_libcudart:memtrace_suite*" >&2' EXIT
perf record --quiet --mmap-pages 16M --call-graph dwarf,65528 -e probe_libcudart:memtrace_suite -o perf.data \
    -- "$3" >notes
perf script --no-inline --max-stack 500 -F ip,dso -i perf.data
"#;

#[test]
#[ignore = "needs root: cargo xtask test"]
fn stacks_are_those_of_perf() -> Result<()> {
    let mut wrong = Vec::new();
    println!("variant | call | depth of memtrace / of perf");
    for flavour in [USUAL, Flavour { level: 2, frame_pointers: true }] {
        let program = build::build(flavour)?.file("c");
        let traced = run().trace(&program, [""; 0])?;
        let notes = notes(&traced)?;
        let perfs = perf_stacks(&program)?;
        ensure!(perfs.len() == notes.notes.len(), "{} stacks of perf", perfs.len());
        for (note, perf) in notes.notes.iter().zip(&perfs) {
            let site = memtrace_tests::stacks::compare::site_of(traced.process()?, note)?;
            let calls = site.calls();
            let own: Vec<_> = calls.iter().filter_map(|call| call.last()).collect();
            println!("{flavour} | {} | {} / {}", note.name, own.len(), perf.len());
            // perf gives the address before the one that is returned to.
            let same = own.iter().zip(perf).all(|(frame, (offset, file))| {
                let offset = frame.offset.is_some_and(|own| own == *offset || own == offset + 1);
                offset && frame.module.as_deref() == Some(file.as_str())
            });
            if !same || own.len() < perf.len() {
                wrong.push(format!("{flavour}, {}: {own:#?}\nperf: {perf:x?}", note.name));
            }
        }
    }
    ensure!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

/// The callers of cudaMalloc in the order of the calls, as perf has them.
fn perf_stacks(program: &Path) -> Result<Vec<Vec<(u64, String)>>> {
    let scratch = memtrace_tests::scratch::Scratch::new()?;
    let cudart = memtrace_tests::fixture::build(memtrace_tests::fixture::Variant::Plain)?.cudart();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--", "sh", "-ec", PERF, "sh"]);
    command.arg(scratch.path()).arg(cudart).arg(program);
    let said = process::run(&mut command, LIMIT)?.expect_status(0)?;
    let mut stacks = Vec::new();
    for block in said.stdout.split("\n\n").filter(|block| !block.trim().is_empty()) {
        let mut frames = Vec::new();
        for line in block.lines().filter(|line| !line.trim().is_empty()) {
            let (offset, file) =
                line.trim().split_once(" (").context("no file in a line of perf")?;
            let offset = u64::from_str_radix(offset, 16).with_context(|| line.to_owned())?;
            frames.push((offset, file.trim_end_matches(')').to_owned()));
        }
        // The first is cudaMalloc itself; where perf loses its way, it adds one that is nowhere.
        frames.retain(|(_, file)| file != "[unknown]");
        stacks.push(frames.split_off(1));
    }
    Ok(stacks)
}
