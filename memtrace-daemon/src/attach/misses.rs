//! What the kernel counts about a program: skipped runs and run time, in
//! `/proc/self/fdinfo/FD`. aya has no accessor for it.

use std::{
    fs,
    os::fd::{AsRawFd, BorrowedFd},
};

/// Times that a program was skipped because it interrupted itself; 0 where the kernel does
/// not say.
#[must_use]
pub fn recursion(program: BorrowedFd<'_>) -> u64 {
    field(program, "recursion_misses:").unwrap_or(0)
}

/// Seconds that a program has run; `None` where the kernel's statistics are off.
#[must_use]
pub fn run_seconds(program: BorrowedFd<'_>) -> Option<f64> {
    let nanoseconds = field(program, "run_time_ns:").filter(|nanoseconds| *nanoseconds > 0)?;
    Some(std::time::Duration::from_nanos(nanoseconds).as_secs_f64())
}

fn field(program: BorrowedFd<'_>, name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}
