//! The whole way on real processes: this one, children, ended ones, deleted files.

use std::ffi::{OsStr, c_int, c_void};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use memtrace_common::ProcessKey;
use object::{Object, ObjectSegment, ObjectSymbol};

use super::maps::Row;
use super::*;
use crate::host::process;
use crate::record::StackOrigin;
use crate::snapshot::{FrameKind, Taken};

unsafe extern "C-unwind" {
    fn _Unwind_Backtrace(
        each: extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

extern "C-unwind" fn push(context: *mut c_void, addresses: *mut c_void) -> c_int {
    // SAFETY: `backtrace` passes a vector, and the unwinder a valid context.
    unsafe { (*addresses.cast::<Vec<u64>>()).push(_Unwind_GetIP(context) as u64) };
    0
}

/// Return addresses from here outwards; the first is in this function.
#[inline(never)]
fn backtrace() -> Vec<u64> {
    let mut addresses: Vec<u64> = Vec::new();
    // SAFETY: `push` takes the vector and stays within this call.
    unsafe { _Unwind_Backtrace(push, (&raw mut addresses).cast()) };
    addresses
}

#[inline(always)]
fn inlined_landmark() -> (u32, Vec<u64>) {
    (line!(), backtrace())
}

#[inline(never)]
fn landmark() -> (u32, u32, Vec<u64>) {
    let (inner, addresses) = inlined_landmark();
    (inner, line!() - 1, addresses)
}

/// Set where this executable is run as a program that waits.
const WAIT: &str = "MEMTRACE_TEST_WAITS";

/// Steps that nobody follows.
struct Nowhere;

impl StepSink for Nowhere {
    fn put(&mut self, _: memtrace_common::StepKey, _: memtrace_common::Step) -> bool {
        true
    }

    fn remove(&mut self, _: memtrace_common::StepKey) {}
}

struct Names {
    stacks: Stacks,
    labels: Receiver<StackLabel>,
}

impl Names {
    fn new() -> Self {
        let (send, labels) = channel();
        let deliver = move |label| send.send(label).is_ok();
        let stacks = Stacks::start(StacksOptions::default(), deliver, drop, Box::new(Nowhere));
        Self { stacks: stacks.unwrap(), labels }
    }

    fn user(&self, tgid: u32, space: u32, addresses: &[u64]) -> StackLabel {
        let origin = StackOrigin::User { tgid, serial: space, space };
        self.name(StackKey::user(space, addresses), origin, addresses)
    }

    fn name(&self, key: StackKey, origin: StackOrigin, addresses: &[u64]) -> StackLabel {
        let taken = Taken::default();
        let stack = RawStack { key, origin, addresses: addresses.into(), taken };
        self.stacks.request(stack).unwrap();
        let label = self.labels.recv().unwrap();
        assert_eq!(label.key, key);
        assert!(label.identity.len() <= addresses.len());
        label
    }
}

#[test]
fn our_own_stack_has_functions_files_and_lines() {
    let (inner_line, line, addresses) = landmark();
    let names = Names::new();
    let label = names.user(std::process::id(), 1, &addresses);
    let at = |name: &str| {
        let is = |frame: &&Frame| frame.symbol.as_ref().is_some_and(|s| s.ends_with(name));
        label.frames.iter().find(is).unwrap_or_else(|| panic!("{name}: {:#?}", label.frames))
    };
    let (inlined, function) = (at("inlined_landmark"), at("tests::landmark"));
    assert!(inlined.inlined && !function.inlined);
    assert_eq!((inlined.line, function.line), (Some(inner_line), Some(line)));
    assert!(function.file.as_ref().unwrap().ends_with("src/stacks/tests.rs"));
    let exe = std::env::current_exe().unwrap();
    assert_eq!(function.module.as_deref(), exe.to_str());
    assert_eq!((function.kind, function.allocator), (FrameKind::Native, false));
    // The inlined function comes before the one that it is inlined into.
    let place = |one: &Frame| label.frames.iter().position(|frame| frame == one).unwrap();
    assert_eq!(place(inlined) + 1, place(function));
    // The identity is the file's and the offset in it, so that it lasts.
    let (build_id, offset) = (function.build_id.as_ref().unwrap(), function.offset.unwrap());
    assert!(label.identity.contains(&format!("{build_id}+{offset:#x}")));
    let again = names.user(std::process::id(), 2, &addresses);
    assert_eq!((again.frames, again.identity), (label.frames, label.identity));
}

#[test]
fn memory_that_is_no_file_says_so() {
    // SAFETY: a fresh page, executable, never run; unmapped below.
    let page = unsafe {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), 4_096, protection, flags, -1, 0)
    };
    let label = Names::new().user(std::process::id(), 1, &[page as u64 + 8, 0x10, 0x20]);
    // SAFETY: mapped above.
    unsafe { libc::munmap(page, 4_096) };
    let reasons: Vec<_> = label.frames.iter().map(|f| f.reason.as_deref().unwrap()).collect();
    assert_eq!(reasons[0], "not in a file: code made at run time");
    assert!(reasons[1].starts_with("the walk by frame pointers ended here"), "{reasons:?}");
    // What is beyond an address that is no code is no stack.
    assert_eq!(reasons.len(), 2);
    assert_eq!(*label.identity, ["anonymous", "unmapped"]);
}

