//! Real stacks: plain, deep, with odd frames, through C, in signal handlers.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::hint::black_box;

use memtrace_common::Step;

use super::*;
use crate::stacks::unwind::{AddressSpace, Code};

#[test]
fn a_plain_stack_is_whole_down_to_clone_and_again_from_the_cache() {
    let capture = Capture::take();
    let unwound = capture.check();
    assert!(unwound.addresses.len() > 8, "{}", unwound.addresses.len());
    let mut unwinder = Unwinder::new();
    let mut space = OwnSpace::new().unwrap();
    for _ in 0..3 {
        assert_eq!(unwinder.unwind(&capture.copy, &mut space), unwound);
    }
    let sizes = unwinder.sizes();
    assert!(sizes.rules >= unwound.addresses.len() && sizes.files == 2, "{sizes:?}");
    assert!(sizes.bytes > 0 && sizes.bytes < 100_000, "{sizes:?}");
    // Every frame of the thread can be followed by the kernel, the outermost one included.
    let end = unwound.addresses.last().unwrap();
    let steps = unwound.steps;
    assert!(steps.contains(&(*end, Step::END)), "{steps:x?}");
    for address in &unwound.addresses {
        assert!(steps.iter().any(|(of, _)| of == address), "{address:x} of {steps:x?}");
    }
    assert_eq!(walk(&capture.copy, &steps), unwound.addresses);
}

/// What a kernel program does with steps.
fn walk(copy: &StackCopy, steps: &[(u64, Step)]) -> Vec<u64> {
    let registers = copy.registers;
    let (mut address, mut stack, mut frame) = (registers.rip, registers.rsp, registers.rbp);
    let word = |at: u64| {
        let offset = usize::try_from(at - registers.rsp).unwrap();
        u64::from_le_bytes(copy.bytes[offset..offset + 8].try_into().unwrap())
    };
    let mut addresses = vec![address];
    while let Some((_, step)) = steps.iter().find(|(of, _)| *of == address) {
        if *step == Step::END {
            return addresses;
        }
        let cfa = if step.by_frame_pointer() { frame } else { stack } + step.offset();
        address = word(cfa - 8);
        if step.saved() != 0 {
            frame = word(cfa - step.saved());
        }
        stack = cfa;
        addresses.push(address);
    }
    panic!("no step of {address:x} after {}", addresses.len());
}

#[inline(never)]
fn recurse(depth: u32) -> Capture {
    let capture = if depth == 0 { Capture::take() } else { recurse(depth - 1) };
    black_box(&capture);
    capture
}

fn same(addresses: &[u64]) -> usize {
    addresses.iter().filter(|address| **address == addresses[3]).count()
}

#[test]
fn recursion_within_the_limit_is_kept_as_it_is() {
    let unwound = recurse(200).check();
    assert_eq!(same(&unwound.addresses), 200);
    assert!(unwound.steps.len() < 40);
}

#[test]
fn deep_recursion_is_folded() {
    let capture = recurse(300);
    let unwound = capture.unwound();
    assert_eq!(unwound.incomplete, None);
    assert_eq!(unwound.folded.as_deref(), Some("recursion folded: 299 frames"));
    assert_eq!(same(&unwound.addresses), 1);
    assert_eq!(unwound.addresses.last(), capture.truth.last());

    let deeper = recurse(1_000);
    let unwound = deeper.unwound();
    assert_eq!(unwound.incomplete.as_deref(), Some("deeper than 512 frames"));
    assert!(unwound.folded.is_some());
    assert_eq!(same(&unwound.addresses), 1);
    // Whatever the depth, one site.
    assert_eq!(unwound.addresses.len(), recurse(777).unwound().addresses.len());
}

#[test]
fn a_copy_that_ends_early_says_so_and_folds() {
    let mut capture = recurse(100);
    let half = capture.copy.bytes.len() / 2;
    capture.copy.whole = false;
    let whole = capture.copy.bytes.to_vec();
    let mut seen = Vec::new();
    for length in [half, half - 8, half - 4_000] {
        capture.copy.bytes = whole[..length].into();
        let unwound = capture.unwound();
        assert_eq!(unwound.incomplete.as_deref(), Some("truncated copy"));
        assert!(unwound.addresses.len() > 1 && unwound.addresses.len() < 10);
        seen.push(unwound.addresses);
    }
    seen.dedup();
    assert_eq!(seen.len(), 1, "{seen:x?}");
    capture.copy.bytes = Box::new([]);
    let unwound = capture.unwound();
    assert_eq!(unwound.addresses, [capture.copy.registers.rip]);
    assert_eq!(unwound.incomplete.as_deref(), Some("truncated copy"));
    capture.copy.whole = true;
    let why = capture.unwound().incomplete.unwrap();
    assert_eq!(why, "the stack goes on where its copy ends");
}

#[repr(align(64))]
struct Aligned([u8; 64]);

#[target_feature(enable = "avx")]
#[inline(never)]
fn aligned(depth: u32) -> Capture {
    let local = black_box(Aligned([7; 64]));
    assert_eq!((&raw const local) as usize % 64, 0);
    let capture = if depth == 0 { Capture::take() } else { aligned(depth - 1) };
    black_box(&local.0);
    capture
}

#[test]
fn realigned_frames_are_followed() {
    assert!(is_x86_feature_detected!("avx"));
    // SAFETY: the processor has AVX.
    unsafe { aligned(5) }.check();
}

