//! Callers that keep frame pointers, whatever the compiler was told: a stack walk costs by the
//! frame, and a stack of two would flatter it.

use std::arch::global_asm;
use std::ffi::c_void;

// rdi: how many more; rsi: what to call at last; rdx: its argument.
global_asm!(
    ".globl bench_callers",
    ".type bench_callers, @function",
    "bench_callers:",
    "push rbp",
    "mov rbp, rsp",
    "test rdi, rdi",
    "jz 2f",
    "dec rdi",
    "call bench_callers",
    "pop rbp",
    "ret",
    "2:",
    "mov rdi, rdx",
    "call rsi",
    "pop rbp",
    "ret",
    ".size bench_callers, . - bench_callers",
);

unsafe extern "C" {
    fn bench_callers(more: u64, last: unsafe extern "C" fn(*mut c_void), argument: *mut c_void);
}

/// What is called at last, and what it said.
struct Last<'a> {
    call: &'a dyn Fn() -> anyhow::Result<()>,
    said: anyhow::Result<()>,
}

/// Calls `call` below `depth` frames.
///
/// # Errors
///
/// What `call` says.
pub fn below(depth: u64, call: &dyn Fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut last = Last { call, said: Ok(()) };
    // SAFETY: the function calls `run` once with this pointer and keeps the C convention: it
    // changes rbp, which it restores, and registers that a call may change.
    unsafe { bench_callers(depth, run, (&raw mut last).cast()) };
    last.said
}

unsafe extern "C" fn run(argument: *mut c_void) {
    // SAFETY: `below` passes its own `Last`, which nobody else uses meanwhile.
    let last = unsafe { &mut *argument.cast::<Last<'_>>() };
    last.said = (last.call)();
}
