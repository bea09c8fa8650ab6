//! Tests of `libraries.rs`, with a prober that only takes notes.

use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;

use memtrace_common::{Domain, cookie_attachment};

use super::idle::IDLE_FOR;
use super::*;
use crate::attach::test_files::Library as TestLibrary;

/// How many functions of the libraries whose names begin so are probed by default.
fn wanted(library: &str) -> usize {
    let policy = FilePolicy::default();
    let functions = crate::catalog::library_functions().iter();
    let named = functions.filter(|function| function.library.name.starts_with(library));
    named.filter(|function| policy.wants(function)).count()
}

#[derive(Default)]
struct Notes {
    /// (attachment, return probe, points) of what is attached now.
    attached: Vec<(u32, bool, usize)>,
    /// Attached and dropped, in order.
    log: Vec<String>,
    refuse_offset: Option<u64>,
    refuse_all: Option<i32>,
}

#[derive(Clone, Default)]
struct Fake(Rc<RefCell<Notes>>);

struct FakeLink(Rc<RefCell<Notes>>, (u32, bool, usize));

impl Prober for Fake {
    type Link = FakeLink;

    fn attach(
        &self,
        _file: BorrowedFd<'_>,
        points: &[(u64, u64)],
        return_probe: bool,
    ) -> io::Result<FakeLink> {
        let mut notes = self.0.borrow_mut();
        if let Some(error) = notes.refuse_all {
            return Err(io::Error::from_raw_os_error(error));
        }
        if points.iter().any(|(offset, _)| Some(*offset) == notes.refuse_offset) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let what = (cookie_attachment(points[0].1), return_probe, points.len());
        notes.attached.push(what);
        notes.log.push(format!("+{}{}", what.0, if return_probe { "r" } else { "e" }));
        Ok(FakeLink(Rc::clone(&self.0), what))
    }

    fn attach_static(
        &mut self,
        _file: BorrowedFd<'_>,
        places: &[(Place, u64)],
        process: Option<u32>,
    ) -> io::Result<FakeLink> {
        let mut notes = self.0.borrow_mut();
        if let Some(error) = notes.refuse_all {
            return Err(io::Error::from_raw_os_error(error));
        }
        let what = (cookie_attachment(places[0].1), false, places.len());
        notes.attached.push(what);
        let only = process.map(|pid| format!(" in {pid}")).unwrap_or_default();
        notes.log.push(format!("+{}s{only}", what.0));
        Ok(FakeLink(Rc::clone(&self.0), what))
    }

    fn forget_static(&mut self, cookies: &[u64]) {
        let mut notes = self.0.borrow_mut();
        notes.log.push(format!("forget {}", cookies.len()));
    }

    fn by(&self) -> &'static str {
        "uprobe_multi"
    }
}

impl Drop for FakeLink {
    fn drop(&mut self) {
        let mut notes = self.0.borrow_mut();
        let at = notes.attached.iter().position(|what| *what == self.1).unwrap();
        notes.attached.remove(at);
        notes.log.push(format!("-{}{}", self.1.0, if self.1.1 { "r" } else { "e" }));
    }
}

struct World {
    directory: tempfile::TempDir,
    notes: Rc<RefCell<Notes>>,
    libraries: Libraries<Fake>,
}

impl World {
    fn new(policy: FilePolicy) -> Self {
        let fake = Fake::default();
        Self {
            directory: tempfile::tempdir().unwrap(),
            notes: Rc::clone(&fake.0),
            libraries: Libraries::new(fake, policy),
        }
    }

    fn runtime(&self, name: &str) -> PathBuf {
        TestLibrary { soname: Some("libcudart.so.12"), ..TestLibrary::default() }
            .build(self.directory.path(), name)
    }

    /// Lets a file be found in process 7, under a device number of its own choice.
    fn find_on(&mut self, path: &Path, major: u32) -> Option<u32> {
        let found = found(path, major);
        assert!(self.libraries.is_new(found.key.unwrap()));
        let inspection = inspect(elf::open(path).unwrap(), false).unwrap();
        let id = self.libraries.admit(&found, inspection);
        assert!(!self.libraries.is_new(found.key.unwrap()));
        id
    }

    fn find(&mut self, path: &Path) -> Option<u32> {
        self.find_on(path, 1)
    }

    /// Everybody was looked into now.
    fn sweep(&mut self, is_mapped: impl Fn(FileKey) -> bool) {
        self.libraries.sweep(Instant::now(), true, is_mapped);
    }

    fn reason(&self, path: &Path) -> String {
        let path = path.to_str();
        let rows = self.libraries.coverage();
        let row = rows.iter().find(|row| row.path.as_deref() == path).unwrap();
        assert!(!row.attached);
        row.reason.clone().unwrap()
    }
}

