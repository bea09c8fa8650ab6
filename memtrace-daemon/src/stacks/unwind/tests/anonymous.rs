//! Code made at run time, and hand-written frames.

use std::cell::RefCell;
use std::ffi::c_int;

use super::*;

thread_local! {
    static CAPTURED: RefCell<Option<Capture>> = const { RefCell::new(None) };
}

extern "C" fn capture() {
    CAPTURED.set(Some(Capture::take()));
}

/// Code of our own, as a JIT writes it.
struct Code {
    start: *mut u8,
}

impl Code {
    fn new(code: &[u8]) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh page, larger than the code.
        let start = unsafe {
            let start = libc::mmap(std::ptr::null_mut(), 4_096, protection, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            std::ptr::copy_nonoverlapping(code.as_ptr(), start.cast::<u8>(), code.len());
            start.cast()
        };
        Self { start }
    }

    /// Calls it with a function that it calls.
    fn call(&self, function: extern "C" fn()) -> Capture {
        // SAFETY: the code is a function that takes a function and keeps the registers.
        unsafe {
            let code: extern "C" fn(extern "C" fn()) = std::mem::transmute(self.start);
            code(function);
        }
        CAPTURED.take().unwrap()
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: made by us; nothing runs in it any more.
        unsafe { libc::munmap(self.start.cast(), 4_096) };
    }
}

/// The frames without and with the one of code made at run time, which glibc cannot follow.
fn with(code: &[u8]) -> (Unwound, Unwound) {
    let code = Code::new(code);
    // The same calls from the same place: one of them directly.
    let direct = Code::new(&[0xff, 0xe7]);
    let mut stacks = [&direct, &code].map(|code| code.call(capture).unwound());
    let [direct, through] = &mut stacks;
    assert_eq!(direct.incomplete, None);
    // `take_until`, `take`, `capture`, and then the one that called it.
    let made = code.start as u64;
    assert!((made..made + 4_096).contains(&through.addresses[3]), "{through:x?}");
    assert!(!through.steps.iter().any(|(address, _)| *address == through.addresses[3]));
    let [direct, through] = stacks;
    (direct, through)
}

#[test]
fn pythons_trampolines_are_certain() {
    for code in [
        // 3.12: sub $8,%rsp; call *%rdi; add $8,%rsp; ret
        &[0x48, 0x83, 0xec, 8, 0xff, 0xd7, 0x48, 0x83, 0xc4, 8, 0xc3][..],
        // 3.14: push %rbp; mov %rsp,%rbp; call *%rdi; pop %rbp; ret
        &[0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3],
        // push %rbx; push %r12; push %rax; call *%rdi; pop %rax; pop %r12; pop %rbx; ret
        &[0x53, 0x41, 0x54, 0x50, 0xff, 0xd7, 0x58, 0x41, 0x5c, 0x5b, 0xc3],
    ] {
        let (direct, mut through) = with(code);
        assert_eq!(through.incomplete, None);
        through.addresses.remove(3);
        assert_eq!(through.addresses, direct.addresses);
    }
}

#[test]
fn other_code_made_at_run_time_is_followed_but_not_believed() {
    // push %rbp; mov %rsp,%rbp; sub $32,%rsp; call *%rdi; nop; leave; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 32, 0xff, 0xd7, 0x90, 0xc9, 0xc3];
    let (direct, mut through) = with(&code);
    let why = through.incomplete.clone().unwrap();
    assert!(why.contains("code made at run time"), "{why}");
    through.addresses.remove(3);
    // As far as no register is needed that such code may have changed.
    let depth = through.addresses.len();
    assert!(depth > 4, "{through:x?}");
    assert_eq!(through.addresses, direct.addresses[..depth]);
}

