//! Notes made by hand, in files that a compiler made around them.

use std::path::{Path, PathBuf};

use memtrace_common::{UsdtArgument, UsdtPlace};

use super::*;
use crate::attach::elf::open;
use crate::attach::test_files::{Library, nm};
use crate::catalog::static_probes;

/// A function with a static probe in it, in the words of the assembler. `at` is the label that the
/// note says the probe is at.
fn probe(function: &str, name: &str, at: &str, semaphore: &str, arguments: &str) -> String {
    format!(
        r#"
        .pushsection .text
        .globl {function}
        .type {function}, @function
        {function}:
            xor %eax, %eax
        .globl {function}_place
        {function}_place:
            nop
            ret
        .size {function}, . - {function}
        .popsection
        .pushsection .note.stapsdt, "", "note"
        .balign 4
        .4byte 8, 9f-8f, 3
        .asciz "stapsdt"
        8:
        .8byte {at}, _.stapsdt.base, {semaphore}
        .asciz "pytorch"
        .asciz "{name}"
        .asciz "{arguments}"
        9:
        .balign 4
        .popsection
        "#
    )
}

const BASE: &str = r#"
    .pushsection .stapsdt.base, "aG", "progbits", .stapsdt.base, comdat
    .weak _.stapsdt.base
    .hidden _.stapsdt.base
    _.stapsdt.base: .space 1
    .size _.stapsdt.base, 1
    .popsection
    .pushsection .probes, "aw", "progbits"
    .globl counter
    counter: .2byte 0
    .popsection
"#;

/// PyTorch's pool, as far as its static probes go.
pub(in crate::attach) fn pool() -> String {
    let probes = [
        probe("give", "malloc", "give_place", "counter", MALLOC),
        probe("take", "free", "take_place", "counter", "-8@%rdi"),
        probe("take_again", "free", "take_again_place", "counter", "-8@%rdi"),
    ];
    format!("{BASE}{}", probes.concat())
}

const MALLOC: &str = "-8@%rax -1@%dl -8@%r14 -8@-56(%rbp)";

fn build(directory: &Path, name: &str, probes: &[String]) -> PathBuf {
    let assembler = directory.join(format!("{name}.s"));
    std::fs::write(&assembler, format!("{BASE}{}", probes.concat())).unwrap();
    Library { source: Some(""), arguments: &[assembler.to_str().unwrap()], ..Library::default() }
        .build(directory, name)
}

/// Where an address is in a file whose loadable parts begin at whole pages.
fn offset(path: &Path, symbol: &str) -> u64 {
    let file = open(path).unwrap();
    let source = crate::attach::elf::Source::new(&file, 1 << 20).unwrap();
    let image = crate::attach::elf::Image::read(&source).unwrap();
    let address = nm(path, symbol);
    image.code_offset(address).or_else(|| image.data_offset(address)).unwrap()
}

#[test]
fn places_semaphores_and_arguments_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = build(
        directory.path(),
        "both",
        &[
            probe("give", "malloc", "give_place", "counter", MALLOC),
            probe("take", "free", "take_place", "counter", "-8@%rdi"),
            probe("take_again", "free", "take_again_place", "0", "8@8(%rsp)"),
            probe("other", "other", "other_place", "0", ""),
        ],
    );
    let found = find(&open(&path).unwrap(), static_probes()).unwrap();
    assert_eq!((found.missing.len(), found.refused.len()), (0, 0), "{found:?}");
    let semaphore = Some(offset(&path, "counter"));
    let seen: Vec<_> = found.places.iter().map(|one| (one.offset, one.semaphore)).collect();
    assert_eq!(
        seen,
        [
            (offset(&path, "give_place"), semaphore),
            (offset(&path, "take_place"), semaphore),
            (offset(&path, "take_again_place"), None),
        ]
    );
    let [give, take, again] = &found.places[..] else { panic!() };
    assert_eq!((give.point.pointer.base, give.point.size.base), (80, 8));
    assert_eq!((take.point.pointer.base, take.point.size), (112, UsdtArgument::default()));
    assert_eq!(again.point.pointer.place, UsdtPlace::Memory as u8);
    assert_eq!(notes(&open(&path).unwrap()).unwrap().len(), 4);
}

