//! What depends on the architecture: registers, the argument slots of a tracepoint, the size
//! of a kernel stack. x86-64 only.

use core::{arch::asm, ffi::c_void};

use aya_ebpf::{bindings::pt_regs, helpers::bpf_probe_read_kernel};

/// Bytes of a task's kernel stack (`THREAD_SIZE`).
const KERNEL_STACK_BYTES: u64 = 16 << 10;

macro_rules! load_slot {
    ($context:expr, $offset:literal) => {{
        let value: u64;
        // SAFETY: a load from the context, at a place that the verifier knows. In
        // assembly, because the compiler would merge the arms of a match into one load at a
        // computed address, which the verifier refuses for a context.
        unsafe {
            asm!(concat!("{0} = *(u64 *)({1} + ", $offset, ")"), out(reg) value, in(reg) $context,
                options(nostack, readonly, preserves_flags));
        }
        value
    }};
}

/// Integer argument `n` of a function by the System V calling convention; 0 beyond the sixth.
#[inline(always)]
pub fn argument(regs: *const pt_regs, n: u8) -> u64 {
    // Offsets of the registers in pt_regs.
    match n {
        0 => load_slot!(regs, 112), // rdi
        1 => load_slot!(regs, 104), // rsi
        2 => load_slot!(regs, 96),  // rdx
        3 => load_slot!(regs, 88),  // rcx
        4 => load_slot!(regs, 72),  // r8
        5 => load_slot!(regs, 64),  // r9
        _ => 0,
    }
}

/// The return value.
#[inline(always)]
pub fn return_value(regs: *const pt_regs) -> u64 {
    // SAFETY: the context of a uprobe program is a valid pt_regs.
    unsafe { (*regs).rax }
}

/// The stack pointer.
#[inline(always)]
pub fn stack_pointer(regs: *const pt_regs) -> u64 {
    // SAFETY: the context of a uprobe program is a valid pt_regs.
    unsafe { (*regs).rsp }
}

/// The instruction pointer; at a return, where the function has returned to.
#[inline(always)]
pub fn instruction_pointer(regs: *const pt_regs) -> u64 {
    // SAFETY: the context of a uprobe program is a valid pt_regs.
    unsafe { (*regs).rip }
}

/// The register at a place of `pt_regs`, in bytes, that user space has found out.
#[inline(always)]
pub fn register(context: *mut c_void, place: u16) -> Option<u64> {
    // Bounded for the verifier; what is beyond the registers is nothing that user space names.
    let place = usize::from(place & 0xf8);
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(context.cast::<u8>().add(place).cast::<u64>()) }.ok()
}

/// Places of registers in `pt_regs`.
pub const PT_REGS_BP: usize = 4;
pub const PT_REGS_IP: usize = 16;
pub const PT_REGS_SP: usize = 19;

/// By how much the stack pointer is larger at return than at entry: the return address is gone.
pub const RETURN_POPS: u64 = 8;

/// Argument `n` of a BTF tracepoint, where `n` is known only when the program is loaded.
#[inline(always)]
pub fn tracepoint_argument(context: *mut c_void, n: u64) -> u64 {
    match n {
        0 => load_slot!(context, 0),
        1 => load_slot!(context, 8),
        2 => load_slot!(context, 16),
        3 => load_slot!(context, 24),
        4 => load_slot!(context, 32),
        _ => 0,
    }
}

/// Whether the context of a tracepoint lies on the stack that begins at `stack`: if not, the
/// CPU is on an interrupt stack.
#[inline(always)]
pub fn on_stack(context: *mut c_void, stack: u64) -> bool {
    let inside: u64;
    let end = stack + KERNEL_STACK_BYTES;
    // SAFETY: compares only. In assembly, because the compiler would turn the two comparisons
    // into a subtraction, which the verifier refuses for a context.
    unsafe {
        asm!(
            "{inside} = 1",
            "if {context} < {stack} goto +1",
            "if {context} < {end} goto +1",
            "{inside} = 0",
            inside = out(reg) inside,
            context = in(reg) context,
            stack = in(reg) stack,
            end = in(reg) end,
            options(nostack, nomem),
        );
    }
    inside != 0
}

/// The same value, of which the compiler knows nothing.
#[inline(always)]
pub fn opaque(mut value: u64) -> u64 {
    // SAFETY: a move. Without any instruction two lines would be at one place, which the kernel
    // refuses.
    unsafe { asm!("{0} = {0}", inout(reg) value, options(nostack, nomem, preserves_flags)) };
    value
}
