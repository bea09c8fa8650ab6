//! Where unwind information can be, and what is done without it.

use std::time::{Duration, Instant};

use super::elf::{Elf, STACK, copy, frames};
use super::*;
use crate::stacks::files::OpenFile;
use crate::stacks::unwind::rule::Rule;
use crate::stacks::unwind::{AddressSpace, Code};

/// The CFA is `rsp`+24, `rbp` below the return address; then the outermost frame.
const TWO: [(u64, u64, &[u8]); 2] =
    [(0x100, 0x100, &[0x0e, 24, 0x86, 2]), (0x200, 0x100, &[0x07, 16])];

fn two(elf: &Elf) {
    let mapped = elf.map();
    let (inner, outer) = (mapped.code + 0x180, mapped.code + 0x280);
    let unwound = unwound(&copy(inner, 0, &[1, 0, outer]));
    assert_eq!(unwound.incomplete, None);
    assert_eq!(unwound.addresses, [inner, outer]);
    assert_eq!(unwound.steps.len(), 2);
    // An address between functions has none.
    let why = super::unwound(&copy(mapped.code + 0x380, 0, &[1, 0, outer])).incomplete.unwrap();
    assert!(why.starts_with("no unwind info for /"), "{why}");
}

#[test]
fn with_a_search_table_with_or_without_section_headers() {
    let (eh_frame, table) = frames(false, "zR", &TWO);
    let elf = Elf { eh_frame, table, ..Elf::default() };
    two(&elf);
    two(&Elf { no_section_headers: true, ..elf });
}

#[test]
fn without_a_search_table() {
    let (eh_frame, _) = frames(false, "zR", &TWO);
    two(&Elf { eh_frame, ..Elf::default() });
    let reversed: Vec<_> = TWO.into_iter().rev().collect();
    let (eh_frame, _) = frames(false, "zR", &reversed);
    two(&Elf { eh_frame, ..Elf::default() });
}

#[test]
fn where_the_table_leads_to_descriptions_of_nothing() {
    let functions = [(0x100, 0, &[][..]), (0x100, 0, &[]), TWO[0], TWO[1]];
    let (eh_frame, mut table) = frames(false, "zR", &functions);
    table.drain(1..3);
    two(&Elf { eh_frame, table, ..Elf::default() });
}

#[test]
fn in_debug_frame_plain_or_compressed() {
    let (debug_frame, _) = frames(true, "", &TWO);
    let elf = Elf { debug_frame, ..Elf::default() };
    two(&elf);
    two(&Elf { compress: true, ..elf });
}

#[test]
fn debug_frame_helps_out_for_what_eh_frame_lacks() {
    let (eh_frame, table) = frames(false, "zR", &TWO[..1]);
    let (debug_frame, _) = frames(true, "", &TWO[1..]);
    two(&Elf { eh_frame, table, debug_frame, ..Elf::default() });
}

#[test]
fn without_any_the_code_may_tell() {
    let mut code = vec![0x90; 0x400];
    // add $16,%rsp; pop %rbp; ret
    code[0x180..0x186].copy_from_slice(&[0x48, 0x83, 0xc4, 16, 0x5d, 0xc3]);
    // hlt
    code[0x280] = 0xf4;
    let mapped = Elf { code, ..Elf::default() }.map();
    let (inner, outer) = (mapped.code + 0x180, mapped.code + 0x280);
    let stack = |outer| copy(inner, 0, &[1, 2, 3, outer]);
    let one = unwound(&stack(outer));
    assert_eq!((one.incomplete, one.addresses), (None, vec![inner, outer]));
    assert_eq!(one.steps.len(), 2);
    // Near where a program begins is not where its stack ends.
    let other = unwound(&stack(mapped.code + 0x310));
    assert!(other.incomplete.is_some(), "{other:x?}");
}

