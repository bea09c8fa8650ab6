//! The system calls that aya has no safe form of: bpf(2) for programs and links of its own,
//! and perf_event_open(2).
//!
//! All of `unsafe` that attaching needs, apart from the mapped ring of `ring.rs`, is here.
//! Must never be given raw descriptors: borrowed ones only, so that none is closed twice.

use std::ffi::{CStr, c_int, c_long};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_insn, bpf_prog_type, perf_event_attr};
use thiserror::Error;

/// Most of a verifier's log that is kept, lines from its end.
const LOG_LINES: usize = 12;
/// The verifier's log buffer, bytes. Kernels since 6.4 keep the end of a longer log.
const LOG_BYTES: usize = 1 << 20;
/// Loading is tried again after EAGAIN (a signal came during verification), this often.
const LOAD_TRIES: u32 = 5;

/// `BPF_TRACE_UPROBE_MULTI`, for programs and links.
const TRACE_UPROBE_MULTI: u32 = 48;
/// `BPF_PERF_EVENT`.
const PERF_EVENT: u32 = 41;
/// `BPF_F_UPROBE_MULTI_RETURN`.
const UPROBE_MULTI_RETURN: u32 = 1;
/// `PERF_FLAG_FD_CLOEXEC`.
const PERF_FLAG_FD_CLOEXEC: u64 = 8;

/// A program that the kernel refused.
#[derive(Debug, Error)]
#[error("the kernel refused the program {name}: {source}{log}")]
pub struct LoadError {
    /// The program.
    pub name: String,
    /// What the kernel said.
    #[source]
    pub source: io::Error,
    /// The end of the verifier's log, with a newline before it; empty where there is none.
    pub log: String,
}

/// A program as it goes to `BPF_PROG_LOAD`.
#[derive(Debug)]
pub struct ProgramImage<'a> {
    /// Name; the kernel keeps 15 characters.
    pub name: &'a str,
    /// Instructions, relocated.
    pub instructions: &'a [bpf_insn],
    /// Licence.
    pub license: &'a CStr,
    /// Whether it is to be attached by `uprobe_multi` (else by perf event).
    pub uprobe_multi: bool,
    /// BTF, which callbacks need.
    pub btf: Option<ProgramBtf<'a>>,
}

/// Types of a program: a loaded BTF and what it says of the instructions.
#[derive(Debug)]
pub struct ProgramBtf<'a> {
    /// The loaded BTF.
    pub fd: BorrowedFd<'a>,
    /// `bpf_func_info` records: bytes of all, bytes of one.
    pub functions: (&'a [u8], u32),
    /// `bpf_line_info` records: bytes of all, bytes of one.
    pub lines: (&'a [u8], u32),
}

/// Loads a program of type kprobe. The verifier's log is asked for only after a failure.
///
/// # Errors
/// What the kernel said, with the end of the verifier's log.
pub fn load_program(image: &ProgramImage<'_>) -> Result<OwnedFd, LoadError> {
    let source = match try_load(image, &mut []) {
        Ok(program) => return Ok(program),
        Err(error) => error,
    };
    let mut log = vec![0; LOG_BYTES];
    match try_load(image, &mut log) {
        // It failed for want of something that is there now.
        Ok(program) => Ok(program),
        Err(_) => Err(LoadError { name: image.name.to_owned(), source, log: log_tail(&log) }),
    }
}

fn try_load(image: &ProgramImage<'_>, log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    // SAFETY: all of the union is zero, and any bytes are a value of its plain fields.
    let load = unsafe { &mut attr.__bindgen_anon_3 };
    load.prog_type = bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32;
    load.insns = image.instructions.as_ptr() as u64;
    load.insn_cnt = length(image.instructions.len())?;
    load.license = image.license.as_ptr() as u64;
    // The last of the 16 bytes stays zero.
    for (to, from) in load.prog_name.iter_mut().take(15).zip(image.name.bytes()) {
        *to = from.cast_signed();
    }
    if image.uprobe_multi {
        load.expected_attach_type = TRACE_UPROBE_MULTI;
    }
    if let Some(btf) = &image.btf {
        load.prog_btf_fd = btf.fd.as_raw_fd().cast_unsigned();
        let (functions, size) = btf.functions;
        load.func_info = functions.as_ptr() as u64;
        load.func_info_rec_size = size;
        load.func_info_cnt = length(functions.len())?.checked_div(size).unwrap_or(0);
        let (lines, size) = btf.lines;
        load.line_info = lines.as_ptr() as u64;
        load.line_info_rec_size = size;
        load.line_info_cnt = length(lines.len())?.checked_div(size).unwrap_or(0);
    }
    if !log.is_empty() {
        load.log_level = 1;
        load.log_buf = log.as_mut_ptr() as u64;
        load.log_size = length(log.len())?;
    }
    let mut tries = 0;
    loop {
        // SAFETY: every pointer in `attr` is to memory that `image` or `log` borrows, with the
        // lengths given beside it.
        match unsafe { bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attr) } {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && tries < LOAD_TRIES => {
                tries += 1;
            }
            result => return result,
        }
    }
}

