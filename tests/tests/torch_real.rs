//! The static probes of PyTorch's own `libc10_cuda.so`, as its official wheel has it. Built and run
//! by `cargo xtask test --torch` alone, which brings the library.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use memtrace_daemon::attach::usdt;
use memtrace_tests::memtrace::{self, LIMIT, Run};
use memtrace_tests::paths;
use memtrace_tests::process::Running;

/// Opens libraries, the ones that others need first, and waits for a line.
const OPEN: &str = "import ctypes, sys\n\
                    for path in sys.argv[1:]: ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)\n\
                    print('{}', flush=True)\n\
                    sys.stdin.readline()";

fn library(name: &str) -> Result<PathBuf> {
    let path = paths::target().join("torch-wheel/torch/lib").join(name);
    anyhow::ensure!(path.exists(), "{} is not there: cargo xtask test --torch", path.display());
    Ok(path)
}

/// Offsets of the probes' semaphores in the file.
fn semaphores(path: &Path) -> Result<Vec<u64>> {
    let notes = usdt::notes(&File::open(path)?)?;
    let own = notes.into_iter().filter(|note| note.provider == "pytorch");
    own.map(|note| {
        let place = note.place.map_err(anyhow::Error::msg)?;
        place.semaphore.context("a probe without a semaphore")
    })
    .collect()
}

/// The two bytes that a process has where a file has this offset, in memory that it may write to.
fn value(pid: u32, path: &Path, offset: u64) -> Result<u16> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let file = path.to_str().context("a path that is no text")?;
    for line in maps.lines().filter(|line| line.ends_with(file) && line.contains(" rw-")) {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next().and_then(|one| one.split_once('-')).context("a range")?;
        let begin = u64::from_str_radix(fields.nth(1).context("an offset")?, 16)?;
        let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
        if (begin..begin + (end - start)).contains(&offset) {
            let mut bytes = [0; 2];
            let memory = File::open(format!("/proc/{pid}/mem"))?;
            memory.read_exact_at(&mut bytes, start + (offset - begin))?;
            return Ok(u16::from_le_bytes(bytes));
        }
    }
    anyhow::bail!("{file} is not mapped at {offset:#x} in {maps}")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_real_librarys_notes_are_read_and_its_probes_attached() -> Result<()> {
    let path = library("libc10_cuda.so")?;
    let run = Run::new("torch").option("--library").option(&path);
    let traced = run.trace("/bin/true", [""; 0])?;
    let row = traced.dump.coverage_of(&path)?;
    assert!(row.attached && row.missing.is_empty(), "{row:?}");
    assert_eq!(row.library.as_deref(), Some("libc10_cuda"));
    let mut functions = row.functions.clone();
    functions.sort();
    assert_eq!(functions, ["pytorch:free", "pytorch:malloc"]);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_process_that_runs_the_real_library_sees_its_semaphores_raised() -> Result<()> {
    let path = library("libc10_cuda.so")?;
    let semaphores = semaphores(&path)?;
    assert!(semaphores.len() >= 2, "{semaphores:?}");
    let needed = [paths::real_cudart(13)?, library("libc10.so")?];
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", OPEN]).args(&needed).arg(&path);
    let mut running = Running::start_talking(&mut python)?;
    running.read_json()?;
    let raised = || -> Result<Vec<u16>> {
        semaphores.iter().map(|offset| value(running.pid(), &path, *offset)).collect()
    };
    assert_eq!(raised()?, vec![0; semaphores.len()]);
    let mut tracer = memtrace::attach(running.pid(), ["--domains", "torch"])?;
    assert!(raised()?.iter().all(|value| *value >= 1), "{:?}", raised()?);
    running.go_on()?;
    running.finish(LIMIT)?.expect_status(0)?;
    tracer.finish(LIMIT)?.expect_status(0)?;
    Ok(())
}