thread_local! {
    static CAPTURED: RefCell<Option<Capture>> = const { RefCell::new(None) };
    static END: RefCell<u64> = const { RefCell::new(0) };
}

extern "C" fn compare(_: *const c_void, _: *const c_void) -> c_int {
    CAPTURED.with_borrow_mut(|captured| {
        captured.get_or_insert_with(Capture::take);
    });
    0
}

#[test]
fn a_callback_from_c_is_followed_through_the_c_library() {
    let mut words = [3_u32, 2, 1];
    // SAFETY: three elements of four bytes.
    unsafe { libc::qsort(words.as_mut_ptr().cast(), 3, 4, Some(compare)) };
    let capture = CAPTURED.take().unwrap();
    let unwound = capture.check();
    let mut space = OwnSpace::new().unwrap();
    let mut modules: Vec<_> = unwound
        .addresses
        .iter()
        .map(|address| match space.find(*address) {
            Code::File { file, .. } => file.module.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    modules.dedup();
    assert!(modules.len() >= 4, "{modules:?}");
}

extern "C" fn on_signal(_: c_int) {
    let end = END.with_borrow(|end| *end);
    CAPTURED.set(Some(Capture::take_until(end)));
}

/// Raises a signal in a thread of its own, handled on a stack.
fn raise(signal: c_int, flags: c_int, end: u64) -> Capture {
    END.set(end);
    // SAFETY: the handler does what its thread waits for; the signal is not used elsewhere.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
        assert_eq!(libc::raise(signal), 0);
    }
    CAPTURED.take().unwrap()
}

#[test]
fn a_signal_handlers_stack_goes_on_where_it_was_interrupted() {
    let capture = raise(libc::SIGUSR1, 0, stack_end());
    let unwound = capture.check();
    // The frame of the handler, the one of the signal, and the interrupted one: the last two
    // cannot be followed by the kernel.
    let unlearned = |address: &&u64| !unwound.steps.iter().any(|(of, _)| of == *address);
    assert_eq!(unwound.addresses.iter().filter(unlearned).count(), 2, "{unwound:x?}");
}

#[test]
fn a_signal_handlers_copy_that_ends_before_the_interrupted_frame_is_cut() {
    let mut capture = raise(libc::SIGURG, 0, stack_end());
    let whole = capture.check().addresses;
    // The frame of the signal itself has some 900 bytes; the handler's frames come before.
    capture.copy.whole = false;
    let bytes = capture.copy.bytes.to_vec();
    let mut cut = Vec::new();
    for length in (0..bytes.len()).step_by(256) {
        capture.copy.bytes = bytes[..length].into();
        let unwound = capture.unwound();
        // The end of a thread's stack is no frame's.
        if unwound.addresses.len() < whole.len() {
            assert_eq!(unwound.incomplete.as_deref(), Some("truncated copy"), "{length}");
        }
        assert_eq!(unwound.addresses, whole[..unwound.addresses.len()]);
        cut.push(unwound.addresses.len());
    }
    assert!(cut.is_sorted() && cut.len() > 4, "{cut:?}");
}

#[test]
fn on_an_alternate_stack_the_interrupted_one_is_missing() {
    let capture = std::thread::spawn(|| {
        let mut memory = vec![0_u64; 64 << 10 >> 3];
        let stack =
            libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: 64 << 10 };
        // SAFETY: the memory outlives the signal; the thread ends without another one.
        let before = unsafe {
            let mut before: libc::stack_t = std::mem::zeroed();
            assert_eq!(libc::sigaltstack(&raw const stack, &raw mut before), 0);
            before
        };
        let end = memory.as_ptr() as u64 + (64 << 10);
        let capture = raise(libc::SIGUSR2, libc::SA_ONSTACK, end);
        // SAFETY: as it was.
        unsafe { libc::sigaltstack(&raw const before, std::ptr::null_mut()) };
        capture
    });
    let capture = capture.join().unwrap();
    let unwound = capture.unwound();
    let why = unwound.incomplete.as_deref();
    assert_eq!(why, Some("the interrupted stack is not in the copy"));
    let known = unwound.addresses.len();
    assert!(known >= 4, "{unwound:x?}");
    assert_eq!(hex(&plain(&unwound.addresses[1..])), hex(&capture.truth[1..known]));
    let exact = unwound.addresses.iter().filter(|address| **address & EXACT != 0).count();
    // The restorer, and where the signal came.
    assert_eq!(exact, 2);
}

#[test]
fn a_slot_with_a_trampoline_is_mended_or_ends_the_stack() {
    let mut capture = recurse(9);
    let truth = capture.check().addresses;
    let bytes = &mut capture.copy.bytes;
    let word = |at: usize, bytes: &[u8]| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    // The slot of the fourth return address.
    let at = (0..bytes.len() - 8).step_by(8).find(|at| word(*at, bytes) == truth[3]).unwrap();
    bytes[at..at + 8].copy_from_slice(&0x7fff_ffff_e000_u64.to_le_bytes());
    let unwound = capture.unwound();
    assert!(unwound.incomplete.unwrap().starts_with("a return address lies in no code"));
    assert_eq!(unwound.addresses, truth[..3]);
    capture.copy.slots[1] = (capture.copy.registers.rsp + at as u64, truth[3]);
    let unwound = capture.unwound();
    assert_eq!((unwound.incomplete, unwound.addresses), (None, truth));
}