/// Loads BTF.
///
/// # Errors
/// What the kernel said.
pub fn load_btf(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    // SAFETY: as in `try_load`.
    let load = unsafe { &mut attr.__bindgen_anon_7 };
    load.btf = bytes.as_ptr() as u64;
    load.btf_size = length(bytes.len())?;
    // SAFETY: the pointer is to `bytes`, of the length given.
    unsafe { bpf_fd(bpf_cmd::BPF_BTF_LOAD, &mut attr) }
}

/// Attaches a program to many places of a file, for every process, by one link. Closing the
/// link detaches.
///
/// # Errors
/// What the kernel said; nothing is attached then.
pub fn link_uprobe_multi(
    program: BorrowedFd<'_>,
    path: &CStr,
    offsets: &[u64],
    cookies: &[u64],
    return_probe: bool,
) -> io::Result<OwnedFd> {
    let flags = if return_probe { UPROBE_MULTI_RETURN } else { 0 };
    link_multi(program, path, (offsets, cookies, None), flags, None)
}

/// The same at static probes: the kernel adds to the counter at each of `counters` (0 for none)
/// while the link is there. With `process`, a thread group id, only that process is probed.
///
/// # Errors
/// What the kernel said; nothing is attached then.
pub fn link_static_probes(
    program: BorrowedFd<'_>,
    path: &CStr,
    offsets: &[u64],
    cookies: &[u64],
    counters: &[u64],
    process: Option<u32>,
) -> io::Result<OwnedFd> {
    link_multi(program, path, (offsets, cookies, Some(counters)), 0, process)
}

fn link_multi(
    program: BorrowedFd<'_>,
    path: &CStr,
    (offsets, cookies, counters): (&[u64], &[u64], Option<&[u64]>),
    flags: u32,
    process: Option<u32>,
) -> io::Result<OwnedFd> {
    let counted = counters.is_none_or(|counters| counters.len() == offsets.len());
    if offsets.len() != cookies.len() || !counted {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a cookie for each offset"));
    }
    let mut attr = zeroed();
    // SAFETY: as in `try_load`.
    let link = unsafe { &mut attr.link_create };
    link.__bindgen_anon_1.prog_fd = program.as_raw_fd().cast_unsigned();
    link.attach_type = TRACE_UPROBE_MULTI;
    // SAFETY: as in `try_load`.
    let multi = unsafe { &mut link.__bindgen_anon_3.uprobe_multi };
    multi.path = path.as_ptr() as u64;
    multi.offsets = offsets.as_ptr() as u64;
    multi.cookies = cookies.as_ptr() as u64;
    multi.cnt = length(offsets.len())?;
    multi.flags = flags;
    multi.ref_ctr_offsets = counters.map_or(0, |counters| counters.as_ptr() as u64);
    multi.pid = process.unwrap_or(0);
    // SAFETY: the pointers are to a string and to arrays of `cnt` elements, all borrowed.
    unsafe { bpf_fd(bpf_cmd::BPF_LINK_CREATE, &mut attr) }
}

/// Attaches a program to an open perf event, by a link. Closing the link detaches.
///
/// # Errors
/// What the kernel said.
pub fn link_perf_event(
    program: BorrowedFd<'_>,
    event: BorrowedFd<'_>,
    cookie: u64,
) -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    // SAFETY: as in `try_load`.
    let link = unsafe { &mut attr.link_create };
    link.__bindgen_anon_1.prog_fd = program.as_raw_fd().cast_unsigned();
    link.__bindgen_anon_2.target_fd = event.as_raw_fd().cast_unsigned();
    link.attach_type = PERF_EVENT;
    link.__bindgen_anon_3.perf_event.bpf_cookie = cookie;
    // SAFETY: no pointers in it.
    unsafe { bpf_fd(bpf_cmd::BPF_LINK_CREATE, &mut attr) }
}

