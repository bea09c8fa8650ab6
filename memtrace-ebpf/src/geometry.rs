//! Sizes by geometry and format: extents that are passed in memory, arrays and mipmapped arrays.
//!
//! Layouts and values are those of CUDA's `driver_types.h` and `cuda.h`; HIP's are the same.
//! Nothing is counted here: a size that cannot be known is for the caller to count.

use aya_ebpf::helpers::bpf_probe_read_user;
use memtrace_common::SizeRule;

/// What could not be read, or is of a format that nobody knows. No array has no bytes.
pub const UNKNOWN: u64 = 0;
/// What is implausibly large, or has sides that could not be read.
pub const UNREADABLE: u64 = u64::MAX;
/// Where an argument lies that is passed in memory: behind the return address.
const FIRST_IN_MEMORY: u64 = 8;
/// No side of an array is that long: CUDA's longest is 2^17.
const LONGEST: u64 = 1 << 18;
/// Levels of a mipmapped array whose side is the longest, each half the one before.
const LEVELS: u64 = 18;
/// In flags: what is third is no depth, but layers or faces, of which each level has all.
const LAYERS: u64 = 1 | 4;

/// `cudaChannelFormatDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Channels {
    bits: [i32; 4],
    kind: u32,
}

/// What `CUDA_ARRAY_DESCRIPTOR` and `CUDA_ARRAY3D_DESCRIPTOR` have behind their sides.
#[repr(C)]
#[derive(Clone, Copy)]
struct Format {
    format: u32,
    channels: u32,
}

/// The bytes that a call asks for, as its [`SizeRule`] says; for a pitched extent, height ×
/// depth. `third` and `fourth` are arguments 2 and 3 of the call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn mt_geometry(
    rule: u64,
    stack: u64,
    description: u64,
    third: u64,
    fourth: u64,
) -> u64 {
    let extent = stack.wrapping_add(FIRST_IN_MEMORY);
    match rule as u8 {
        s if s == SizeRule::PitchedExtent as u8 => {
            let [_, height, depth] = sides(extent);
            if height >= 1 << 31 || depth >= 1 << 31 { u64::MAX } else { height * depth }
        }
        s if s == SizeRule::ChannelArray as u8 => {
            bytes([third, fourth, 0], channel_bits(description), 1, 0)
        }
        s if s == SizeRule::ChannelExtent as u8 => {
            bytes(sides(extent), channel_bits(description), 1, third)
        }
        s if s == SizeRule::ChannelMipmap as u8 => {
            bytes(sides(extent), channel_bits(description), third as u32 as u64, fourth)
        }
        s if s == SizeRule::ArrayDescriptor as u8 => {
            let [width, height, _] = sides(description);
            bytes([width, height, 0], format_bits(description.wrapping_add(16)), 1, 0)
        }
        s => {
            let levels =
                if s == SizeRule::MipmapDescriptor as u8 { third as u32 as u64 } else { 1 };
            let flags = description.wrapping_add(32) as *const u32;
            // SAFETY: the helper checks the address.
            let flags = unsafe { bpf_probe_read_user(flags) }.unwrap_or(0);
            let bits = format_bits(description.wrapping_add(24));
            bytes(sides(description), bits, levels, u64::from(flags))
        }
    }
}

/// Three sides in memory; what cannot be read is implausibly long.
#[inline(always)]
fn sides(at: u64) -> [u64; 3] {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_user(at as *const [u64; 3]) }.unwrap_or([UNREADABLE; 3])
}

/// Bits of a texel by a runtime's description; 0 where that is not known.
#[inline(always)]
fn channel_bits(at: u64) -> u64 {
    // SAFETY: the helper checks the address.
    let Ok(channels) = (unsafe { bpf_probe_read_user(at as *const Channels) }) else { return 0 };
    let [x, y, z, w] = channels.bits;
    match channels.kind {
        // Integers, floating point numbers, and what is normalized to such.
        0..=2 | 5..=16 => {
            if x < 0 || y < 0 || z < 0 || w < 0 {
                return 0;
            }
            x as u64 + y as u64 + z as u64 + w as u64
        }
        4 => 12,
        // Compressed in blocks of 16 texels, of 8 or of 16 bytes.
        17 | 18 | 23 | 24 => 4,
        19..=22 | 25..=30 => 8,
        _ => 0,
    }
}

/// Bits of a texel by a driver's format; 0 where that is not known.
#[inline(always)]
fn format_bits(at: u64) -> u64 {
    // SAFETY: the helper checks the address.
    let Ok(format) = (unsafe { bpf_probe_read_user(at as *const Format) }) else { return 0 };
    let channels = format.channels as u64;
    match format.format {
        0x01 | 0x08 => 8 * channels,
        0x02 | 0x09 | 0x10 => 16 * channels,
        0x03 | 0x0a | 0x20 => 32 * channels,
        0xb0 => 12,
        0x91 | 0x92 | 0x97 | 0x98 => 4,
        0x93..=0x96 | 0x99..=0x9e => 8,
        0xc0 | 0xc6 => 8,
        0xc1 | 0xc3 | 0xc7 | 0xc9 => 16,
        0xc2 | 0xc4 | 0xc8 | 0xca => 32,
        0xc5 | 0xcb => 64,
        _ => 0,
    }
}

/// Bytes of all levels of an array. A side of 0 is one that the array does not have.
#[inline(always)]
fn bytes(sides: [u64; 3], bits: u64, levels: u64, flags: u64) -> u64 {
    let [width, height, depth] = sides;
    if bits == 0 || bits > 128 {
        return UNKNOWN;
    }
    if width >= LONGEST || height >= LONGEST || depth >= LONGEST {
        return UNREADABLE;
    }
    let halves = if flags & LAYERS == 0 { 1 } else { 0 };
    mt_array_bytes(width, height, depth, bits, levels << 1 | halves)
}

/// The sum over the levels; `levels` is their number × 2, and 1 more where each is half as deep.
/// Without branches but for the end: the verifier follows each of them anew at each level. Three
/// sides below 2^18 by 2^7 bits overflow nothing.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mt_array_bytes(
    mut width: u64,
    mut height: u64,
    mut depth: u64,
    bits: u64,
    levels: u64,
) -> u64 {
    let halves = levels & 1;
    let mut sum = 0;
    let mut level = 1;
    while level <= LEVELS {
        sum += (one(width) * one(height) * one(depth) * bits + 7) / 8;
        if level >= levels >> 1 {
            break;
        }
        width >>= 1;
        height >>= 1;
        depth >>= halves;
        level += 1;
    }
    sum
}

/// At least 1.
#[inline(always)]
fn one(side: u64) -> u64 {
    side + (side.wrapping_sub(1) >> 63)
}