#[test]
fn frame_pointers_are_followed_where_they_are_plausible_but_never_believed() {
    let (eh_frame, table) = frames(false, "zR", &TWO);
    let mut code = vec![0x90; 0x800];
    code[0x27b] = 0xe8;
    code[0x77e..0x780].copy_from_slice(&[0xff, 0xd0]);
    let elf = Elf { code, eh_frame, table, ..Elf::default() };
    let mapped = elf.map();
    let at = |offset: u64| mapped.code + offset;
    let words = [9, STACK + 32, at(0x780), 9, 0, at(0x280)];
    let followed = unwound(&copy(at(0x500), STACK + 8, &words));
    assert_eq!(followed.addresses, [at(0x500), at(0x780), at(0x280)]);
    let why = followed.incomplete.unwrap();
    assert!(why.starts_with("no unwind info for /"), "{why}");
    assert_eq!(followed.steps.len(), 1);
    // Not behind a call; not on the stack; not aligned; backwards; no code.
    for (frame, words) in [
        (STACK + 8, [9, STACK + 32, at(0x7a0), 9, 0, at(0x280)]),
        (STACK + 800, words),
        (STACK + 9, words),
        (STACK - 8, words),
        (STACK + 8, [9, STACK + 32, 0x780, 9, 0, at(0x280)]),
    ] {
        let stopped = unwound(&copy(at(0x500), frame, &words));
        assert_eq!(stopped.addresses, [at(0x500)]);
        assert!(stopped.incomplete.is_some());
    }
}

