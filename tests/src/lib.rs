//! The harness of the end-to-end suites: builds fixtures, runs the real `memtrace` on the real
//! kernel, reads its dumps.
//!
//! It must never mock the kernel and never skip: what is missing is an error with the command
//! that brings it. Every process, queue and directory that it makes is removed by a guard.

pub mod bpf;
pub mod browser;
pub mod cases;
pub mod cgroup;
pub mod daemon;
pub mod dump;
pub mod fixture;
pub mod gpu;
pub mod http;
pub mod ipc;
pub mod memtrace;
pub mod nvml;
pub mod paths;
pub mod pprof;
pub mod process;
pub mod scratch;
pub mod slab;
pub mod stacks;
pub mod tmux;
pub mod truth;
pub mod unit;

use std::time::{Duration, Instant};

/// Asks again and again until there is an answer, for at most `limit`.
///
/// # Errors
///
/// The last error, with `what` and the limit, when there was no answer in time.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut ask: impl FnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let end = Instant::now() + limit;
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(error) if Instant::now() >= end => {
                return Err(error.context(format!("{what}: not within {limit:?}")));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
