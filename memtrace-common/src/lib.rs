//! What the kernel side and the user side of memtrace agree on: records, keys,
//! counters, function descriptions, loss causes and tunables.
//!
//! Every type here is plain data with a fixed layout: `#[repr(C)]`, no implicit
//! padding (`bytemuck::Pod` refuses it) and a compile-time assertion of its size.
//! This crate must never depend on aya, allocate, or know what a record means.
#![no_std]

mod account;
mod control;
mod domain;
mod function;
mod latency;
mod loss;
mod process;
mod record;
pub mod tunables;
mod unwind;
mod usdt;

pub use account::{
    AGE_CLASSES, Account, AccountKey, AgeRow, Amount, Context, Totals, TotalsKey, UNATTRIBUTED_SLOT,
};
pub use bytemuck;
pub use control::{CallLive, CallLiveKey, Control};
pub use domain::Domain;
pub use function::{
    Counted, DeviceRule, FIRST_DECLARED_FUNCTION, FIRST_LIBRARY_FUNCTION, FIRST_STATIC_PROBE,
    Family, FunctionId, FunctionKind, FunctionSpec, KMALLOC, KMEM_CACHE_ALLOC, PointerClass,
    PointerRule, SizeRule, Success, cookie, cookie_attachment, cookie_function,
};
pub use latency::{LATENCY_BUCKETS, LATENCY_SHIFT, Latency};
pub use loss::{LossCause, LossCounter};
pub use process::{Policy, ProcessEntry, ProcessFlags, ProcessKey};
pub use record::{
    AccountAgesRecord, AccountRecord, AllocationRecord, DuplicateRecord, FreeReason, FreeRecord,
    KernelSampleRecord, MAX_KERNEL_FRAMES, MAX_USER_FRAMES, PT_REGS, ProcessRecord, RecordHeader,
    RecordKind, StackForm, StackHead, TotalsRecord,
};
pub use unwind::{Learned, MAX_COPY, MAX_SLOTS, MAX_WALK, Step, StepKey};
pub use usdt::{UsdtArgument, UsdtPlace, UsdtPoint, usdt_cookie};

/// Asserts at compile time that a shared type has the size that both sides expect.
macro_rules! assert_size {
    ($type:ty, $bytes:expr) => {
        const _: () = assert!(core::mem::size_of::<$type>() == $bytes, "size changed");
    };
}
pub(crate) use assert_size;
