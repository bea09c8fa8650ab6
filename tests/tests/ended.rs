//! Names of processes that have ended, of files that are gone, and of processes in containers.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::{Process, Site, amount};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{LIMIT, Run};
use memtrace_tests::process::{self, Running};
use memtrace_tests::scratch::Scratch;
use memtrace_tests::stacks::build::{self, USUAL};
use memtrace_tests::stacks::compare::{Comparison, Table, Wanted, real};
use memtrace_tests::stacks::names::Names;
use memtrace_tests::stacks::notes::Notes;
use memtrace_tests::stacks::programs::{Root, child_of};

const LATE: Duration = Duration::from_secs(20);

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_process_that_has_ended_has_the_same_names() -> Result<()> {
    let daemon = Daemon::start_knowing(&fixture::build(Variant::Plain)?)?;
    let program = build::build(USUAL)?.file("c");
    let said = process::run(&mut Command::new(&program), LIMIT)?.expect_status(0)?;
    let notes = Notes::parse(&said.last_json()?)?;
    let directory = real(program.parent().context("no directory")?)?;
    let names = Names::of(&notes.notes, &directory, Path::to_path_buf)?;
    daemon.dump_until("the names of an ended process", LATE, |dump| {
        dump.check_conservation()?;
        let process = dump.process(notes.pid)?;
        ensure!(process.ended, "it runs still");
        let mut table = Table::default();
        table.add(&Comparison {
            variant: "ended",
            process,
            notes: &notes,
            names: &names,
            wanted: Wanted::Exact,
            cut_off: &["signal handler, other stack", "coroutine"],
        });
        table.finish()
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_hundred_short_processes_have_names() -> Result<()> {
    let daemon = Daemon::start_knowing(&fixture::build(Variant::Plain)?)?;
    let built = build::build(USUAL)?;
    let (program, library) = (built.file("through"), built.file("libmiddle-in_first.so"));
    let mut pids = Vec::new();
    for _ in 0..100 {
        let said = process::run(Command::new(&program).arg(&library), LIMIT)?.expect_status(0)?;
        pids.push(said.last_json()?["pid"].as_u64().context("no pid")?);
    }
    daemon.dump_until("names of short processes", LATE, |dump| {
        for pid in &pids {
            check_names(dump.process(u32::try_from(*pid)?)?, "in_first")?;
        }
        Ok(())
    })
}

/// The one site of `through`: three blocks, the right names, a whole stack.
fn check_names(process: &Process, middle: &str) -> Result<Site> {
    let sites: Vec<&Site> = process.sites("cuda").collect();
    let [site] = sites.as_slice() else { anyhow::bail!("{} sites: {sites:#?}", sites.len()) };
    ensure!(amount(site.allocations, site.allocated_bytes) == amount(3, 3_000), "{site:?}");
    let names: Vec<_> = site.frames.iter().map(|one| one.symbol.as_deref()).collect();
    let truth = ["site_through", middle, "enter", "main"].map(Some);
    ensure!(names.starts_with(&truth), "{names:?}: {:#?}", site.frames);
    ensure!(names.last() == Some(&Some("_start")), "{names:?}");
    ensure!(site.stack.as_ref().is_some_and(|stack| stack.complete), "{:?}", site.stack);
    Ok((*site).clone())
}

/// `through` and its libraries in a directory, all of them inodes of their own.
struct Copies {
    program: PathBuf,
    library: PathBuf,
    cudart: PathBuf,
}

impl Copies {
    fn below(directory: &Path, middle: &str) -> Result<Self> {
        std::fs::create_dir_all(directory)?;
        let built = build::build(USUAL)?;
        let stubs = fixture::build(Variant::Plain)?;
        let copy = |from: &Path, name: &str| -> Result<PathBuf> {
            let to = directory.join(name);
            std::fs::copy(from, &to).with_context(|| format!("copying to {}", to.display()))?;
            Ok(to)
        };
        copy(&stubs.cuda(), "libcuda.so.1")?;
        Ok(Self {
            program: copy(&built.file("through"), "through")?,
            library: copy(&built.file(&format!("libmiddle-{middle}.so")), "libmiddle.so")?,
            cudart: copy(&stubs.cudart(), "libcudart.so.12")?,
        })
    }

    fn files(&self) -> [&Path; 3] {
        [&self.program, &self.library, &self.cudart]
    }
}

/// A held `through` whose runtime the daemon has probed.
fn start_probed(daemon: &Daemon, copies: &Copies) -> Result<Running> {
    let mut command = Command::new(&copies.program);
    let mut running = Running::start_talking(command.arg(&copies.library).arg("--hold"))?;
    running.read_json()?;
    wait_until_probed(daemon, &copies.cudart, 1)?;
    Ok(running)
}

/// Waits until so many files at this path are probed.
fn wait_until_probed(daemon: &Daemon, cudart: &Path, number: usize) -> Result<()> {
    let path = cudart.to_string_lossy();
    daemon.dump_until("probes", LATE, |dump| {
        let rows =
            dump.coverage.iter().filter(|row| row.path.as_deref() == Some(&*path) && row.attached);
        let rows: Vec<_> = rows.collect();
        ensure!(rows.len() == number, "{} of {number}: {:?}", rows.len(), dump.coverage);
        let files: std::collections::BTreeSet<_> = rows.iter().map(|row| &row.file).collect();
        ensure!(files.len() == number, "one file twice: {rows:?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn files_that_are_deleted_while_the_process_runs_have_names() -> Result<()> {
    let scratch = Scratch::new()?;
    let daemon = Daemon::start()?;
    let copies = Copies::below(&scratch.join("gone"), "in_first")?;
    let mut running = start_probed(&daemon, &copies)?;
    for file in copies.files() {
        std::fs::remove_file(file)?;
    }
    running.go_on()?;
    running.read_json()?;
    let pid = running.pid();
    daemon.dump_until("names of deleted files", LATE, |dump| {
        let site = check_names(dump.process(pid)?, "in_first")?;
        let module = site.frames[0].module.clone();
        ensure!(module.as_deref() == copies.program.to_str(), "{module:?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn files_that_are_replaced_while_the_process_runs_have_their_own_names() -> Result<()> {
    let scratch = Scratch::new()?;
    let daemon = Daemon::start()?;
    let copies = Copies::below(&scratch.join("here"), "in_first")?;
    let other = Copies::below(&scratch.join("other"), "in_second")?;
    let mut running = start_probed(&daemon, &copies)?;
    // An upgrade: other files take the names, the old ones live on in the process alone.
    for (from, to) in other.files().iter().zip(copies.files()) {
        std::fs::rename(from, to)?;
    }
    running.go_on()?;
    running.read_json()?;
    daemon.dump_until("names of replaced files", LATE, |dump| {
        check_names(dump.process(running.pid())?, "in_first")?;
        Ok(())
    })?;
    // Who starts now has the new ones.
    let mut second =
        Running::start_talking(Command::new(&copies.program).arg(&copies.library).arg("--hold"))?;
    second.read_json()?;
    wait_until_probed(&daemon, &copies.cudart, 2)?;
    second.go_on()?;
    second.read_json()?;
    daemon.dump_until("names of the new files", LATE, |dump| {
        check_names(dump.process(second.pid())?, "in_second")?;
        check_names(dump.process(running.pid())?, "in_first")?;
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn odd_paths_are_right() -> Result<()> {
    let scratch = Scratch::new()?;
    for name in ["a b", "a\nb", "a (deleted)", " (deleted)", "a\\012b", "a\tb c\n (deleted)"] {
        let directory = scratch.join(name);
        let copies = Copies::below(&directory, "in_first")?;
        let library = directory.join("lib middle\n (deleted)");
        std::fs::rename(&copies.library, &library)?;
        let program = directory.join("program (deleted)");
        std::fs::rename(&copies.program, &program)?;
        let run = Run::new("cuda").option("--library").option(&copies.cudart);
        let traced = run.trace(&program, [library.as_os_str()])?;
        traced.dump.check_conservation()?;
        let site =
            check_names(traced.process()?, "in_first").with_context(|| format!("{name:?}"))?;
        let modules = [0, 1].map(|index| site.frames[index].module.clone());
        let truth = [&program, &library].map(|path| path.to_str().map(str::to_owned));
        ensure!(modules == truth, "{name:?}: {modules:?}, truly {truth:?}");
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_path_that_is_no_text_is_escaped() -> Result<()> {
    let scratch = Scratch::new()?;
    let directory = scratch.path().join(std::ffi::OsStr::from_bytes(b"a\xffb"));
    let copies = Copies::below(&directory, "in_first")?;
    let run = Run::new("cuda").option("--library").option(&copies.cudart);
    let traced = run.trace(&copies.program, [copies.library.as_os_str()])?;
    let site = check_names(traced.process()?, "in_first")?;
    let module = site.frames[0].module.clone().context("no module")?;
    ensure!(module.contains("a\\xffb/through"), "{module}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn two_containers_with_one_path_and_one_pid_are_two_processes() -> Result<()> {
    const PROGRAM: &str = "/app/through";
    const LIBRARY: &str = "/app/libmiddle.so";
    const CUDART: &str = "/app/libcudart.so.12";
    let daemon = Daemon::start_with(&Options::default())?;
    let built = build::build(USUAL)?;
    let stubs = fixture::build(Variant::Plain)?;
    let mut containers = Vec::new();
    for middle in ["in_first", "in_second"] {
        let root = Root::new()?;
        root.put_program(&built.file("through"), Path::new(PROGRAM))?;
        root.put(&built.file(&format!("libmiddle-{middle}.so")), Path::new(LIBRARY))?;
        root.put(&stubs.cudart(), Path::new(CUDART))?;
        root.put(&stubs.cuda(), Path::new("/app/libcuda.so.1"))?;
        let mut command = root.container(Path::new(PROGRAM));
        let mut running = Running::start_talking(command.args([LIBRARY, "--hold"]))?;
        let line = running.read_json()?;
        ensure!(line["pid"] == 1, "no process 1: {line}");
        containers.push((middle, running, root));
    }
    wait_until_probed(&daemon, Path::new(CUDART), 2)?;
    let mut pids = Vec::new();
    for (middle, running, _) in &mut containers {
        running.go_on()?;
        running.read_json()?;
        pids.push((child_of(running)?, *middle));
    }
    let check = || {
        daemon.dump_until("two containers", LATE, |dump| {
            dump.check_conservation()?;
            for (pid, middle) in &pids {
                let site = check_names(dump.process(*pid)?, middle)?;
                let modules = [0, 1].map(|index| site.frames[index].module.clone());
                let truth = [PROGRAM, LIBRARY].map(|path| Some(path.to_owned()));
                ensure!(modules == truth, "{modules:?}, truly {truth:?}");
            }
            Ok(())
        })
    };
    check()?;
    for (_, running, _) in &mut containers {
        running.go_on()?;
        running.finish(LIMIT)?.expect_status(0)?;
    }
    // Ended, and their mounts with them.
    check()
}
