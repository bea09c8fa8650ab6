//! Taking stacks, and hashing a kernel stack where it is the identity of an account.

use core::ffi::c_void;

use aya_ebpf::{bindings::BPF_F_USER_STACK, helpers::generated::bpf_get_stack};
use memtrace_common::{MAX_KERNEL_FRAMES, MAX_USER_FRAMES};

use crate::maps::SCRATCH;

const FRAME_BYTES: i64 = size_of::<u64>() as i64;

/// Writes the kernel stack and returns the number of frames; 0 where it cannot be taken.
#[inline(always)]
pub fn kernel(context: *mut c_void, frames: *mut [u64; MAX_KERNEL_FRAMES]) -> u32 {
    take(context, frames.cast(), size_of::<[u64; MAX_KERNEL_FRAMES]>() as u32, 0)
}

/// Writes the user stack by frame pointers and returns the number of frames.
#[inline(always)]
pub fn user(context: *mut c_void, frames: *mut [u64; MAX_USER_FRAMES]) -> u32 {
    take(
        context,
        frames.cast(),
        size_of::<[u64; MAX_USER_FRAMES]>() as u32,
        u64::from(BPF_F_USER_STACK),
    )
}

#[inline(always)]
fn take(context: *mut c_void, frames: *mut c_void, bytes: u32, flags: u64) -> u32 {
    // SAFETY: `frames` is memory of `bytes` bytes that the verifier knows. The helper clears
    // what it does not fill.
    let got = unsafe { bpf_get_stack(context, frames, bytes, flags) };
    if got < 0 { 0 } else { (got / FRAME_BYTES) as u32 }
}

/// The hash of the kernel stack, never 0; 0 where it cannot be taken. `program` names the
/// scratch memory: a program never interrupts itself.
#[inline(always)]
pub fn kernel_hash(context: *mut c_void, program: u32) -> u64 {
    let Some(scratch) = SCRATCH.get_ptr_mut(program) else { return 0 };
    let count = u64::from(kernel(context, scratch));
    if count == 0 {
        return 0;
    }
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut index = 0_u64;
    while index < MAX_KERNEL_FRAMES as u64 {
        if index >= count {
            break;
        }
        // SAFETY: index is below the length of the scratch array.
        let frame = unsafe { core::ptr::read_volatile(scratch.cast::<u64>().add(index as usize)) };
        hash = mix(hash ^ frame);
        index += 1;
    }
    hash | 1
}

/// One round of the finaliser of MurmurHash3: every input bit reaches every output bit.
#[inline(always)]
fn mix(mut value: u64) -> u64 {
    value ^= value >> 33;
    value = value.wrapping_mul(0xff51_afd7_ed55_8ccd);
    value ^= value >> 33;
    value = value.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}
