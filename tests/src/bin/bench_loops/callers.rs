//! Callers that keep frame pointers, whatever the compiler was told: a stack walk costs by the
//! frame, and a stack of two would flatter it.

use std::arch::global_asm;
use std::ffi::c_void;

// rdi: how many more; rsi: what to call at last; rdx: its argument. With unwind information, as
// compilers write it, and without any.
macro_rules! callers {
    ($name:literal, $start:literal, $pushed:literal, $framed:literal, $popped:literal, $end:literal) => {
        global_asm!(
            concat!(".globl ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            $start,
            "push rbp",
            $pushed,
            "mov rbp, rsp",
            $framed,
            "test rdi, rdi",
            "jz 2f",
            "dec rdi",
            concat!("call ", $name),
            "jmp 3f",
            "2:",
            "mov rdi, rdx",
            "call rsi",
            "3:",
            "pop rbp",
            $popped,
            "ret",
            $end,
            concat!(".size ", $name, ", . - ", $name),
        );
    };
}

callers!(
    "bench_callers",
    ".cfi_startproc",
    ".cfi_def_cfa_offset 16\n.cfi_offset rbp, -16",
    ".cfi_def_cfa_register rbp",
    ".cfi_def_cfa rsp, 8",
    ".cfi_endproc"
);
callers!("bench_callers_unknown", "", "", "", "", "");

unsafe extern "C" {
    fn bench_callers(more: u64, last: unsafe extern "C" fn(*mut c_void), argument: *mut c_void);
    fn bench_callers_unknown(
        more: u64,
        last: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    );
}

/// Which callers.
#[derive(Clone, Copy, Debug)]
pub enum Callers {
    /// With unwind information: after the first calls a tracer can know the way.
    Known,
    /// Without: each stack has to be copied again.
    Unknown,
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
pub fn below(
    callers: Callers,
    depth: u64,
    call: &dyn Fn() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let callers = match callers {
        Callers::Known => bench_callers,
        Callers::Unknown => bench_callers_unknown,
    };
    let mut last = Last { call, said: Ok(()) };
    // SAFETY: either function calls `run` once with this pointer and keeps the C convention: it
    // changes rbp, which it restores, and registers that a call may change.
    unsafe { callers(depth, run, (&raw mut last).cast()) };
    last.said
}

unsafe extern "C" fn run(argument: *mut c_void) {
    // SAFETY: `below` passes its own `Last`, which nobody else uses meanwhile.
    let last = unsafe { &mut *argument.cast::<Last<'_>>() };
    last.said = (last.call)();
}
