//! Calls of library functions, and the copies of stacks that some of them come with.

use std::fmt;
use std::sync::Arc;

use memtrace_common::MAX_SLOTS;
use zeroize::Zeroize;

use crate::snapshot::Taken;

/// A call of a library function that gave memory, or failed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// When.
    pub time_ns: u64,
    /// Unique since start of the tracer, never reused, ascending; 0 for a failure.
    pub id: u64,
    /// The address that was given; 0 for a failure.
    pub pointer: u64,
    /// Bytes.
    pub bytes: u64,
    /// Address space whose books it is in.
    pub space: u32,
    /// Which function.
    pub function: u32,
    /// Thread group of the caller.
    pub tgid: u32,
    /// Thread of the caller.
    pub tid: u32,
    /// Serial of the calling process (a vfork child's differs from the owner of `space`).
    pub serial: u32,
    /// Return addresses, innermost first; the first is the direct caller.
    pub stack: Arc<[u64]>,
    /// How they were taken, and whether they are all.
    pub taken: Taken,
}

/// A call whose stack is still to be unwound. Its `stack` has what is known without the copy:
/// nothing, or the direct caller that goes before what the copy tells.
#[derive(Debug)]
pub struct CopiedCall {
    /// Whether it failed.
    pub failed: bool,
    /// The call.
    pub call: Call,
    /// The copy.
    pub copy: StackCopy,
}

/// A copy of a user stack. It can hold anything, prompts and keys included: it is overwritten
/// when it is dropped, and is never printed.
pub struct StackCopy {
    /// Registers at the copy's innermost frame.
    pub registers: Registers,
    /// Return slots that hold the trampoline of return probes, and what belongs there: (address
    /// of the slot, return address); (0, 0) is none.
    pub slots: [(u64, u64); MAX_SLOTS],
    /// Pages of executable mappings that the process had.
    pub exec_pages: u64,
    /// Whether the copy reaches to where the stack ends, as far as the kernel side knows.
    pub whole: bool,
    /// The stack from `registers.rsp` on.
    pub bytes: Box<[u8]>,
}

/// Registers that a function must keep, and where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the architecture's")]
pub struct Registers {
    pub rip: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
}

impl fmt::Debug for StackCopy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registers, slots, exec_pages, whole, bytes } = self;
        formatter
            .debug_struct("StackCopy")
            .field("registers", registers)
            .field("slots", slots)
            .field("exec_pages", exec_pages)
            .field("whole", whole)
            .field("bytes", &bytes.len())
            .finish()
    }
}

impl Drop for StackCopy {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}