fn found(path: &Path, major: u32) -> Found {
    let inode = std::fs::metadata(path).unwrap().ino();
    Found {
        key: Some(FileKey { major, minor: 0, inode }),
        path: path.as_os_str().as_encoded_bytes().to_vec(),
        pid: Some(7),
    }
}

#[test]
fn a_library_is_attached_once_returns_first_and_says_so() {
    let mut world = World::new(FilePolicy::default());
    let path = world.runtime("a");
    let id = world.find(&path).unwrap();
    // The same file by a hard link and by another device number.
    let link = world.directory.path().join("b");
    std::fs::hard_link(&path, &link).unwrap();
    assert_eq!(world.find_on(&link, 2), Some(id));
    assert_eq!(world.notes.borrow().log, ["+1r", "+1e"]);
    let rows = world.libraries.coverage();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].library.as_deref(), Some("libcudart"));
    assert!(rows[0].attached && rows[0].attached_at.is_some());
    assert_eq!(rows[0].by, Some("uprobe_multi"));
    assert_eq!(rows[0].functions.len(), wanted("libcudart"));
    assert_eq!(rows[0].missing, Vec::<String>::new());
    assert_eq!(rows[0].pid, Some(7));
    world.libraries.detach_all();
    assert_eq!(world.notes.borrow().log, ["+1r", "+1e", "-1e", "-1r"]);
}

#[test]
fn what_is_no_catalog_library_is_remembered_without_a_row() {
    let mut world = World::new(FilePolicy::default());
    let path = TestLibrary::default().build(world.directory.path(), "libcudart.so.12");
    assert_eq!(world.find(&path), None);
    assert_eq!(world.libraries.coverage(), []);
    assert_eq!(world.notes.borrow().log, Vec::<String>::new());
}

#[test]
fn domains_that_are_off_are_not_attached() {
    let policy = FilePolicy { domains: vec![Domain::Pinned], ..FilePolicy::default() };
    let mut world = World::new(policy);
    let path = world.runtime("a");
    world.find(&path).unwrap();
    let mut functions = world.libraries.coverage().remove(0).functions;
    functions.sort();
    assert_eq!(
        functions,
        [
            // Pinned memory goes with the device that its thread is in.
            "cudaDeviceReset",
            "cudaFreeHost",
            "cudaHostAlloc",
            "cudaHostRegister",
            "cudaHostUnregister",
            "cudaMallocHost",
            "cudaSetDevice"
        ]
    );

    let mut world =
        World::new(FilePolicy { domains: vec![Domain::Kernel], ..FilePolicy::default() });
    let path = world.runtime("a");
    assert_eq!(world.find(&path), None);
    assert_eq!(world.reason(&path), "its domains are off");
}

#[test]
fn the_configuration_excludes_by_build_id_and_by_path() {
    let policy = FilePolicy {
        exclude_build_ids: vec!["00ff".to_owned()],
        exclude_paths: vec![PathBuf::from("/opt/vendor")],
        ..FilePolicy::default()
    };
    let mut world = World::new(policy);
    let path = TestLibrary {
        soname: Some("libcudart.so.12"),
        arguments: &["-Wl,--build-id=0x00ff"],
        ..TestLibrary::default()
    }
    .build(world.directory.path(), "a");
    assert_eq!(world.find(&path), None);
    assert!(world.reason(&path).contains("build id"));

    let other = world.runtime("b");
    let below = Found { path: b"/opt/vendor/lib/x".to_vec(), ..found(&other, 1) };
    let inspection = || inspect(elf::open(&other).unwrap(), false).unwrap();
    assert_eq!(world.libraries.admit(&below, inspection()), None);
    assert!(world.reason(Path::new("/opt/vendor/lib/x")).contains("path"));

    let mut world = World::new(world.libraries.policy);
    let beside = Found { path: b"/opt/vendors/lib/x".to_vec(), ..found(&other, 1) };
    assert!(world.libraries.admit(&beside, inspection()).is_some());
}

#[test]
fn a_named_file_is_attached_by_its_symbols_whatever_it_is_called() {
    let mut world = World::new(FilePolicy::default());
    let path = TestLibrary::default().build(world.directory.path(), "program");
    let id = world.libraries.add_named(&path).unwrap();
    assert_eq!(world.libraries.add_named(&path).unwrap(), id);
    let row = world.libraries.coverage().remove(0);
    assert_eq!(row.functions.len(), wanted("lib"));
    let above_cuda = "libcublas,libcublasLt,libcudnn,libnccl";
    let all = format!("libcudart,libcuda,{above_cuda},libamdhip64,librocblas,libMIOpen");
    assert_eq!(row.library, Some(all));

    let empty = TestLibrary { source: Some("int x;"), ..TestLibrary::default() }
        .build(world.directory.path(), "empty");
    let error = world.libraries.add_named(&empty).unwrap_err().to_string();
    assert!(error.contains("empty has none of") && error.contains("cudaMalloc, "), "{error}");
    let error = world.libraries.add_named(Path::new("/nowhere")).unwrap_err().to_string();
    assert!(error.starts_with("/nowhere cannot be read: No such file"), "{error}");
}

