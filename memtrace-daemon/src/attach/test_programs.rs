//! BPF programs written by hand, for tests of attaching.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use aya::maps::{Array, Map, MapData};
use aya_obj::generated::{bpf_insn, bpf_map_type};

use super::sys::{self, ProgramImage};

/// Counts its runs by the low four bits of the attach cookie.
pub struct Counter {
    /// The program.
    pub program: OwnedFd,
    counts: Array<MapData, u64>,
}

impl Counter {
    /// Loads it.
    pub fn load(uprobe_multi: bool) -> Self {
        let object =
            aya_obj::Map::new_from_params(bpf_map_type::BPF_MAP_TYPE_ARRAY as u32, 4, 8, 16, 0);
        let map = MapData::create(object, "mt_test_counts", None).unwrap();
        let instructions = counting(map.fd().as_fd().as_raw_fd());
        let program = sys::load_program(&ProgramImage {
            name: "mt_test_count",
            instructions: &instructions,
            license: c"GPL",
            uprobe_multi,
            btf: None,
        })
        .unwrap();
        Self { program, counts: Array::try_from(Map::Array(map)).unwrap() }
    }

    /// Runs seen with this cookie.
    pub fn count(&self, cookie: u32) -> u64 {
        self.counts.get(&cookie, 0).unwrap()
    }
}

fn instruction(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> bpf_insn {
    // SAFETY: plain numbers; all zero is a value.
    let mut instruction: bpf_insn = unsafe { std::mem::zeroed() };
    instruction.code = code;
    instruction.set_dst_reg(dst);
    instruction.set_src_reg(src);
    instruction.off = off;
    instruction.imm = imm;
    instruction
}

/// `exit`
pub fn exit() -> bpf_insn {
    instruction(0x95, 0, 0, 0, 0)
}

fn counting(map: i32) -> Vec<bpf_insn> {
    vec![
        instruction(0x85, 0, 0, 0, 174), // r0 = bpf_get_attach_cookie(ctx)
        instruction(0x57, 0, 0, 0, 15),  // r0 &= 15
        instruction(0x63, 10, 0, -4, 0), // *(u32 *)(r10 - 4) = r0
        instruction(0x18, 1, 1, 0, map), // r1 = map
        instruction(0, 0, 0, 0, 0),      //   (second half)
        instruction(0xbf, 2, 10, 0, 0),  // r2 = r10
        instruction(0x07, 2, 0, 0, -4),  // r2 += -4
        instruction(0x85, 0, 0, 0, 1),   // r0 = bpf_map_lookup_elem(r1, r2)
        instruction(0x15, 0, 0, 2, 0),   // if r0 == 0 goto + 2
        instruction(0xb7, 1, 0, 0, 1),   // r1 = 1
        instruction(0xdb, 0, 1, 0, 0),   // lock *(u64 *)(r0 + 0) += r1
        instruction(0xb7, 0, 0, 0, 0),   // r0 = 0
        exit(),
    ]
}
