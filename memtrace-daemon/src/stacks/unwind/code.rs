//! What code bytes tell about a frame without unwind information, where they tell it with
//! certainty: how a function returns from here on, that it does not, that a call is before an
//! address.

use super::registers::{KEPT, RBP};
use super::rule::{Plain, Rule};

/// `mov $15,%rax; syscall`: `rt_sigreturn`.
pub const SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// `mov %eax,%edi; xor %eax,%eax; mov $60,%al; syscall` and `mov %eax,%edi; mov $60,%eax;
/// syscall`: the exit of a thread, behind the call of its function.
const EXITS: [&[u8]; 2] = [
    &[0x89, 0xc7, 0x31, 0xc0, 0xb0, 0x3c, 0x0f, 0x05],
    &[0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05],
];
/// `hlt`, which user space cannot execute: nobody returns to here.
const HALT: u8 = 0xf4;
/// Longest call instruction, bytes.
pub const CALL: usize = 8;

/// The rule that straight code to a `ret` amounts to; `Nothing` where it is not that.
pub fn rule(code: &[u8]) -> Rule {
    if code.starts_with(&SIGRETURN) {
        return Rule::Signal;
    }
    if code.first() == Some(&HALT) || EXITS.iter().any(|exit| code.starts_with(exit)) {
        return Rule::End;
    }
    returning(code).map_or(Rule::Nothing, Rule::Plain)
}

/// The end of a function: the stack pointer is raised, registers are popped, `ret`.
fn returning(mut code: &[u8]) -> Option<Plain> {
    let (mut by_frame_pointer, mut offset) = (false, 0_i32);
    // Where each register is saved, counted from the base.
    let mut popped: [Option<i32>; KEPT.len()] = [None; KEPT.len()];
    let mut pop = |register: u16, offset: &mut i32| {
        if let Some(kept) = KEPT.iter().position(|kept| *kept == register) {
            // A function pops each once.
            let slot = popped.get_mut(kept)?;
            if slot.replace(*offset).is_some() {
                return None;
            }
        }
        *offset = offset.checked_add(8)?;
        Some(())
    };
    loop {
        code = match code {
            // vzeroupper
            [0xc5, 0xf8, 0x77, rest @ ..] => rest,
            // add $imm8,%rsp
            [0x48, 0x83, 0xc4, by, rest @ ..] => {
                offset = offset.checked_add(i32::from(by.cast_signed()))?;
                rest
            }
            // add $imm32,%rsp
            [0x48, 0x81, 0xc4, a, b, c, d, rest @ ..] => {
                offset = offset.checked_add(i32::from_le_bytes([*a, *b, *c, *d]))?;
                rest
            }
            // leave; mov %rbp,%rsp
            [0xc9, rest @ ..] if !by_frame_pointer => {
                (by_frame_pointer, offset) = (true, 0);
                pop(RBP, &mut offset)?;
                rest
            }
            [0x48, 0x89, 0xec, rest @ ..] if !by_frame_pointer => {
                (by_frame_pointer, offset) = (true, 0);
                rest
            }
            // pop
            [0x41, register @ 0x58..=0x5f, rest @ ..] => {
                pop(u16::from(register - 0x58) + 8, &mut offset)?;
                rest
            }
            [register @ (0x58..=0x5b | 0x5d..=0x5f), rest @ ..] => {
                pop(u16::from(pop_register(*register)), &mut offset)?;
                rest
            }
            // ret; rep ret
            [0xc3, ..] | [0xf3, 0xc3, ..] => break,
            _ => return None,
        };
    }
    let offset = offset
        .checked_add(8)
        .filter(|offset| *offset >= 8 && offset.cast_unsigned().is_multiple_of(8))?;
    let mut plain = Plain { by_frame_pointer, offset, ..Plain::default() };
    for (saved, at) in plain.saved.iter_mut().zip(popped) {
        if let Some(at) = at {
            *saved = u16::try_from(offset.checked_sub(at)? / 8).ok()?;
        }
    }
    Some(plain)
}

/// Instructions number `rcx`, `rdx`, `rbx`, `rbp`, `rsi`, `rdi` in their own way.
const fn pop_register(opcode: u8) -> u8 {
    match opcode {
        0x59 => 2,
        0x5a => 1,
        0x5b => 3,
        0x5d => 6,
        0x5e => 4,
        0x5f => 5,
        _ => 0,
    }
}