#[test]
fn code_made_at_run_time_is_named_by_its_perf_map() {
    // SAFETY: a fresh page, executable, never run; unmapped below.
    let page = unsafe {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), 4_096, protection, flags, -1, 0)
    };
    let at = page as u64;
    let map = PathBuf::from(format!("/tmp/perf-{}.map", std::process::id()));
    let line = format!("{at:x} 20 py::load:/srv/serve.py\n{:x} 20 JS:*f /x.js:3:1\n", at + 0x20);
    std::fs::write(&map, line).unwrap();
    let names = Names::new();
    let label = names.user(std::process::id(), 1, &[at + 8, at + 0x20, at + 0x28, at + 0x50]);
    std::fs::remove_file(&map).unwrap();
    // What was read is still known.
    let later = names.user(std::process::id(), 1, &[at + 9]);
    // SAFETY: mapped above.
    unsafe { libc::munmap(page, 4_096) };
    let frame = &label.frames[0];
    assert_eq!((frame.kind, frame.symbol.as_deref()), (FrameKind::Python, Some("load")));
    assert_eq!(frame.file.as_deref(), Some("/srv/serve.py"));
    // A call may be the last instruction of its function.
    assert_eq!(label.frames[1].symbol.as_deref(), Some("load"));
    let script = &label.frames[2];
    assert_eq!((script.symbol.as_deref(), script.line), (Some("f"), Some(3)));
    assert_eq!(label.frames[3].symbol, None);
    let identity =
        ["py::load:/srv/serve.py", "py::load:/srv/serve.py", "js:f /x.js:3:1", "anonymous"];
    assert_eq!(*label.identity, identity);
    assert_eq!(later.identity[0], label.identity[0]);
}

/// A child that waits for its input; it is ended and reaped when dropped.
struct Waiting(Child);

impl Waiting {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The executable mapping of the file with this name, once it is there.
    fn row(&self, file: &OsStr) -> Row {
        loop {
            let maps = File::open(format!("/proc/{}/maps", self.pid())).unwrap();
            let rows = maps::read(maps).unwrap();
            if let Some(row) = rows
                .into_iter()
                .find(|row| Path::new(OsStr::from_bytes(&row.path)).file_name() == Some(file))
            {
                return row;
            }
            std::thread::yield_now();
        }
    }

