//! Abilities of the kernel's BPF and perf, each tried with the smallest program or map that
//! uses it as memtrace does.
//!
//! Everything made here is dropped before the function that made it returns.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use aya_obj::btf::{
    Btf, BtfKind, BtfParam, BtfType, Func, FuncLinkage, FuncProto, Int, IntEncoding,
};
use aya_obj::generated::{
    bpf_attach_type, bpf_func_info, bpf_map_type, bpf_prog_type, perf_sw_ids, perf_type_id,
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::program::{self, Instruction};
use super::sys::{Map, Program, attach_tracing};
use super::{Ability, State};
use crate::attach::sys;

/// Flag of `BPF_MAP_CREATE`: no preallocation. Task storage needs it.
const NO_PREALLOC: u32 = 1;
/// Smallest ring buffer: one page.
const RING_BYTES: u32 = 4_096;
/// Elements of the map that is walked.
const ELEMENTS: u32 = 3;
const NAME: &str = "mt_ability";

struct Row {
    name: &'static str,
    required: bool,
    attempt: fn() -> io::Result<String>,
    degraded: &'static str,
    mend: &'static str,
}

const ROWS: [Row; 10] = [
    Row {
        name: "btf",
        required: true,
        attempt: btf,
        degraded: "layouts and tracepoint arguments of this kernel cannot be found",
        mend: "use a kernel built with CONFIG_DEBUG_INFO_BTF=y (all common distributions)",
    },
    Row {
        name: "tp_btf",
        required: true,
        attempt: tp_btf,
        degraded: "kernel allocations, processes and their ends are not seen",
        mend: "use a kernel of 5.5 or later with BTF and CONFIG_BPF_JIT=y",
    },
    Row {
        name: "fentry",
        required: false,
        attempt: fentry,
        degraded: "frees by kfree_rcu are not seen; sites without frees are compared with the slab",
        mend: "boot with lockdown=none (Secure Boot turns it on)",
    },
    Row {
        name: "uprobe_multi",
        required: false,
        attempt: uprobe_multi,
        degraded: "uprobes go through perf events: up to 120 ms each to detach, and CAP_SYS_ADMIN",
        mend: "use a kernel of 6.6 or later",
    },
    Row {
        name: "attach_cookies",
        required: true,
        attempt: attach_cookies,
        degraded: "a probe cannot tell which library function it is on",
        mend: "use a kernel of 6.1 or later",
    },
    Row {
        name: "ring_buffer",
        required: true,
        attempt: ring_buffer,
        degraded: "no record reaches the daemon",
        mend: "use a kernel of 5.8 or later",
    },
    Row {
        name: "task_storage",
        required: true,
        attempt: task_storage,
        degraded: "entry and return of a call cannot be paired",
        mend: "use a kernel of 5.13 or later with CONFIG_BPF_SYSCALL=y",
    },
    Row {
        name: "for_each",
        required: true,
        attempt: for_each,
        degraded: "accounts that have changed cannot be walked and sent again by a timer",
        mend: "use a kernel of 5.13 or later",
    },
    Row {
        name: "kernel_reads",
        required: true,
        attempt: kernel_reads,
        degraded: "programs cannot read the kernel's structures",
        mend: "boot with lockdown=none or lockdown=integrity",
    },
    Row {
        name: "mapping_events",
        required: false,
        attempt: mapping_events,
        degraded: "libraries loaded after start are found by looking through /proc every second",
        mend: "give CAP_PERFMON, or sysctl -w kernel.perf_event_paranoid=-1",
    },
];

/// All of them. `able`: whether this process may load programs at all.
pub(super) fn abilities(able: bool) -> Vec<Ability> {
    ROWS.iter().map(|row| try_row(row, able)).collect()
}

/// Those that memtrace cannot do without.
pub(super) fn required(able: bool) -> Vec<Ability> {
    ROWS.iter().filter(|row| row.required).map(|row| try_row(row, able)).collect()
}

fn try_row(row: &Row, able: bool) -> Ability {
    let Row { name, required, attempt, degraded, mend } = *row;
    let (state, detail) = judge(attempt(), able);
    Ability { name, state, required, detail, degraded, mend }
}

fn judge(answer: io::Result<String>, able: bool) -> (State, String) {
    match answer {
        Ok(detail) => (State::Present, detail),
        Err(error) if !able && error.kind() == io::ErrorKind::PermissionDenied => {
            (State::Unknown, "cannot be tried without CAP_BPF and CAP_PERFMON".into())
        }
        Err(error) => (State::Missing, error.to_string()),
    }
}

fn btf() -> io::Result<String> {
    let path = Path::new("/sys/kernel/btf/vmlinux");
    let bytes = path.metadata().map_err(|error| in_words(path.display(), &error))?.len();
    Ok(format!("{}, {bytes} bytes", path.display()))
}

fn tp_btf() -> io::Result<String> {
    let id = kernel_type("btf_trace_kfree", BtfKind::Typedef)?;
    tracing(bpf_attach_type::BPF_TRACE_RAW_TP, id)?;
    Ok("a program for kfree loads".into())
}

fn fentry() -> io::Result<String> {
    let id = kernel_type("kvfree_call_rcu", BtfKind::Func)?;
    let program = tracing(bpf_attach_type::BPF_TRACE_FENTRY, id)
        .map_err(|error| in_words("loading one for kvfree_call_rcu", &error))?;
    // Lockdown, and kernels without direct calls, refuse at this point only.
    let link = attach_tracing(program.as_fd())
        .map_err(|error| in_words("attaching one to kvfree_call_rcu", &error))?;
    drop(link);
    Ok("a program on kvfree_call_rcu attaches".into())
}

fn uprobe_multi() -> io::Result<String> {
    let multi = Some(bpf_attach_type::BPF_TRACE_UPROBE_MULTI);
    let program = kprobe(multi, &program::read_cookie())?;
    // A file of our own that nobody has mapped: nothing is ever patched.
    let file = memfd_create("memtrace-ability", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, u64::from(RING_BYTES))?;
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    sys::link_uprobe_multi(program.as_fd(), &path, &[0, 64], &[1, 2], true)?;
    Ok("two points of a file attach in one link".into())
}

fn attach_cookies() -> io::Result<String> {
    kprobe(None, &program::read_cookie())?;
    Ok("bpf_get_attach_cookie is there".into())
}

fn ring_buffer() -> io::Result<String> {
    let kind = bpf_map_type::BPF_MAP_TYPE_RINGBUF;
    Map { name: NAME, kind, key: 0, value: 0, entries: RING_BYTES, flags: 0, types: None }
        .create()?;
    Ok("one can be made".into())
}

fn task_storage() -> io::Result<String> {
    let mut types = Btf::new();
    let int = add_int(&mut types);
    let types = sys::load_btf(&types.to_bytes())?;
    let map = Map {
        name: NAME,
        kind: bpf_map_type::BPF_MAP_TYPE_TASK_STORAGE,
        key: 4,
        value: 4,
        entries: 0,
        flags: NO_PREALLOC,
        types: Some((types.as_fd(), int, int)),
    }
    .create()?;
    kprobe(None, &program::use_task_storage(&map))?;
    Ok("usable from uprobes".into())
}

fn for_each() -> io::Result<String> {
    let kind = bpf_map_type::BPF_MAP_TYPE_ARRAY;
    let map = Map { name: NAME, kind, key: 4, value: 8, entries: ELEMENTS, flags: 0, types: None }
        .create()?;
    let mut types = Btf::new();
    let int = add_int(&mut types);
    let empty_name = types.add_string("context");
    let parameter = BtfParam { name_offset: empty_name, btf_type: int };
    let proto = types.add_type(BtfType::FuncProto(FuncProto::new(vec![parameter], int)));
    let mut function = |name: &str, linkage| {
        let name = types.add_string(name);
        types.add_type(BtfType::Func(Func::new(name, proto, linkage)))
    };
    let main = function("count", FuncLinkage::Global);
    let callback = function("callback", FuncLinkage::Static);
    let types = sys::load_btf(&types.to_bytes())?;
    let functions = [
        bpf_func_info { insn_off: 0, type_id: main },
        bpf_func_info { insn_off: program::COUNT_CALLBACK, type_id: callback },
    ];
    let program = Program {
        name: NAME,
        kind: bpf_prog_type::BPF_PROG_TYPE_RAW_TRACEPOINT,
        attach: None,
        attach_btf_id: 0,
        instructions: &program::count_elements(&map),
        functions: Some((types.as_fd(), &functions)),
    }
    .load()?;
    let counted = sys::bpf_prog_test_run(program.as_fd(), &[])?;
    if counted != ELEMENTS {
        return Err(io::Error::other(format!("{counted} of {ELEMENTS} elements were walked")));
    }
    Ok("a program that is run on demand walks a map".into())
}

fn kernel_reads() -> io::Result<String> {
    kprobe(None, &program::read_kernel_memory())?;
    Ok("bpf_probe_read_kernel is allowed".into())
}

fn mapping_events() -> io::Result<String> {
    let mut event = sys::zeroed_event();
    event.type_ = perf_type_id::PERF_TYPE_SOFTWARE as u32;
    event.config = perf_sw_ids::PERF_COUNT_SW_DUMMY as u64;
    event.set_disabled(1);
    event.set_mmap(1);
    event.set_mmap2(1);
    let cpu = u32::try_from(rustix::thread::sched_getcpu()).map_err(io::Error::other)?;
    sys::perf_event_open(&mut event, cpu)?;
    Ok("perf MMAP2 events of all processes open".into())
}

fn tracing(attach: bpf_attach_type, id: u32) -> io::Result<OwnedFd> {
    Program {
        name: NAME,
        kind: bpf_prog_type::BPF_PROG_TYPE_TRACING,
        attach: Some(attach),
        attach_btf_id: id,
        instructions: &program::nothing(),
        functions: None,
    }
    .load()
}

fn kprobe(attach: Option<bpf_attach_type>, instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let kind = bpf_prog_type::BPF_PROG_TYPE_KPROBE;
    Program { name: NAME, kind, attach, attach_btf_id: 0, instructions, functions: None }.load()
}

fn add_int(types: &mut Btf) -> u32 {
    let name = types.add_string("int");
    types.add_type(BtfType::Int(Int::new(name, 4, IntEncoding::Signed, 0)))
}

/// The id of a type in the kernel's BTF.
///
/// # Errors
///
/// Where the BTF cannot be read or does not have it.
pub fn kernel_type(name: &str, kind: BtfKind) -> io::Result<u32> {
    let btf = Btf::from_sys_fs().map_err(io::Error::other)?;
    btf.id_by_type_name_kind(name, kind).map_err(io::Error::other)
}

fn in_words(what: impl std::fmt::Display, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_without_privilege_is_unknown_and_with_it_missing() {
        let refused = || Err(io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(judge(refused(), false).0, State::Unknown);
        assert_eq!(judge(refused(), true).0, State::Missing);
        assert_eq!(judge(Err(io::Error::from_raw_os_error(libc::EINVAL)), false).0, State::Missing);
        assert_eq!(judge(Ok("there".into()), true), (State::Present, "there".into()));
    }
}