/// Whether the bytes before an address end with a call.
pub fn is_call(before: &[u8]) -> bool {
    let ends = |length: usize| before.len().checked_sub(length).and_then(|at| before.get(at..));
    if ends(5).is_some_and(|code| code.first() == Some(&0xe8)) {
        return true;
    }
    // ff /2: by register, or by memory with all its forms.
    (2..=7).any(|length| match ends(length) {
        Some([0xff, modrm, rest @ ..]) if modrm >> 3 & 7 == 2 => {
            let sib = usize::from(modrm & 7 == 4 && modrm >> 6 != 3);
            let displacement = match modrm >> 6 {
                0 if modrm & 7 == 5 => 4,
                0 if sib == 1 && rest.first().is_some_and(|sib| sib & 7 == 5) => 4,
                1 => 1,
                2 => 4,
                _ => 0,
            };
            rest.len() == sib + displacement
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(code: &[u8]) -> Option<Plain> {
        match rule(code) {
            Rule::Plain(plain) => Some(plain),
            _ => None,
        }
    }

    #[test]
    fn ends_of_functions_are_rows() {
        let cpython_312 = plain(&[0x48, 0x83, 0xc4, 8, 0xc3]).unwrap();
        assert_eq!(cpython_312, Plain { offset: 16, ..Plain::default() });
        let cpython_314 = plain(&[0x5d, 0xc3]).unwrap();
        assert_eq!(
            cpython_314,
            Plain { offset: 16, saved: [0, 2, 0, 0, 0, 0], ..Plain::default() }
        );
        let leave = plain(&[0xc9, 0xc3]).unwrap();
        let by_frame_pointer = true;
        assert_eq!(leave, Plain { by_frame_pointer, offset: 16, saved: [0, 2, 0, 0, 0, 0] });
        // add $24,%rsp; pop %rbx; pop %rbp; pop %r12; pop %rcx; ret
        let pops = plain(&[0x48, 0x83, 0xc4, 24, 0x5b, 0x5d, 0x41, 0x5c, 0x59, 0xc3]).unwrap();
        assert_eq!(pops, Plain { offset: 64, saved: [5, 4, 3, 0, 0, 0], ..Plain::default() });
        assert_eq!(plain(&[0xc3]), Some(Plain { offset: 8, ..Plain::default() }));
    }

    #[test]
    fn what_is_not_straight_to_a_return_is_nothing() {
        for code in [
            &[][..],
            &[0x90, 0xc3],
            &[0x48, 0x83, 0xc4, 8],
            &[0x48, 0x83, 0xc4, 0x80, 0xc3],
            &[0x48, 0x83, 0xc4, 4, 0xc3],
            &[0x5d, 0x5d, 0xc3],
            &[0xe8, 0, 0, 0, 0, 0xc3],
        ] {
            assert!(matches!(rule(code), Rule::Nothing), "{code:x?}");
        }
        assert!(matches!(rule(&[0xf4]), Rule::End));
        assert!(matches!(rule(EXITS[0]), Rule::End));
        assert!(matches!(rule(&SIGRETURN), Rule::Signal));
    }

    #[test]
    fn calls_are_told_from_other_code() {
        for code in [
            &[0xe8, 1, 2, 3, 4][..],
            &[0x41, 0xff, 0xd4],
            &[0xff, 0xd0],
            &[0xff, 0x10],
            &[0xff, 0x14, 0x24],
            &[0xff, 0x50, 8],
            &[0xff, 0x54, 0x24, 8],
            &[0xff, 0x90, 0, 1, 0, 0],
            &[0xff, 0x94, 0xc0, 0, 1, 0, 0],
            &[0xff, 0x15, 1, 2, 3, 4],
            &[0xff, 0x14, 0xc5, 1, 2, 3, 4],
        ] {
            assert!(is_call(code), "{code:x?}");
        }
        for code in [&[][..], &[0x90; 8], &[0xff, 0xe0], &[0xff, 0x20], &[0xe8, 1, 2, 3], &[0xc3]] {
            assert!(!is_call(code), "{code:x?}");
        }
    }
}
