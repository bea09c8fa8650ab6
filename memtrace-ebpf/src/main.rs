//! memtrace's kernel side: programs on the kernel's allocator tracepoints, on process events
//! and on allocator functions of libraries.
//!
//! The kernel side is the authority for the books. Counters are cumulative and are never
//! zeroed; records only report them. A failing branch is never silent: it counts its own
//! [`LossCause`](memtrace_common::LossCause).
#![no_std]
#![no_main]
#![feature(asm_experimental_arch, core_intrinsics)]
#![allow(internal_features, reason = "the BPF target has no other way to atomic instructions")]

mod account;
mod ages;
mod alloc_api;
mod arch;
mod atomic;
mod call_books;
mod context;
mod copy;
mod emit;
mod flush;
mod geometry;
mod globals;
mod inflight;
mod kmem;
mod latency;
mod lifecycle;
mod live;
mod loss;
mod mapped;
mod maps;
mod nested;
mod process;
mod stack;
mod task;
mod usdt;
mod walk;

/// What the kernel checks before it lets a program call GPL-only helpers.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: a program with a path to it does not pass the verifier.
    loop {}
}