#[test]
fn a_plt_entrys_expression_depends_on_where_it_is() {
    // As linkers write it: rsp + 8 + ((rip & 15) >= 11) * 8.
    let rules = [0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
    let functions = [(0x100, 0x100, &rules[..]), TWO[1]];
    let (eh_frame, table) = frames(false, "zR", &functions);
    let mapped = Elf { eh_frame, table, ..Elf::default() }.map();
    let outer = mapped.code + 0x280;
    let (early, late) = (mapped.code + 0x18a, mapped.code + 0x18b);
    let unwound = |rip, words: &[u64]| unwound(&copy(rip, 0, words));
    let one = unwound(early, &[outer, 7]);
    // `rip` is what the register holds, and no call returns to here in earnest.
    assert_eq!((one.incomplete, one.addresses), (None, vec![early, outer]));
    let other = unwound(late, &[7, outer]);
    assert_eq!((other.incomplete, other.addresses), (None, vec![late, outer]));
    assert_eq!(other.steps.len(), 1);
}

#[test]
fn a_restorer_without_unwind_information_is_known_by_its_code() {
    let functions: [(u64, u64, &[u8]); 2] = [(0x100, 0x100, &[]), (0x240, 0x100, &[0x07, 16])];
    let (eh_frame, table) = frames(false, "zR", &functions);
    let mut code = vec![0x90; 0x400];
    // One right behind another function, one that stands alone.
    for at in [0x200, 0x220] {
        code[at..at + 9].copy_from_slice(&crate::stacks::unwind::code::SIGRETURN);
    }
    let mapped = Elf { code, eh_frame, table, ..Elf::default() }.map();
    let outer = mapped.code + 0x240;
    for at in [0x200, 0x220] {
        let mut words = [0; 64];
        (words[5 + 15], words[5 + 16]) = (STACK + 320, outer);
        let restorer = mapped.code + at;
        let one = unwound(&copy(restorer, 0, &words));
        // The interrupted function had just begun: it is no return address.
        assert_eq!((one.incomplete, one.addresses), (None, vec![restorer | EXACT, outer | EXACT]));
        assert_eq!(one.steps, []);
        // The interrupted stack is another one.
        words[5 + 15] = STACK - 320;
        let other = unwound(&copy(restorer, 0, &words));
        assert_eq!(other.addresses, [restorer | EXACT, outer | EXACT]);
        let why = other.incomplete.unwrap();
        assert_eq!(why, "the interrupted stack is not in the copy");
    }
}

#[test]
fn a_file_that_is_cut_short_fails_instead_of_reading_as_zeros() {
    let (eh_frame, table) = frames(false, "zR", &TWO);
    let mapped = Elf { eh_frame, table, ..Elf::default() }.map();
    let (inner, outer) = (mapped.code + 0x180, mapped.code + 0x280);
    let (mut unwinder, mut space) = (Unwinder::new(), OwnSpace::new().unwrap());
    let copy = copy(inner, 0, &[1, 0, outer]);
    assert_eq!(unwinder.unwind(&copy, &mut space).incomplete, None);
    mapped.file.as_file().set_len(64).unwrap();
    // What is known stays known; what is not cannot be found out any more.
    assert_eq!(unwinder.unwind(&copy, &mut space).incomplete, None);
    let other = super::elf::copy(inner + 1, 0, &[1, 0, outer]);
    for _ in 0..2 {
        let why = unwinder.unwind(&other, &mut space).incomplete.unwrap();
        assert!(why.ends_with(" was cut short while it was read"), "{why}");
    }
    assert!(unwinder.unwind(&copy, &mut space).incomplete.is_some());
}

#[test]
fn what_is_unused_is_closed() {
    let (eh_frame, _) = frames(false, "zR", &TWO);
    let mapped = Elf { eh_frame, ..Elf::default() }.map();
    let (mut unwinder, mut space) = (Unwinder::new(), OwnSpace::new().unwrap());
    let copy = copy(mapped.code + 0x180, 0, &[1, 0, mapped.code + 0x280]);
    let first = unwinder.unwind(&copy, &mut space);
    unwinder.idle();
    assert_eq!(unwinder.sizes().rules, 2);
    unwinder.files.close_unused(Instant::now() + Duration::from_secs(70));
    assert_eq!(unwinder.sizes(), Default::default());
    assert_eq!(unwinder.unwind(&copy, &mut space), first);
}

#[test]
fn the_vdso_is_followed() {
    let (mut unwinder, mut space) = (Unwinder::new(), OwnSpace::new().unwrap());
    let length = crate::stacks::unwind::vdso::image().unwrap().len() as u64;
    let (files, context) = (&mut unwinder.files, &mut unwinder.context);
    let mut rules = (0..length)
        .map(|offset| files.rule(context, &mut space, None, offset, true).unwrap())
        .filter(|rule| matches!(rule, Rule::Plain(_)));
    assert!(rules.nth(100).is_some());
}

/// A space whose files must not be read.
struct Shunned(OwnSpace);

impl AddressSpace for Shunned {
    fn find(&mut self, address: u64) -> Code {
        self.0.find(address)
    }

    fn bytes(&mut self, address: u64, into: &mut [u8]) -> usize {
        self.0.bytes(address, into)
    }

    fn begin_reading(&mut self, file: Option<&OpenFile>) -> Result<(), String> {
        Err(format!("{} is not read", file.unwrap().module))
    }
}

#[test]
fn a_file_that_must_not_be_read_is_not_read_until_it_may_be() {
    let (eh_frame, table) = frames(false, "zR", &TWO);
    let mapped = Elf { eh_frame, table, ..Elf::default() }.map();
    let copy = copy(mapped.code + 0x180, 0, &[1, 0, mapped.code + 0x280]);
    let (mut unwinder, space) = (Unwinder::new(), OwnSpace::new().unwrap());
    let unwound = unwinder.unwind(&copy, &mut Shunned(space.clone()));
    assert!(unwound.incomplete.unwrap().ends_with(" is not read"));
    assert_eq!(unwinder.sizes(), Default::default());
    let mut space = space;
    assert_eq!(unwinder.unwind(&copy, &mut space).incomplete, None);
    // What is known needs no reading.
    assert_eq!(unwinder.unwind(&copy, &mut Shunned(space)).incomplete, None);
}
