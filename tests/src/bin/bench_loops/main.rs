//! The loops that `cargo xtask bench` times: short runs of one loop on one CPU, the time of each
//! on a line of standard output in nanoseconds. It knows nothing of tracing and must allocate
//! nothing in a loop but what the loop is about.

use std::ffi::{CStr, CString, c_void};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use memtrace_tests::fixture;
use rustix::thread::{CpuSet, sched_setaffinity};

mod callers;

use callers::Callers;

const USAGE: &str = "usage: bench_loops epoll|pipe CPU RUNS ITERATIONS
       bench_loops cuda|cuda-copied CPU RUNS ITERATIONS LIBRARY
       bench_loops hold LIBRARY            keeps it mapped until standard input ends
       bench_loops stub                    builds the stub CUDA runtime and prints its path";

/// Callers with frame pointers between a loop and `main`: what a real stack has of them.
const CALLERS: u64 = 16;
/// Between two runs.
const PAUSE: Duration = Duration::from_millis(2);
/// Between a first, untimed run and the timed ones: a site is hot, and its callers are known, when
/// the tracer has had time to look at its stack.
const LOOK: Duration = Duration::from_millis(500);
/// Iterations of that run.
const FEW: u64 = 10;
/// Bytes of one device allocation.
const DEVICE_BYTES: usize = 4_096;

type CudaMalloc = unsafe extern "C" fn(*mut *mut c_void, usize) -> i32;
type CudaFree = unsafe extern "C" fn(*mut c_void) -> i32;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["epoll", cpu, runs, iterations] => time(cpu, runs, iterations, Callers::Known, epoll),
        ["pipe", cpu, runs, iterations] => time(cpu, runs, iterations, Callers::Known, pipe),
        [name @ ("cuda" | "cuda-copied"), cpu, runs, iterations, library] => {
            let (allocate, free) = cuda_functions(Path::new(library))?;
            let callers = if *name == "cuda" { Callers::Known } else { Callers::Unknown };
            time(cpu, runs, iterations, callers, || cuda(allocate, free))
        }
        ["hold", library] => hold(Path::new(library)),
        ["stub"] => {
            println!("{}", fixture::build(fixture::Variant::Plain)?.cudart().display());
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}

/// Times the runs, at a depth of [`CALLERS`] calls. Before each it sleeps, so that the run
/// begins with a fresh share of a busy CPU and whoever reads can catch up, and warms up with a
/// tenth.
fn time(
    cpu: &str,
    runs: &str,
    iterations: &str,
    callers: Callers,
    once: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu.parse().context("CPU is a number")?);
    sched_setaffinity(None, &cpus).with_context(|| format!("pinning to CPU {cpu}"))?;
    let runs: u64 = runs.parse().context("RUNS is a number")?;
    let iterations: u64 = iterations.parse().context("ITERATIONS is a number")?;
    let run = |iterations: u64| -> anyhow::Result<Duration> {
        for _ in 0..iterations / 10 {
            once()?;
        }
        let start = Instant::now();
        for _ in 0..iterations {
            once()?;
        }
        Ok(start.elapsed())
    };
    callers::below(callers, CALLERS, &|| run(FEW).map(drop))?;
    std::thread::sleep(LOOK);
    for _ in 0..runs {
        std::thread::sleep(PAUSE);
        let timed = || run(iterations).map(|took| println!("{}", took.as_nanos()));
        callers::below(callers, CALLERS, &timed)?;
    }
    Ok(())
}

fn epoll() -> anyhow::Result<()> {
    // SAFETY: no pointers; the descriptor is closed below and nobody else has it.
    let fd = unsafe { libc::epoll_create1(0) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error()).context("epoll_create1");
    }
    close(fd)
}

fn pipe() -> anyhow::Result<()> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors; both are closed below.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), 0) } < 0 {
        return Err(std::io::Error::last_os_error()).context("pipe2");
    }
    let [read, write] = ends;
    close(read)?;
    close(write)
}

fn close(fd: i32) -> anyhow::Result<()> {
    // SAFETY: the callers have just made it and do not use it again.
    if unsafe { libc::close(fd) } < 0 {
        return Err(std::io::Error::last_os_error()).context("close");
    }
    Ok(())
}

fn cuda(allocate: CudaMalloc, free: CudaFree) -> anyhow::Result<()> {
    let mut pointer = std::ptr::null_mut();
    // SAFETY: the functions have these prototypes (CUDA Runtime API, "Memory Management"), and
    // the pointer is freed once.
    let (allocated, freed) = unsafe { (allocate(&raw mut pointer, DEVICE_BYTES), free(pointer)) };
    if allocated != 0 || freed != 0 {
        bail!("cudaMalloc gave status {allocated}, cudaFree {freed}");
    }
    Ok(())
}

fn open(library: &Path) -> anyhow::Result<*mut c_void> {
    let path = CString::new(library.as_os_str().as_bytes())?;
    // SAFETY: the caller names a library whose initialisers are harmless (a stub, or CUDA's own).
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        bail!("opening {}: {}", library.display(), last_dl_error());
    }
    Ok(handle)
}

fn cuda_functions(library: &Path) -> anyhow::Result<(CudaMalloc, CudaFree)> {
    let handle = open(library)?;
    let allocate = symbol(handle, c"cudaMalloc")?;
    let free = symbol(handle, c"cudaFree")?;
    // SAFETY: the symbols of these names are functions of these types in every CUDA runtime, and
    // the library is never closed.
    Ok(unsafe {
        (
            std::mem::transmute::<*mut c_void, CudaMalloc>(allocate),
            std::mem::transmute::<*mut c_void, CudaFree>(free),
        )
    })
}

fn symbol(handle: *mut c_void, name: &CStr) -> anyhow::Result<*mut c_void> {
    // SAFETY: the handle came from dlopen and is never closed.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() {
        bail!("no {}: {}", name.to_string_lossy(), last_dl_error());
    }
    Ok(address)
}

fn last_dl_error() -> String {
    // SAFETY: dlerror gives null or a string that lives until this thread's next dl call.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "no reason given".into();
    }
    // SAFETY: not null, so it is such a string.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

fn hold(library: &Path) -> anyhow::Result<()> {
    open(library)?;
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
