//! Copies that hold nonsense: never a panic, never a whole stack with an address that is no
//! code.

use proptest::prelude::*;

use super::*;
use crate::stacks::unwind::{AddressSpace, Code, MAX_ADDRESSES};

fn check(copy: &StackCopy, unwinder: &mut Unwinder, space: &mut OwnSpace) {
    let unwound = unwinder.unwind(copy, space);
    assert!(unwound.addresses.len() <= MAX_ADDRESSES);
    assert_eq!(unwound.addresses.first(), Some(&copy.registers.rip));
    if unwound.incomplete.is_none() {
        for address in &unwound.addresses {
            let code = space.find(address - 1);
            assert!(matches!(code, Code::File { .. } | Code::Vdso { .. }), "{address:x} {code:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn words_of_a_real_stack_are_overwritten(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0_u8..4), 1..40),
        rsp in any::<u64>(),
        move_it in 0_u8..10,
    ) {
        let mut capture = Capture::take();
        let (mut unwinder, mut space) = (Unwinder::new(), OwnSpace::new().unwrap());
        let words = capture.copy.bytes.len().min(4_096) / 8;
        for (place, value, kind) in changes {
            let at = place.index(words) * 8;
            let value = match kind {
                0 => value,
                // Near the stack.
                1 => capture.copy.registers.rsp.wrapping_add(value % 8_192),
                // Near code.
                2 => capture.truth[value as usize % capture.truth.len()] + value % 7,
                _ => value % 16,
            };
            capture.copy.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            check(&capture.copy, &mut unwinder, &mut space);
        }
        if move_it == 0 {
            capture.copy.registers.rsp = rsp;
            check(&capture.copy, &mut unwinder, &mut space);
        }
    }

    #[test]
    fn everything_is_random(
        words in prop::array::uniform8(any::<u64>()),
        bytes in prop::collection::vec(any::<u8>(), 0..2_000),
        slots in prop::array::uniform3((any::<u64>(), any::<u64>())),
        whole in any::<bool>(),
    ) {
        let [rip, rsp, rbp, rbx, r12, r13, r14, r15] = words;
        let registers = Registers { rip, rsp, rbp, rbx, r12, r13, r14, r15 };
        let copy = StackCopy { registers, slots, exec_pages: 0, missing: 0, whole, bytes: bytes.into() };
        let unwound = unwound(&copy);
        prop_assert!(unwound.incomplete.is_some());
    }
}

#[test]
fn a_stack_that_leads_back_to_itself_ends() {
    let mut capture = Capture::take();
    let rsp = capture.copy.registers.rsp;
    for at in (0..capture.copy.bytes.len()).step_by(8) {
        let end = (at + 8).min(capture.copy.bytes.len());
        capture.copy.bytes[at..end].copy_from_slice(&rsp.to_le_bytes()[..end - at]);
    }
    capture.copy.registers.rbp = rsp;
    assert!(capture.unwound().incomplete.is_some());
}
