//! The bpf(2) calls that only trying abilities, and the empty programs of the benchmark, need:
//! loading a program of any type from hand-made instructions, making a map, attaching a program
//! of type tracing. The others are those of `attach/sys.rs`.
//!
//! Must never load memtrace's own programs or make its maps: that is aya's work.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use aya_obj::generated::{bpf_attach_type, bpf_cmd, bpf_func_info, bpf_map_type, bpf_prog_type};

use super::program::Instruction;
use crate::attach::sys::{bpf_fd, length, zeroed};

/// Some of the helpers that are tried are for programs of a GPL-compatible licence only.
const LICENSE: &CStr = c"Dual MIT/GPL";

/// A program to load.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// At most 15 characters.
    pub name: &'a str,
    /// Its type.
    pub kind: bpf_prog_type,
    /// Where it will be attached, for types that fix this at load.
    pub attach: Option<bpf_attach_type>,
    /// The BTF id of the kernel type or function it is for; 0 for none.
    pub attach_btf_id: u32,
    /// The program itself.
    pub instructions: &'a [Instruction],
    /// Its own BTF and where its functions begin in it; callbacks need this.
    pub functions: Option<(BorrowedFd<'a>, &'a [bpf_func_info])>,
}

impl Program<'_> {
    /// Loads it.
    ///
    /// # Errors
    /// What the kernel said: `EPERM` without capabilities or under lockdown, `EINVAL` where the
    /// type or a helper is unknown, `EACCES` where the verifier refuses.
    pub fn load(&self) -> io::Result<OwnedFd> {
        let mut attr = zeroed();
        attr.__bindgen_anon_3.prog_type = self.kind as u32;
        attr.__bindgen_anon_3.insn_cnt = length(self.instructions.len())?;
        attr.__bindgen_anon_3.insns = self.instructions.as_ptr() as u64;
        attr.__bindgen_anon_3.license = LICENSE.as_ptr() as u64;
        attr.__bindgen_anon_3.attach_btf_id = self.attach_btf_id;
        attr.__bindgen_anon_3.prog_name = object_name(self.name);
        if let Some(attach) = self.attach {
            attr.__bindgen_anon_3.expected_attach_type = attach as u32;
        }
        if let Some((btf, functions)) = self.functions {
            attr.__bindgen_anon_3.prog_btf_fd = btf.as_raw_fd().cast_unsigned();
            attr.__bindgen_anon_3.func_info_rec_size = length(size_of::<bpf_func_info>())?;
            attr.__bindgen_anon_3.func_info = functions.as_ptr() as u64;
            attr.__bindgen_anon_3.func_info_cnt = length(functions.len())?;
        }
        // SAFETY: the pointers are to slices and a string that `self` borrows or that are
        // static, with their lengths; the command gives a new descriptor.
        unsafe { bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attr) }
    }
}

/// A map to make.
#[derive(Clone, Copy, Debug)]
pub struct Map<'a> {
    /// At most 15 characters.
    pub name: &'a str,
    /// Its type.
    pub kind: bpf_map_type,
    /// Bytes of a key.
    pub key: u32,
    /// Bytes of a value.
    pub value: u32,
    /// Entries; bytes for a ring buffer.
    pub entries: u32,
    /// Flags of `BPF_MAP_CREATE`.
    pub flags: u32,
    /// BTF with the type ids of key and value; task storage needs it.
    pub types: Option<(BorrowedFd<'a>, u32, u32)>,
}

impl Map<'_> {
    /// Makes it.
    ///
    /// # Errors
    /// What the kernel said: `EPERM` without capabilities, `EINVAL` where the type is unknown.
    pub fn create(&self) -> io::Result<OwnedFd> {
        let mut attr = zeroed();
        attr.__bindgen_anon_1.map_type = self.kind as u32;
        attr.__bindgen_anon_1.key_size = self.key;
        attr.__bindgen_anon_1.value_size = self.value;
        attr.__bindgen_anon_1.max_entries = self.entries;
        attr.__bindgen_anon_1.map_flags = self.flags;
        attr.__bindgen_anon_1.map_name = object_name(self.name);
        if let Some((btf, key, value)) = self.types {
            attr.__bindgen_anon_1.btf_fd = btf.as_raw_fd().cast_unsigned();
            attr.__bindgen_anon_1.btf_key_type_id = key;
            attr.__bindgen_anon_1.btf_value_type_id = value;
        }
        // SAFETY: no pointers in it; the command gives a new descriptor.
        unsafe { bpf_fd(bpf_cmd::BPF_MAP_CREATE, &mut attr) }
    }
}

/// Attaches a program of type tracing to what it was loaded for, until the link is dropped.
///
/// # Errors
/// What the kernel said.
pub fn attach_tracing(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    attr.raw_tracepoint.prog_fd = program.as_raw_fd().cast_unsigned();
    // SAFETY: no pointers in it; the command gives a new descriptor.
    unsafe { bpf_fd(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr) }
}

fn object_name(name: &str) -> [libc::c_char; 16] {
    let mut field = [0; 16];
    // The last byte stays zero.
    for (to, from) in field.iter_mut().take(15).zip(name.bytes()) {
        *to = from.cast_signed();
    }
    field
}
