//! Files that lie: refused with a reason, within bounds, without a panic.

use proptest::prelude::*;

use super::elf::{CODE, Elf, Mapped, STACK, copy, frames, map};
use super::*;
use crate::stacks::unwind::files::MAX_BYTES;

fn unwind(mapped: &Mapped) -> Unwound {
    let words: Vec<u64> = (0..64)
        .map(|word| if word % 3 == 0 { mapped.code + 0x100 + word * 16 } else { STACK + word * 8 })
        .collect();
    let (mut unwinder, mut space) = (Unwinder::new(), OwnSpace::new().unwrap());
    let mut last = Unwound::default();
    for start in [0x180, 0x280, 0x1b0, 0x3f0] {
        last = unwinder.unwind(&copy(mapped.code + start, STACK + 8, &words), &mut space);
        assert!(unwinder.sizes().bytes <= MAX_BYTES);
    }
    last
}

/// The reason for a stack that begins in a function with these rules.
fn why(augmentation: &str, rules: &[u8]) -> String {
    let (eh_frame, table) = frames(false, augmentation, &[(0x100, 0x100, rules)]);
    let mapped = Elf { eh_frame, table, ..Elf::default() }.map();
    let unwound = unwound(&copy(mapped.code + 0x180, STACK + 8, &[1; 64]));
    assert_eq!(unwound.addresses.len(), 1);
    unwound.incomplete.unwrap()
}

#[test]
fn an_expression_that_loops_is_stopped() {
    // DW_OP_skip -3
    let why = why("zR", &[0x0f, 3, 0x2f, 0xfd, 0xff]);
    assert!(why.ends_with("has an expression that cannot be evaluated"), "{why}");
}

#[test]
fn a_frame_that_does_not_grow_is_stopped() {
    let expected = "a frame does not lie behind the one that it called";
    assert_eq!(why("zR", &[0x0e, 0]), expected);
    // The stack pointer stays as it is.
    assert_eq!(why("zR", &[0x0e, 24, 0x08, 7]), expected);
}

#[test]
fn registers_that_are_lost_are_not_made_up() {
    // The CFA by rax.
    assert_eq!(why("zR", &[0x0c, 0, 8]), "a frame needs a register that is not known");
    // The return address in rdx.
    assert_eq!(why("zR", &[0x09, 16, 1]), "a frame needs a register that is not known");
}

#[test]
fn memory_outside_the_copy_is_not_read() {
    assert_eq!(why("zR", &[0x0f, 2, 0x35, 0x06]), "a frame lies outside the stack");
    let beyond = why("zR", &[0x0e, 0xff, 0x7f - 7]);
    assert_eq!(beyond, "a frame does not lie behind the one that it called");
    assert_eq!(why("zR", &[0x0e, 0x80, 0x10]), "the stack goes on where its copy ends");
}

#[test]
fn unwind_information_that_is_absurd_is_refused() {
    for (augmentation, rules) in [
        ("zR", &[0x3d; 8][..]),
        ("zQ", &[][..]),
        ("zR", &[0x0a, 0x0a, 0x0a, 0x0a, 0x0a, 0x0a, 0x0a, 0x0a, 0x0a][..]),
        ("zR", &[0x0b][..]),
    ] {
        let why = why(augmentation, rules);
        assert!(why.ends_with("has unwind information that cannot be read"), "{why}");
    }
}

#[test]
fn no_more_than_the_limit_is_indexed() {
    // Descriptions of one byte each, as many as there is room for.
    let functions: Vec<(u64, u64, &[u8])> =
        (0..1_200).map(|number| (number * 8, 8, &[][..])).collect();
    let (eh_frame, _) = frames(false, "zR", &functions);
    let mapped = Elf { eh_frame, ..Elf::default() }.map();
    let (mut unwinder, mut space) = (Unwinder::new(), OwnSpace::new().unwrap());
    let before = unwinder.sizes().bytes;
    let _ = unwinder.unwind(&copy(mapped.code + 0x180, 0, &[1; 8]), &mut space);
    let grown = unwinder.sizes().bytes - before;
    assert!((9_600..12_000).contains(&grown), "{grown}");
}

#[test]
fn a_file_for_another_machine_is_refused() {
    let mut bytes = Elf::default().bytes();
    bytes[18] = 183;
    let mapped = map(&bytes);
    let why = unwound(&copy(mapped.code + 0x180, 0, &[1; 8])).incomplete.unwrap();
    assert!(why.ends_with(" is not an x86-64 file"), "{why}");
}

fn elfs() -> Vec<Elf> {
    let rules: [(u64, u64, &[u8]); 3] = [
        (0x100, 0x80, &[0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x0a, 0x42, 0x0b, 0x0c, 7, 32]),
        (0x180, 0x100, &[0x0f, 3, 0x77, 24, 0x06, 0x10, 6, 2, 0x76, 0, 0x16, 3, 2, 0x77, 8]),
        (0x280, 0x200, &[0x0e, 24, 0x83, 2, 0x2e, 8, 0x42, 0x12, 6, 0]),
    ];
    let (eh_frame, table) = frames(false, "zR", &rules);
    let (signal, _) = frames(false, "zRS", &rules);
    let (debug_frame, _) = frames(true, "", &rules);
    vec![
        Elf { eh_frame: eh_frame.clone(), table, ..Elf::default() },
        Elf { eh_frame, ..Elf::default() },
        Elf { eh_frame: signal, ..Elf::default() },
        Elf { debug_frame: debug_frame.clone(), ..Elf::default() },
        Elf { debug_frame, compress: true, ..Elf::default() },
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn files_are_changed_anywhere(
        which in 0_usize..5,
        changes in prop::collection::vec((0_usize..1_400, any::<u8>(), 0_u8..4), 1..12),
    ) {
        let mut bytes = elfs()[which].bytes();
        for (at, value, kind) in changes {
            // The headers, or what is behind the first page.
            let at = if at < 240 { at } else { 0x1000 - 240 + at };
            bytes[at] = match kind {
                0 => value,
                1 => bytes[at] ^ 1 << (value % 8),
                2 => 0xff,
                _ => bytes[at].wrapping_add(1),
            };
        }
        let mapped = map(&bytes);
        let unwound = unwind(&mapped);
        prop_assert!(unwound.addresses.len() <= 256);
    }

    #[test]
    fn unwind_information_is_random(
        eh_frame in prop::collection::vec(any::<u8>(), 0..400),
        table in prop::collection::vec((0..CODE + 0x800, 0_u64..500), 0..4),
    ) {
        unwind(&Elf { eh_frame, table, ..Elf::default() }.map());
    }

    #[test]
    fn rules_are_random(rules in prop::collection::vec(any::<u8>(), 0..60)) {
        let (eh_frame, table) = frames(false, "zR", &[(0x100, 0x400, &rules)]);
        unwind(&Elf { eh_frame, table, ..Elf::default() }.map());
    }
}