#[test]
fn naming_a_library_that_was_found_adds_its_own_functions() {
    let mut world = World::new(FilePolicy::default());
    let path = world.runtime("a");
    let found = world.find(&path).unwrap();
    let named = world.libraries.add_named(&path).unwrap();
    assert_ne!(found, named);
    assert_eq!(world.libraries.attached(), 1);
    assert_eq!(world.libraries.coverage()[0].functions.len(), wanted("lib"));
}

#[test]
fn of_two_views_of_one_file_one_is_let_go_until_the_other_is_gone() {
    let mut world = World::new(FilePolicy::default());
    let a = world.runtime("a");
    let b = world.directory.path().join("b");
    // A copy that agrees in everything, as two overlay mounts show one file.
    std::fs::copy(&a, &b).unwrap();
    let times = std::fs::FileTimes::new().set_modified(a.metadata().unwrap().modified().unwrap());
    std::fs::File::options().write(true).open(&b).unwrap().set_times(times).unwrap();
    let (first, second) = (world.find(&a).unwrap(), world.find(&b).unwrap());
    assert!(world.libraries.duplicate(first, second));
    assert_eq!(world.libraries.attached(), 1);
    assert!(world.reason(&b).starts_with("the same file as"));
    // What the kernel had already reported does not take the other one away too.
    assert!(!world.libraries.duplicate(second, first));
    assert!(!world.libraries.duplicate(first, second));
    assert!(!world.libraries.duplicate(first, first));
    assert_eq!(world.libraries.attached(), 1);
    // Who runs the second one needs the probes on the first.
    let b_key = found(&b, 1).key.unwrap();
    let now = Instant::now();
    for later in [now, now + IDLE_FOR] {
        world.libraries.sweep(later, true, |key| key == b_key);
        assert_eq!(world.libraries.attached(), 1);
    }
    // The first is deleted and unmapped: the second has its turn.
    std::fs::remove_file(&a).unwrap();
    world.sweep(|key| key == b_key);
    assert_eq!(world.libraries.attached(), 0);
    assert!(world.find(&b).is_some());
}

#[test]
fn files_that_differ_are_no_duplicates_whatever_the_kernel_saw() {
    let mut world = World::new(FilePolicy::default());
    let (a, b) = (world.runtime("a"), world.runtime("b"));
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(9);
    let times = std::fs::FileTimes::new().set_modified(later);
    std::fs::File::options().write(true).open(&b).unwrap().set_times(times).unwrap();
    let (first, second) = (world.find(&a).unwrap(), world.find(&b).unwrap());
    assert!(!world.libraries.duplicate(first, second));
    assert_eq!(world.libraries.attached(), 2);
}

#[test]
fn a_point_that_the_kernel_refuses_does_not_cost_the_others() {
    let mut world = World::new(FilePolicy::default());
    let path = world.runtime("a");
    let inspection = inspect(elf::open(&path).unwrap(), false).unwrap();
    let (function, offset) = inspection.points.points[2];
    world.notes.borrow_mut().refuse_offset = Some(offset);
    assert!(world.find(&path).is_some());
    let row = world.libraries.coverage().remove(0);
    let rest = wanted("libcudart") - 1;
    assert_eq!(row.functions.len(), rest);
    let symbol = library_function(function).unwrap().symbol;
    assert_eq!(row.reason, Some(format!("the kernel refused probes on {symbol}")));
    assert_eq!(world.notes.borrow().attached, [(1, true, rest), (1, false, rest)]);
}

#[test]
fn a_refusal_names_the_capabilities_and_is_tried_again() {
    let mut world = World::new(FilePolicy::default());
    let path = world.runtime("a");
    world.notes.borrow_mut().refuse_all = Some(libc::EPERM);
    assert_eq!(world.find(&path), None);
    assert!(world.reason(&path).contains("CAP_BPF and CAP_PERFMON"));
    let error = world.libraries.add_named(&path).unwrap_err().to_string();
    assert!(error.contains("CAP_BPF"), "{error}");
    world.notes.borrow_mut().refuse_all = None;
    world.sweep(|_| true);
    assert!(world.find(&path).is_some());
}

