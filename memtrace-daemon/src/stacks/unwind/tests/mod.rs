//! Tests on stacks of this very process, against what glibc's own `backtrace` finds.

mod anonymous;
mod damaged;
mod elf;
mod hostile;
mod live;
mod made;

use std::arch::global_asm;
use std::ffi::c_void;
use std::mem::MaybeUninit;

use memtrace_common::MAX_SLOTS;

use super::own::OwnSpace;
use super::{Unwinder, Unwound};
use crate::record::{EXACT, Registers, StackCopy};

// What a return probe sees: the caller's address, and the registers after the return.
global_asm!(
    ".local memtrace_test_registers",
    ".type memtrace_test_registers,@function",
    "memtrace_test_registers:",
    ".cfi_startproc",
    "mov (%rsp), %rax",
    "mov %rax, (%rdi)",
    "lea 8(%rsp), %rax",
    "mov %rax, 8(%rdi)",
    "mov %rbp, 16(%rdi)",
    "mov %rbx, 24(%rdi)",
    "mov %r12, 32(%rdi)",
    "mov %r13, 40(%rdi)",
    "mov %r14, 48(%rdi)",
    "mov %r15, 56(%rdi)",
    "ret",
    ".cfi_endproc",
    ".size memtrace_test_registers, . - memtrace_test_registers",
    options(att_syntax)
);

unsafe extern "C" {
    fn memtrace_test_registers(into: *mut [u64; 8]);
}

/// A copy of a stack, and what glibc finds on it. Their first addresses are in `take` and
/// differ.
#[derive(Debug)]
struct Capture {
    copy: StackCopy,
    truth: Vec<u64>,
}

impl Capture {
    /// Of this thread.
    fn take() -> Self {
        Self::take_until(stack_end())
    }

    #[inline(never)]
    fn take_until(end: u64) -> Self {
        let mut words = [0_u64; 8];
        // SAFETY: writes the eight words.
        unsafe { memtrace_test_registers(&raw mut words) };
        let [rip, rsp, rbp, rbx, r12, r13, r14, r15] = words;
        let registers = Registers { rip, rsp, rbp, rbx, r12, r13, r14, r15 };
        let length = usize::try_from(end - rsp).unwrap();
        // SAFETY: the stack is readable from its pointer to its end; nothing else writes to
        // the part that is looked at.
        let bytes = unsafe { std::slice::from_raw_parts(rsp as *const u8, length) }.into();
        let mut truth = vec![std::ptr::null_mut::<c_void>(); 4_096];
        // SAFETY: the buffer is that large.
        let count = unsafe { libc::backtrace(truth.as_mut_ptr(), 4_096) };
        truth.truncate(usize::try_from(count).unwrap());
        let truth = truth.into_iter().map(|address| address as u64).collect();
        let slots = [(0, 0); MAX_SLOTS];
        Self {
            copy: StackCopy { registers, slots, exec_pages: 0, missing: 0, whole: true, bytes },
            truth,
        }
    }

    fn unwound(&self) -> Unwound {
        unwound(&self.copy)
    }

    /// Both agree, to the end.
    fn check(&self) -> Unwound {
        let unwound = self.unwound();
        assert_eq!(unwound.incomplete, None, "{:x?}\n{:x?}", unwound.addresses, self.truth);
        assert_eq!(unwound.folded, None);
        assert_eq!(hex(&plain(&unwound.addresses[1..])), hex(&self.truth[1..]));
        assert_eq!(unwound.addresses[0], self.copy.registers.rip);
        unwound
    }
}

/// Addresses without the mark of those that are no return addresses.
fn plain(addresses: &[u64]) -> Vec<u64> {
    addresses.iter().map(|address| address & !EXACT).collect()
}

fn unwound(copy: &StackCopy) -> Unwound {
    Unwinder::new().unwind(copy, &mut OwnSpace::new().unwrap())
}

fn hex(addresses: &[u64]) -> Vec<String> {
    addresses.iter().map(|address| format!("{address:x}")).collect()
}

/// Where this thread's stack ends.
fn stack_end() -> u64 {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut start, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the first call fills the attributes, the second reads them, the third ends them.
    unsafe {
        assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()), 0);
        let attributes = attributes.assume_init_mut();
        assert_eq!(libc::pthread_attr_getstack(attributes, &raw mut start, &raw mut size), 0);
        libc::pthread_attr_destroy(attributes);
    }
    start as u64 + size as u64
}