#[test]
fn what_moved_the_file_moved_its_places() {
    let directory = tempfile::tempdir().unwrap();
    let moved = |place: &str, semaphore: &str| {
        probe("give", "malloc", place, semaphore, MALLOC)
            .replace("_.stapsdt.base,", "_.stapsdt.base - 0x1000,")
    };
    let path =
        build(directory.path(), "moved", &[moved("give_place - 0x1000", "counter - 0x1000")]);
    let found = find(&open(&path).unwrap(), static_probes()).unwrap();
    let place = found.places.first().unwrap();
    assert_eq!(place.offset, offset(&path, "give_place"));
    assert_eq!(place.semaphore, Some(offset(&path, "counter")));
}

#[test]
fn a_place_that_could_do_harm_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for (name, place, semaphore, arguments, why) in [
        ("code", "give", "0", MALLOC, "no instruction that does nothing"),
        ("nowhere", "0x7fffffff", "0", MALLOC, "in no executable bytes"),
        ("data", "counter", "0", MALLOC, "in no executable bytes"),
        ("text", "give_place", "give", MALLOC, "in no writable bytes"),
        ("odd", "give_place", "counter + 1", MALLOC, "in no writable bytes"),
        ("few", "give_place", "0", "-8@%rax -1@%dl", "no argument 2"),
        ("symbol", "give_place", "0", "8@%rax 8@%rax 8@size(%rip)", "a symbol"),
    ] {
        let path =
            build(directory.path(), name, &[probe("give", "malloc", place, semaphore, arguments)]);
        let found = find(&open(&path).unwrap(), static_probes()).unwrap();
        assert!(found.places.is_empty(), "{name}: {found:?}");
        let [(probe, said)] = &found.refused[..] else { panic!("{name}: {found:?}") };
        assert_eq!(*probe, "pytorch:malloc");
        assert!(said.contains(why) && said.lines().count() == 1, "{name}: {said}");
        assert_eq!(found.missing, ["pytorch:free"]);
    }
}

#[test]
fn one_bad_place_refuses_its_probe() {
    let directory = tempfile::tempdir().unwrap();
    let path = build(
        directory.path(),
        "half",
        &[
            probe("take", "free", "take_place", "0", "-8@%rdi"),
            probe("again", "free", "again", "0", "-8@%rdi"),
        ],
    );
    let found = find(&open(&path).unwrap(), static_probes()).unwrap();
    assert!(found.places.is_empty(), "{found:?}");
    let many: Vec<String> = (0..=MAX_PLACES)
        .map(|n| probe(&format!("f{n}"), "free", &format!("f{n}_place"), "0", "-8@%rdi"))
        .collect();
    let path = build(directory.path(), "many", &many);
    let found = find(&open(&path).unwrap(), static_probes()).unwrap();
    assert!(found.places.is_empty());
    assert!(found.refused[0].1.contains("more than 64 places"), "{:?}", found.refused);
}

#[test]
fn a_file_without_notes_has_no_probes() {
    let directory = tempfile::tempdir().unwrap();
    let path = Library::default().build(directory.path(), "plain");
    let found = find(&open(&path).unwrap(), static_probes()).unwrap();
    assert_eq!(found.missing, ["pytorch:malloc", "pytorch:free"]);
    assert!(found.places.is_empty() && found.refused.is_empty());
}

