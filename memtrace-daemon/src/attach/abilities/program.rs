//! Tiny BPF programs, written by hand, instruction by instruction.
//!
//! Each tries one thing that memtrace's own programs rely on. They hold no state and touch no
//! memory but their own stack. Encoding: kernel documentation, `bpf/standardization/instruction-set`.

use std::os::fd::{AsRawFd, OwnedFd};

/// `bpf_probe_read_kernel`.
const PROBE_READ_KERNEL: i32 = 113;
/// `bpf_task_storage_get`.
const TASK_STORAGE_GET: i32 = 156;
/// `bpf_get_current_task_btf`.
const GET_CURRENT_TASK_BTF: i32 = 158;
/// `bpf_for_each_map_elem`.
const FOR_EACH_MAP_ELEM: i32 = 164;
/// `bpf_get_attach_cookie`.
const GET_ATTACH_COOKIE: i32 = 174;

/// `BPF_PSEUDO_MAP_FD`: the immediate of a wide load is a map's descriptor.
const MAP_FD: u8 = 1;
/// `BPF_PSEUDO_FUNC`: the immediate of a wide load is a function, as a distance from the next one.
const FUNCTION: u8 = 4;

/// One instruction, as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    code: u8,
    /// Destination register in the low half, source register in the high half.
    registers: u8,
    offset: i16,
    immediate: i32,
}
const _: () = assert!(size_of::<Instruction>() == 8, "an instruction is 8 bytes");

impl Instruction {
    const fn new(code: u8, destination: u8, source: u8, immediate: i32) -> Self {
        Self { code, registers: destination | source << 4, offset: 0, immediate }
    }
}

/// `destination = immediate`
const fn set(destination: u8, immediate: i32) -> Instruction {
    Instruction::new(0xb7, destination, 0, immediate)
}

/// `destination = source`
const fn copy(destination: u8, source: u8) -> Instruction {
    Instruction::new(0xbf, destination, source, 0)
}

/// `destination += immediate`
const fn add(destination: u8, immediate: i32) -> Instruction {
    Instruction::new(0x07, destination, 0, immediate)
}

/// `r0 = helper(r1, …, r5)`
const fn call(helper: i32) -> Instruction {
    Instruction::new(0x85, 0, 0, helper)
}

/// `return r0`
const fn exit() -> Instruction {
    Instruction::new(0x95, 0, 0, 0)
}

/// A wide load: two instructions.
const fn wide(destination: u8, kind: u8, immediate: i32) -> [Instruction; 2] {
    [Instruction::new(0x18, destination, kind, immediate), Instruction::new(0, 0, 0, 0)]
}

/// Returns 0.
#[must_use]
pub fn nothing() -> Vec<Instruction> {
    vec![set(0, 0), exit()]
}

/// Asks for the cookie of its attachment (of type kprobe).
#[must_use]
pub fn read_cookie() -> Vec<Instruction> {
    vec![call(GET_ATTACH_COOKIE), set(0, 0), exit()]
}

/// Reads 8 bytes of kernel memory (its own stack) by address.
#[must_use]
pub fn read_kernel_memory() -> Vec<Instruction> {
    vec![copy(1, 10), add(1, -8), set(2, 8), copy(3, 1), call(PROBE_READ_KERNEL), set(0, 0), exit()]
}

/// Gets, or makes, the running task's entry of a task storage map.
#[must_use]
pub fn use_task_storage(map: &OwnedFd) -> Vec<Instruction> {
    let [load, rest] = wide(1, MAP_FD, map.as_raw_fd());
    vec![
        call(GET_CURRENT_TASK_BTF),
        copy(2, 0),
        load,
        rest,
        set(3, 0),
        set(4, 1),
        call(TASK_STORAGE_GET),
        set(0, 0),
        exit(),
    ]
}

/// Where the callback of [`count_elements`] begins, in instructions.
pub const COUNT_CALLBACK: u32 = 8;

/// Returns how many elements a map has, by a callback on each.
#[must_use]
pub fn count_elements(map: &OwnedFd) -> Vec<Instruction> {
    let [map, map_rest] = wide(1, MAP_FD, map.as_raw_fd());
    // From the instruction after the wide load's first half at 2.
    let [callback, callback_rest] = wide(2, FUNCTION, COUNT_CALLBACK.cast_signed() - 3);
    vec![
        map,
        map_rest,
        callback,
        callback_rest,
        set(3, 0),
        set(4, 0),
        call(FOR_EACH_MAP_ELEM),
        exit(),
        // The callback: go on.
        set(0, 0),
        exit(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_have_the_kernels_encoding() {
        // llvm-mc's bytes for `r1 = r10`, `r1 += -8`, `call 113`.
        let bytes = |i: Instruction| {
            let [low, high] = i.offset.to_le_bytes();
            let [a, b, c, d] = i.immediate.to_le_bytes();
            [i.code, i.registers, low, high, a, b, c, d]
        };
        assert_eq!(bytes(copy(1, 10)), [0xbf, 0xa1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(add(1, -8)), [0x07, 0x01, 0, 0, 0xf8, 0xff, 0xff, 0xff]);
        assert_eq!(bytes(call(113)), [0x85, 0, 0, 0, 0x71, 0, 0, 0]);
    }
}