    /// A return address in the function `symbol` of the file behind a row.
    fn address(row: &Row, file: &Path, symbol: &str) -> u64 {
        let bytes = std::fs::read(file).unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        let mut symbols = elf.symbols().chain(elf.dynamic_symbols());
        let found = symbols.find(|one| one.name() == Ok(symbol)).unwrap().address();
        let offset = elf.segments().find_map(|segment| {
            let behind = found.checked_sub(segment.address())?;
            (behind < segment.size()).then(|| segment.file_range().0 + behind)
        });
        offset.unwrap() - row.offset + row.start + 4
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

fn libc_of(child: &Waiting) -> (Row, PathBuf) {
    let row = child.row(OsStr::new("libc.so.6"));
    let path = PathBuf::from(OsStr::from_bytes(&row.path));
    (row, path)
}

#[test]
fn a_child_that_was_seen_running_is_named_after_its_end() {
    let child = Waiting::start(&mut Command::new("cat"));
    let (row, path) = libc_of(&child);
    let address = |symbol| Waiting::address(&row, &path, symbol);
    let names = Names::new();
    let (pid, getpid, atoi) = (child.pid(), address("getpid"), address("atoi"));
    let running = names.user(pid, 5, &[getpid]);
    drop(child);
    let ended = names.user(pid, 5, &[atoi]);
    assert!(running.frames[0].symbol.as_ref().unwrap().ends_with("getpid"), "{running:?}");
    assert_eq!(ended.frames[0].symbol.as_deref(), Some("atoi"));
    assert_eq!(ended.frames[0].build_id, running.frames[0].build_id);
    names.stacks.forget(5);
    let forgotten = names.user(pid, 5, &[atoi]);
    assert!(forgotten.frames[0].reason.as_ref().unwrap().starts_with("process ended before"));
}

#[test]
fn a_child_that_ended_unseen_is_named_by_mapping_events() {
    let child = Waiting::start(&mut Command::new("cat"));
    let (row, path) = libc_of(&child);
    let atoi = Waiting::address(&row, &path, "atoi");
    let pid = child.pid();
    drop(child);
    let names = Names::new();
    names.stacks.mapping(&Mapping {
        tgid: pid,
        start: row.start,
        length: row.end - row.start,
        page_offset: row.offset,
        device: (rustix::fs::major(row.device), rustix::fs::minor(row.device)),
        inode: row.inode,
        path: row.path.to_vec(),
    });
    let label = names.user(pid, 5, &[atoi]);
    assert_eq!(label.frames[0].symbol.as_deref(), Some("atoi"));
}

#[test]
fn another_process_with_the_same_id_is_not_taken_for_it() {
    let child = Waiting::start(&mut Command::new("cat"));
    let (row, path) = libc_of(&child);
    let atoi = Waiting::address(&row, &path, "atoi");
    let start_ns = process::start_ns(child.pid()).unwrap();
    let names = Names::new();
    let entry = |start_ns, serial| ProcessEntry {
        key: ProcessKey { start_ns, tgid: child.pid(), reserved: 0 },
        serial,
        space: serial,
        ..ProcessEntry::default()
    };
    names.stacks.process(&entry(start_ns - 50_000_000, 1));
    let earlier = names.user(child.pid(), 1, &[atoi]);
    assert!(earlier.frames[0].reason.as_ref().unwrap().starts_with("process ended before"));
    names.stacks.process(&entry(start_ns, 2));
    let meant = names.user(child.pid(), 2, &[atoi]);
    assert_eq!(meant.frames[0].symbol.as_deref(), Some("atoi"));
}

#[test]
fn a_copy_with_an_odd_path_is_named_with_lines() {
    if std::env::var_os(WAIT).is_some() {
        // This is the copy: it is looked at until its input ends.
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
        return;
    }
    name_in_a_copy(false);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_deleted_copy_with_an_odd_path_is_named_with_lines() {
    name_in_a_copy(true);
}

fn name_in_a_copy(deleted: bool) {
    let (_, line, addresses) = landmark();
    let own = maps::read(File::open("/proc/self/maps").unwrap()).unwrap();
    let (address, own_row) = addresses
        .iter()
        .find_map(|address| {
            let row = own.iter().find(|row| row.holds(*address) && row.inode != 0)?;
            // The second frame: in `landmark`.
            (*address == addresses[1]).then_some((*address, row))
        })
        .unwrap();
    let folder =
        std::env::temp_dir().join(format!("memtrace odd\n{}{deleted}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let copy = folder.join("a copy (deleted)");
    std::fs::copy("/proc/self/exe", &copy).unwrap();
    let arguments = ["--exact", "stacks::tests::a_copy_with_an_odd_path_is_named_with_lines"];
    let child = Waiting::start(Command::new(&copy).args(arguments).env(WAIT, "1"));
    let row = child.row(OsStr::new("a copy (deleted)"));
    let same = own_row.file_offset(address) - row.offset + row.start;
    if deleted {
        std::fs::remove_dir_all(&folder).unwrap();
    }
    let label = Names::new().user(child.pid(), 3, &[same]);
    if !deleted {
        std::fs::remove_dir_all(&folder).unwrap();
    }
    let frame = label.frames.last().unwrap();
    assert!(frame.symbol.as_ref().is_some_and(|s| s.ends_with("tests::landmark")), "{frame:?}");
    assert_eq!(frame.line, Some(line));
    assert_eq!(frame.module.as_deref(), copy.to_str());
}

#[test]
fn a_stripped_executable_says_so_and_has_an_identity() {
    let folder = std::env::temp_dir().join(format!("memtrace-stripped-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let copy = folder.join("stripped cat");
    let status = Command::new("strip").arg("-o").arg(&copy).arg("/bin/cat").status().unwrap();
    assert!(status.success());
    let child = Waiting::start(&mut Command::new(&copy));
    let row = child.row(OsStr::new("stripped cat"));
    let label = Names::new().user(child.pid(), 3, &[row.start + 0x800]);
    std::fs::remove_dir_all(&folder).unwrap();
    let frame = &label.frames[0];
    let path = copy.display();
    let reason = frame.reason.as_deref().unwrap();
    assert_eq!(reason, format!("stripped: no symbols in {path} but those it exports"));
    let build_id = frame.build_id.as_ref().unwrap();
    assert_eq!(label.identity[0], format!("{build_id}+{:#x}", row.offset + 0x800));
}

#[test]
fn what_does_not_fit_comes_back_and_is_counted() {
    let (send, labels) = channel();
    let options = StacksOptions { under_way: 1, ..StacksOptions::default() };
    let deliver = move |label| send.send(label).is_err();
    let stacks = Stacks::start(options, deliver, drop, Box::new(Nowhere)).unwrap();
    let ask = || RawStack {
        taken: Taken::default(),
        key: StackKey(9),
        origin: StackOrigin::User { tgid: std::process::id(), serial: 1, space: 1 },
        addresses: backtrace().into(),
    };
    while stacks.request(ask()).is_ok() {}
    // The one that was under way then.
    assert_eq!(labels.recv().map(|label| label.key), Ok(StackKey(9)));
    // It is counted once it was delivered.
    while stacks.status().undelivered == 0 {
        std::thread::yield_now();
    }
    let status = stacks.status();
    assert!(status.refused > 0);
    // This receiver says that it had no room.
    assert_eq!((status.delivered, status.given_up), (0, 0));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_kernel_stack_has_symbols_and_offsets() {
    let text = std::fs::read_to_string("/proc/kallsyms").unwrap();
    let at = |name: &str| {
        let line = text.lines().find(|line| line.split(' ').nth(2) == Some(name)).unwrap();
        u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    };
    let addresses = [at("__kmalloc_noprof") + 9, at("load_msg") + 0x21, 0x1234];
    let key = StackKey::kernel(&addresses);
    let label = Names::new().name(key, StackOrigin::Kernel, &addresses);
    assert_eq!(*label.identity, ["__kmalloc_noprof+0x9", "load_msg+0x21", "unnamed"]);
    let allocator: Vec<_> = label.frames.iter().map(|frame| frame.allocator).collect();
    assert_eq!(allocator, [true, false, false]);
    assert_eq!(label.frames[1].kind, FrameKind::Kernel);
    assert_eq!(label.frames[1].offset, Some(0x21));
    assert!(label.frames[2].reason.as_ref().unwrap().contains("/proc/kallsyms"));
}