std::arch::global_asm!(
    // A frame of variable size.
    ".local memtrace_test_alloca",
    ".type memtrace_test_alloca,@function",
    "memtrace_test_alloca:",
    ".cfi_startproc",
    "push %rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset %rbp, -16",
    "mov %rsp, %rbp",
    ".cfi_def_cfa_register %rbp",
    "sub %rdi, %rsp",
    "call *%rsi",
    "leave",
    ".cfi_def_cfa %rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size memtrace_test_alloca, . - memtrace_test_alloca",
    // A frame that is realigned, as gcc does it.
    ".local memtrace_test_realigned",
    ".type memtrace_test_realigned,@function",
    "memtrace_test_realigned:",
    ".cfi_startproc",
    "lea 8(%rsp), %r10",
    ".cfi_def_cfa %r10, 0",
    "and $-64, %rsp",
    "push -8(%r10)",
    "push %rbp",
    "mov %rsp, %rbp",
    ".cfi_escape 0x10, 6, 2, 0x76, 0",
    "push %r10",
    // The CFA was put on the stack, 8 bytes below the frame pointer.
    ".cfi_escape 0x0f, 3, 0x76, 0x78, 0x06",
    "sub $104, %rsp",
    "call *%rdi",
    "add $104, %rsp",
    "pop %r10",
    ".cfi_def_cfa %r10, 0",
    "pop %rbp",
    "lea -8(%r10), %rsp",
    ".cfi_def_cfa %rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size memtrace_test_realigned, . - memtrace_test_realigned",
    // The end of a signal, told by unwind information only: the bytes are not the usual.
    ".local memtrace_test_restorer",
    ".type memtrace_test_restorer,@function",
    ".cfi_startproc",
    ".cfi_signal_frame",
    // The CFA is what lies 160 bytes from rsp: the interrupted rsp.
    ".cfi_escape 0x0f, 4, 0x77, 0xa0, 0x01, 0x06",
    ".cfi_escape 0x10, 16, 3, 0x77, 0xa8, 0x01",
    ".cfi_escape 0x10, 6, 3, 0x77, 0xf8, 0x00",
    ".cfi_escape 0x10, 3, 3, 0x77, 0x80, 0x01",
    ".cfi_escape 0x10, 12, 3, 0x77, 0xc8, 0x00",
    ".cfi_escape 0x10, 13, 3, 0x77, 0xd0, 0x00",
    ".cfi_escape 0x10, 14, 3, 0x77, 0xd8, 0x00",
    ".cfi_escape 0x10, 15, 3, 0x77, 0xe0, 0x00",
    "nop",
    "memtrace_test_restorer:",
    "mov $15, %eax",
    "syscall",
    ".cfi_endproc",
    ".size memtrace_test_restorer, . - memtrace_test_restorer",
    options(att_syntax)
);

unsafe extern "C" {
    fn memtrace_test_alloca(bytes: usize, function: extern "C" fn());
    fn memtrace_test_realigned(function: extern "C" fn());
    fn memtrace_test_restorer();
}

#[test]
fn a_frame_of_variable_size_is_followed() {
    for bytes in [0, 16, 4_096] {
        // SAFETY: a multiple of 16 bytes, which the stack has.
        unsafe { memtrace_test_alloca(bytes, capture) };
        CAPTURED.take().unwrap().check();
    }
}

#[test]
fn a_frame_realigned_as_gcc_does_it_is_followed_and_not_left_to_the_kernel() {
    // SAFETY: a function that takes a function.
    unsafe { memtrace_test_realigned(capture) };
    let unwound = CAPTURED.take().unwrap().check();
    let realigned = unwound.addresses[3];
    let start = memtrace_test_realigned as *const () as u64;
    assert!((start..start + 64).contains(&realigned), "{unwound:x?}");
    assert!(!unwound.steps.iter().any(|(address, _)| *address == realigned));
}

extern "C" fn on_signal(_: c_int) {
    capture();
}

#[test]
fn a_signals_frame_is_followed_by_its_unwind_information() {
    #[repr(C)]
    struct Action {
        handler: extern "C" fn(c_int),
        flags: u64,
        restorer: unsafe extern "C" fn(),
        mask: u64,
    }
    const SA_RESTORER: u64 = 0x0400_0000;
    let action = Action {
        handler: on_signal,
        flags: SA_RESTORER,
        restorer: memtrace_test_restorer,
        mask: 0,
    };
    let signal = libc::SIGWINCH;
    // SAFETY: the kernel's own form of the call; the restorer returns from the signal.
    unsafe {
        let none = std::ptr::null_mut::<Action>();
        let set = libc::syscall(libc::SYS_rt_sigaction, signal, &raw const action, none, 8);
        assert_eq!(set, 0);
        assert_eq!(libc::raise(signal), 0);
    }
    let capture = CAPTURED.take().unwrap();
    let unwound = capture.check();
    let restorer = memtrace_test_restorer as *const () as u64;
    assert!(unwound.addresses.contains(&(restorer | EXACT)), "{unwound:x?}");
    assert!(!unwound.steps.iter().any(|(address, _)| *address & !EXACT == restorer));
}