/// Runs a raw tracepoint program once, here and now, with these arguments. Its result.
///
/// # Errors
/// What the kernel said (`BPF_PROG_TEST_RUN`, kernel 5.10 and later for raw tracepoints).
pub fn bpf_prog_test_run(program: BorrowedFd<'_>, context: &[u64]) -> io::Result<u32> {
    let mut attr = zeroed();
    attr.test.prog_fd = program.as_raw_fd().cast_unsigned();
    if !context.is_empty() {
        attr.test.ctx_in = context.as_ptr() as u64;
        attr.test.ctx_size_in = length(size_of_val(context))?;
    }
    // SAFETY: the pointer is to `context`, of the length given; the kernel only reads it.
    unsafe { bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr)? };
    // SAFETY: the kernel has filled this arm of the union; it is a plain number.
    Ok(unsafe { attr.test.retval })
}

/// Opens a perf event for all processes on one CPU.
///
/// # Errors
/// What the kernel said.
pub fn perf_event_open(attr: &mut perf_event_attr, cpu: u32) -> io::Result<OwnedFd> {
    attr.size = length(size_of::<perf_event_attr>())?;
    let (all, no_group): (libc::pid_t, c_int) = (-1, -1);
    // SAFETY: `attr` says its own size and lives through the call. Whoever puts a pointer into
    // it (`uprobe_event`) keeps the memory behind it alive.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_mut(attr),
            all,
            cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    owned(fd)
}

/// Opens the perf event of one uprobe: `kind` is the uprobe PMU's type number, `config` its
/// flags.
///
/// # Errors
/// What the kernel said.
pub fn uprobe_event(kind: u32, config: u64, path: &CStr, offset: u64) -> io::Result<OwnedFd> {
    let mut attr = zeroed_event();
    attr.type_ = kind;
    attr.config = config;
    attr.__bindgen_anon_3.config1 = path.as_ptr() as u64;
    attr.__bindgen_anon_4.config2 = offset;
    // With no pid given, an event on any one CPU fires on all of them.
    perf_event_open(&mut attr, 0)
}

/// A perf event's description, all zero.
#[must_use]
pub fn zeroed_event() -> perf_event_attr {
    // SAFETY: plain numbers and unions of them; all zero is a value.
    unsafe { mem::zeroed() }
}

pub(super) fn zeroed() -> bpf_attr {
    // SAFETY: a union of plain structures; all zero is a value of each, and the kernel demands
    // that what a command does not use is zero.
    unsafe { mem::zeroed() }
}

pub(super) fn length(length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

/// # Safety
/// Every pointer in `attr` that `command` uses must be valid for the length given beside it.
unsafe fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<c_long> {
    // SAFETY: the caller vouches for the pointers; the size is that of `attr`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as c_int,
            std::ptr::from_mut(attr),
            size_of::<bpf_attr>(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// # Safety
/// As [`bpf`], and `command` must be one that gives a new descriptor.
pub(super) unsafe fn bpf_fd(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise is the same.
    owned(unsafe { bpf(command, attr)? })
}

/// Takes possession of a descriptor that a system call has just given.
fn owned(result: c_long) -> io::Result<OwnedFd> {
    match c_int::try_from(result) {
        // SAFETY: the kernel has just opened it for us, and nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn log_tail(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log.split(|byte| *byte == 0).next().unwrap_or_default());
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let skipped = lines.len().saturating_sub(LOG_LINES);
    lines.iter().skip(skipped).fold(String::new(), |all, line| all + "\n  " + line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::test_programs;

    #[test]
    fn only_the_end_of_a_log_is_kept() {
        let log = (0..100).map(|n| format!("line {n}\n")).collect::<String>() + "\0rubbish";
        let tail = log_tail(log.as_bytes());
        assert_eq!(tail.lines().filter(|line| !line.is_empty()).count(), LOG_LINES);
        assert!(tail.starts_with("\n  line 88") && tail.ends_with("line 99"));
        assert_eq!(log_tail(&[0; 16]), "");
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_bad_program_is_refused_with_the_verifiers_words() {
        // Ends without having set a result.
        let instructions = [test_programs::exit()];
        let error = load_program(&ProgramImage {
            name: "mt_test_bad",
            instructions: &instructions,
            license: c"GPL",
            uprobe_multi: false,
            btf: None,
        })
        .unwrap_err();
        assert!(error.to_string().contains("R0 !read_ok"), "{error}");
    }
}