#[test]
fn what_cannot_be_read_is_remembered_while_it_is_mapped() {
    let mut world = World::new(FilePolicy::default());
    let at = |path: &[u8], inode| Found {
        key: Some(FileKey { major: 1, minor: 0, inode }),
        path: path.to_vec(),
        pid: Some(7),
    };
    let late = NotInspected::Late(Late::Deadline(std::time::Duration::from_secs(2)));
    let library = at(b"/mnt/\xff/libcudart.so.12", 5);
    let other = at(b"/mnt/libother.so", 6);
    let gone = at(b"/mnt/libcudart.so.11", 7);
    world.libraries.not_inspected(&library, &late);
    world.libraries.not_inspected(&other, &ElfError::NotElf.into());
    let not_found = ElfError::Io(io::ErrorKind::NotFound.into());
    world.libraries.not_inspected(&gone, &not_found.into());
    assert!(!world.libraries.is_new(library.key.unwrap()));
    assert!(!world.libraries.is_new(other.key.unwrap()));
    assert!(world.libraries.is_new(gone.key.unwrap()));
    let rows = world.libraries.coverage();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].path.as_deref(), Some("/mnt/\\xff/libcudart.so.12"));
    assert!(rows[0].reason.as_deref().unwrap().contains("did not answer within 2 s"));
    world.sweep(|_| false);
    assert!(world.libraries.is_new(library.key.unwrap()));
    assert_eq!(world.libraries.coverage(), []);
}

/// A library with the static probes of PyTorch's pool.
fn torch(world: &World, name: &str) -> PathBuf {
    let source = world.directory.path().join(format!("{name}.s"));
    std::fs::write(&source, crate::attach::usdt::tests::pool()).unwrap();
    TestLibrary {
        soname: Some("libc10_cuda.so"),
        source: Some(""),
        arguments: &[source.to_str().unwrap()],
        ..TestLibrary::default()
    }
    .build(world.directory.path(), name)
}

fn log(world: &World) -> Vec<String> {
    std::mem::take(&mut world.notes.borrow_mut().log)
}

#[test]
fn static_probes_are_attached_at_once_where_their_domain_is_on() {
    let domains = vec![Domain::Torch];
    let mut world = World::new(FilePolicy { domains, ..FilePolicy::default() });
    let path = torch(&world, "pool");
    let id = world.find(&path).unwrap();
    assert_eq!(log(&world), ["+1s"]);
    let rows = world.libraries.coverage();
    assert!(rows[0].attached);
    assert_eq!(rows[0].library.as_deref(), Some("libc10_cuda"));
    assert_eq!(rows[0].functions, ["pytorch:malloc", "pytorch:free"]);
    assert!(!world.libraries.demand(7, true), "everybody is watched already");
    world.libraries.detach(id);
    assert_eq!(log(&world), ["-1e", "forget 3"]);
}

#[test]
fn static_probes_wait_until_a_process_is_to_be_watched() {
    let mut world = World::new(FilePolicy { on_demand: true, ..FilePolicy::default() });
    let path = torch(&world, "pool");
    world.find(&path).unwrap();
    assert!(log(&world).is_empty());
    assert!(world.reason(&path).contains("on demand"));
    assert!(world.libraries.demand(7, true) && world.libraries.demand(8, true));
    assert!(!world.libraries.demand(8, true), "once is enough");
    assert_eq!(log(&world), ["+1s in 7", "+1s in 8"]);
    let rows = world.libraries.coverage();
    assert!(rows[0].attached && rows[0].reason.as_deref().unwrap().contains("in pid 7, 8 alone"));
    assert!(world.libraries.demand(7, false));
    assert_eq!(log(&world), ["-1e"], "the other one still needs its arguments");
    assert!(world.libraries.demand(8, false) && !world.libraries.demand(8, false));
    assert_eq!(log(&world), ["-1e", "forget 3"]);
    assert!(world.reason(&path).contains("on demand"));
    world.libraries.demand(9, true);
    world.libraries.detach_all();
    assert_eq!(log(&world), ["+1s in 9", "-1e", "forget 3"]);
}

#[test]
fn without_demand_and_domain_a_pool_is_left_alone() {
    let mut world = World::new(FilePolicy::default());
    let path = torch(&world, "pool");
    assert_eq!(world.find(&path), None);
    assert_eq!(world.reason(&path), "its domains are off");
    assert!(!world.libraries.demand(7, true) && log(&world).is_empty());
    let mut world = World::new(FilePolicy { on_demand: true, ..FilePolicy::default() });
    let soname = Some("libc10_cuda.so");
    let path =
        TestLibrary { soname, ..TestLibrary::default() }.build(world.directory.path(), "old");
    assert_eq!(world.find(&path), None);
    assert!(world.reason(&path).contains("built without its static probes"));
}

mod idle;
mod within;