/// Every byte of the notes, of the section headers and of the headers, set to each of a few
/// values, and the file cut off: never a panic, never a place that is no instruction that does
/// nothing.
#[test]
fn broken_notes_are_refused_or_read_but_never_harm() {
    let directory = tempfile::tempdir().unwrap();
    let path = build(
        directory.path(),
        "whole",
        &[
            probe("give", "malloc", "give_place", "counter", MALLOC),
            probe("take", "free", "take_place", "counter", "-8@%rdi"),
        ],
    );
    let whole = std::fs::read(&path).unwrap();
    let note = whole.windows(7).position(|bytes| bytes == b"stapsdt").unwrap() - 16;
    let headers = u64::from_le_bytes(whole[40..48].try_into().unwrap()) as usize;
    let broken = directory.path().join("broken");
    let harmless = |bytes: &[u8]| {
        std::fs::write(&broken, bytes).unwrap();
        let Ok(found) = find(&open(&broken).unwrap(), static_probes()) else { return };
        for place in found.places {
            let at = usize::try_from(place.offset).unwrap();
            assert!([0x90, 0x66, 0x0f].contains(&bytes[at]), "{at}");
        }
    };
    let places = (0..64).chain(note..note + 200).chain(headers..whole.len());
    for position in places.filter(|position| *position < whole.len()) {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[position] = value;
            harmless(&bytes);
        }
    }
    for length in (0..whole.len()).step_by(97) {
        harmless(&whole[..length]);
    }
}

/// Opens a library in this process; its symbols.
fn load(path: &Path) -> impl Fn(&std::ffi::CStr) -> *mut libc::c_void {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the library has no constructors.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    // SAFETY: an open library, never closed.
    move |name| unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// Attaches a program that counts, in all processes, in this one and in another one alone: it runs
/// where it should, and the semaphore is up exactly while it is attached.
fn semaphores_are_raised(name: &str, multi: bool) {
    use std::os::fd::AsFd;

    use crate::attach::multi::MultiProgram;
    use crate::attach::perf::{PerfProgram, UprobePmu};
    use crate::attach::test_programs::Counter;

    let directory = tempfile::tempdir().unwrap();
    let path =
        build(directory.path(), name, &[probe("give", "malloc", "give_place", "counter", MALLOC)]);
    let symbol = load(&path);
    // SAFETY: a function without arguments, and a counter of two bytes, of an open library.
    let (give, counter) = unsafe {
        (
            std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(symbol(c"give")),
            symbol(c"counter").cast::<u16>(),
        )
    };
    // SAFETY: as above; the kernel changes it.
    let raised = || unsafe { std::ptr::read_volatile(counter) };
    let file = open(&path).unwrap();
    let found = find(&file, static_probes().iter().filter(|one| one.allocates())).unwrap();
    let places: Vec<(Place, u64)> = found.places.into_iter().map(|place| (place, 5)).collect();
    assert!(places[0].0.semaphore.is_some());

    let counts = Counter::load(multi);
    let program = counts.program.try_clone().unwrap();
    let attach = |process| {
        let program = program.try_clone().unwrap();
        if multi {
            let link = MultiProgram::from_fd(program).attach_static(file.as_fd(), &places, process);
            crate::attach::probing::Link::Multi(link.unwrap())
        } else {
            let program = PerfProgram::new(UprobePmu::read().unwrap(), program);
            let links = program.attach_static(file.as_fd(), &places).unwrap();
            crate::attach::probing::Link::Perf(links)
        }
    };
    give();
    assert_eq!((raised(), counts.count(5)), (0, 0));
    let link = attach(None);
    give();
    assert_eq!((raised(), counts.count(5)), (1, 1));
    drop(link);
    give();
    assert_eq!((raised(), counts.count(5)), (0, 1));
    if multi {
        let link = attach(Some(std::process::id()));
        give();
        assert_eq!((raised(), counts.count(5)), (1, 2));
        drop(link);
        let mut other = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let link = attach(Some(other.id()));
        give();
        assert_eq!((raised(), counts.count(5)), (0, 2), "another process' probes");
        drop(link);
        other.kill().unwrap();
        other.wait().unwrap();
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn uprobe_multi_raises_semaphores_for_all_or_for_one_process() {
    semaphores_are_raised("multi", true);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn perf_events_raise_semaphores() {
    semaphores_are_raised("perf", false);
}
