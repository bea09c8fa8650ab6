//! The registers of a frame, by their DWARF numbers on x86-64. Values that are not known are
//! never handed out.

use crate::record::Registers;

/// `rbx`.
pub const RBX: u16 = 3;
/// `rbp`.
pub const RBP: u16 = 6;
/// `rsp`.
pub const RSP: u16 = 7;
/// `r12`.
pub const R12: u16 = 12;
/// `r13`.
pub const R13: u16 = 13;
/// `r14`.
pub const R14: u16 = 14;
/// `r15`.
pub const R15: u16 = 15;
/// The return address: `rip` of the frame itself.
pub const RIP: u16 = 16;
/// How many there are.
pub const COUNT: usize = 17;

/// What a function must keep, apart from the stack pointer.
pub const KEPT: [u16; 6] = [RBX, RBP, R12, R13, R14, R15];

/// In the order of a signal's `ucontext`: eight bytes each, from offset 40 on.
pub const OF_SIGNAL: [u16; COUNT] =
    [8, 9, 10, 11, R12, R13, R14, R15, 5, 4, RBP, RBX, 1, 0, 2, RSP, RIP];

/// Registers, some of them known.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    values: [u64; COUNT],
    known: u32,
}

impl Cpu {
    /// None known.
    pub const fn unknown() -> Self {
        Self { values: [0; COUNT], known: 0 }
    }

    /// What a function has kept when it returns.
    pub fn at_return(registers: &Registers) -> Self {
        let Registers { rip, rsp, rbp, rbx, r12, r13, r14, r15 } = *registers;
        let mut cpu = Self::unknown();
        for (register, value) in [
            (RIP, rip),
            (RSP, rsp),
            (RBP, rbp),
            (RBX, rbx),
            (R12, r12),
            (R13, r13),
            (R14, r14),
            (R15, r15),
        ] {
            cpu.set(register, value);
        }
        cpu
    }

    /// A value, if it is known.
    pub fn get(&self, register: u16) -> Option<u64> {
        let value = self.values.get(usize::from(register))?;
        (self.known & 1 << register != 0).then_some(*value)
    }

    /// Sets one; those that are not followed are passed over.
    pub fn set(&mut self, register: u16, value: u64) {
        if let Some(slot) = self.values.get_mut(usize::from(register)) {
            *slot = value;
            self.known |= 1 << register;
        }
    }

    /// From now on it is not known.
    pub fn forget(&mut self, register: u16) {
        if usize::from(register) < COUNT {
            self.known &= !(1 << register);
        }
    }
}
