//! The few raw `bpf(2)` calls that ability probes, and the empty programs of the benchmark, need.
//!
//! aya loads ELF objects; what is tried here is five instructions long and made by hand, so it
//! goes to the kernel directly. Everything unsafe of ability probing is in this file. It must
//! never load memtrace's own programs: that is aya's work.

use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use aya_obj::generated::{
    bpf_attach_type, bpf_attr, bpf_cmd, bpf_func_info, bpf_map_type, bpf_prog_type,
    perf_event_attr, perf_sw_ids, perf_type_id,
};

use super::program::Instruction;

/// `perf_event_open`: close the descriptor on exec.
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
/// Link flag of uprobe_multi: fire at return.
const UPROBE_MULTI_RETURN: u32 = 1;
/// Some of the helpers that are tried are for programs of a GPL-compatible licence only.
const LICENSE: &std::ffi::CStr = c"Dual MIT/GPL";

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
    pub functions: Option<(&'a OwnedFd, &'a [bpf_func_info])>,
}

impl Program<'_> {
    /// Loads it.
    ///
    /// # Errors
    ///
    /// The kernel's answer: `EPERM` without capabilities or under lockdown, `EINVAL` where the
    /// type or a helper is unknown, `EACCES` where the verifier refuses.
    pub fn load(&self) -> io::Result<OwnedFd> {
        let mut attr = empty_attr();
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
            attr.__bindgen_anon_3.prog_btf_fd = descriptor(btf);
            attr.__bindgen_anon_3.func_info_rec_size = length(size_of::<bpf_func_info>())?;
            attr.__bindgen_anon_3.func_info = functions.as_ptr() as u64;
            attr.__bindgen_anon_3.func_info_cnt = length(functions.len())?;
        }
        bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attr)
    }
}

/// A map to create.
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
    pub types: Option<(&'a OwnedFd, u32, u32)>,
}

impl Map<'_> {
    /// Creates it.
    ///
    /// # Errors
    ///
    /// The kernel's answer: `EPERM` without capabilities, `EINVAL` where the type is unknown.
    pub fn create(&self) -> io::Result<OwnedFd> {
        let mut attr = empty_attr();
        attr.__bindgen_anon_1.map_type = self.kind as u32;
        attr.__bindgen_anon_1.key_size = self.key;
        attr.__bindgen_anon_1.value_size = self.value;
        attr.__bindgen_anon_1.max_entries = self.entries;
        attr.__bindgen_anon_1.map_flags = self.flags;
        attr.__bindgen_anon_1.map_name = object_name(self.name);
        if let Some((btf, key, value)) = self.types {
            attr.__bindgen_anon_1.btf_fd = descriptor(btf);
            attr.__bindgen_anon_1.btf_key_type_id = key;
            attr.__bindgen_anon_1.btf_value_type_id = value;
        }
        bpf_fd(bpf_cmd::BPF_MAP_CREATE, &mut attr)
    }
}

/// Loads BTF that was built by hand.
///
/// # Errors
///
/// The kernel's answer: `EPERM` without capabilities, `EINVAL` for types it does not know.
pub fn load_btf(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = empty_attr();
    attr.__bindgen_anon_7.btf = bytes.as_ptr() as u64;
    attr.__bindgen_anon_7.btf_size = length(bytes.len())?;
    bpf_fd(bpf_cmd::BPF_BTF_LOAD, &mut attr)
}

/// Attaches a program of type tracing to what it was loaded for, until the link is dropped.
///
/// # Errors
///
/// The kernel's answer: `EPERM` where lockdown forbids it.
pub fn attach_tracing(program: &OwnedFd) -> io::Result<OwnedFd> {
    let mut attr = empty_attr();
    attr.raw_tracepoint.prog_fd = descriptor(program);
    bpf_fd(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr)
}

/// Attaches a program to offsets in a file, in all processes, until the link is dropped.
/// `cookies` is empty or as long as `offsets`; both are bytes from the start of the file.
///
/// # Errors
///
/// The kernel's answer: `EINVAL` below kernel 6.6 and for an offset outside the file; an error
/// of this function's own where the lengths differ or the path has a NUL.
pub fn attach_uprobe_multi(
    program: &OwnedFd,
    path: &Path,
    offsets: &[u64],
    cookies: &[u64],
    at_return: bool,
) -> io::Result<OwnedFd> {
    if !cookies.is_empty() && cookies.len() != offsets.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "one cookie for each offset"));
    }
    let path = CString::new(path.as_os_str().as_encoded_bytes())?;
    let mut attr = empty_attr();
    attr.link_create.__bindgen_anon_1.prog_fd = descriptor(program);
    attr.link_create.attach_type = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;
    attr.link_create.__bindgen_anon_3.uprobe_multi.path = path.as_ptr() as u64;
    attr.link_create.__bindgen_anon_3.uprobe_multi.offsets = offsets.as_ptr() as u64;
    attr.link_create.__bindgen_anon_3.uprobe_multi.cnt = length(offsets.len())?;
    if at_return {
        attr.link_create.__bindgen_anon_3.uprobe_multi.flags = UPROBE_MULTI_RETURN;
    }
    if !cookies.is_empty() {
        attr.link_create.__bindgen_anon_3.uprobe_multi.cookies = cookies.as_ptr() as u64;
    }
    bpf_fd(bpf_cmd::BPF_LINK_CREATE, &mut attr)
}

/// Runs a raw tracepoint program once and gives what it returned.
///
/// # Errors
///
/// The kernel's answer: `ENOTSUPP` (524) or `EINVAL` where such programs cannot be run on demand.
pub fn test_run(program: &OwnedFd) -> io::Result<u32> {
    let mut attr = empty_attr();
    attr.test.prog_fd = descriptor(program);
    bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr)?;
    // SAFETY: every byte of the attribute is initialised, and this view is integers.
    Ok(unsafe { attr.test.retval })
}

/// Opens a perf event on one CPU that reports new mappings of every process (MMAP2 records).
///
/// # Errors
///
/// The kernel's answer: `EACCES` or `EPERM` without CAP_PERFMON.
pub fn open_mapping_event(cpu: usize) -> io::Result<OwnedFd> {
    // SAFETY: `perf_event_attr` is integers and unions of integers: all zeros is a valid value.
    let mut attr: perf_event_attr = unsafe { zeroed() };
    attr.type_ = perf_type_id::PERF_TYPE_SOFTWARE as u32;
    attr.size = length(size_of::<perf_event_attr>())?;
    attr.config = perf_sw_ids::PERF_COUNT_SW_DUMMY as u64;
    attr.set_disabled(1);
    attr.set_mmap(1);
    attr.set_mmap2(1);
    let everybody: libc::pid_t = -1;
    let no_group: libc::c_int = -1;
    // SAFETY: `attr` lives through the call and its `size` is its own; the rest are integers.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            everybody,
            libc::c_int::try_from(cpu).unwrap_or(0),
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    owned(answer)
}

fn empty_attr() -> bpf_attr {
    // SAFETY: `bpf_attr` is a union of structs of integers: all zeros is a valid value, and
    // the kernel asks for zeros in what it does not know.
    unsafe { zeroed() }
}

fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<libc::c_long> {
    // SAFETY: `attr` lives through the call and its own size is passed; the addresses in it are
    // of slices and strings that the callers hold until this returns.
    let answer = unsafe {
        libc::syscall(libc::SYS_bpf, command as libc::c_long, attr, size_of::<bpf_attr>())
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn bpf_fd(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    owned(bpf(command, attr)?)
}

fn owned(answer: libc::c_long) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(answer).ok().filter(|fd| *fd >= 0);
    let fd = fd.ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made this descriptor for us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn descriptor(fd: &OwnedFd) -> u32 {
    // A descriptor that exists is never negative.
    u32::try_from(fd.as_raw_fd()).unwrap_or(u32::MAX)
}

fn length(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

fn object_name(name: &str) -> [libc::c_char; 16] {
    let mut field = [0; 16];
    // The last byte stays 0.
    for (to, from) in field.iter_mut().take(15).zip(name.bytes()) {
        *to = from.cast_signed();
    }
    field
}
