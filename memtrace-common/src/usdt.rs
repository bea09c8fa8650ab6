//! Static probes (USDT): where the arguments are when one fires, as data.

use bytemuck::{Pod, Zeroable};

use crate::assert_size;

/// Where an argument of a static probe is.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsdtPlace {
    /// It is a number in the file.
    Constant = 1,
    /// In a register.
    Register = 2,
    /// In memory: a register, and another one times a power of two, and a number, are its address.
    Memory = 3,
}

/// One argument of a static probe.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct UsdtArgument {
    /// A constant, or what is added to an address.
    pub number: i64,
    /// Where the register is in the kernel's `pt_regs`, bytes; [`UsdtArgument::NONE`] for none.
    pub base: u16,
    /// The same of the register that is multiplied.
    pub index: u16,
    /// Bits that it is shifted left by.
    pub scale: u8,
    /// [`UsdtPlace`].
    pub place: u8,
    /// Bytes of the value: 1, 2, 4 or 8.
    pub bytes: u8,
    /// [`UsdtArgument::SIGNED`], [`UsdtArgument::HIGH`].
    pub flags: u8,
}
assert_size!(UsdtArgument, 16);

impl UsdtArgument {
    /// No register.
    pub const NONE: u16 = u16::MAX;
    /// The value is signed.
    pub const SIGNED: u8 = 1;
    /// It is bits 8 to 15 of its register (`%ah`).
    pub const HIGH: u8 = 2;

    /// The value in the bits of a register or of memory.
    #[must_use]
    #[inline(always)]
    pub const fn value(&self, bits: u64) -> u64 {
        let bits = if self.flags & Self::HIGH == 0 { bits } else { bits >> 8 };
        if self.flags & Self::SIGNED == 0 {
            match self.bytes {
                1 => bits & 0xff,
                2 => bits & 0xffff,
                4 => bits & 0xffff_ffff,
                _ => bits,
            }
        } else {
            match self.bytes {
                1 => ((bits << 56) as i64 >> 56) as u64,
                2 => ((bits << 48) as i64 >> 48) as u64,
                4 => ((bits << 32) as i64 >> 32) as u64,
                _ => bits,
            }
        }
    }
}

/// What is read where a static probe fires: the value of the map of probes, by attach cookie.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct UsdtPoint {
    /// The pointer that was given or is taken back.
    pub pointer: UsdtArgument,
    /// The size; of a probe that takes back nothing.
    pub size: UsdtArgument,
}
assert_size!(UsdtPoint, 32);

/// The attach cookie of one place of a static probe: a probe may have several, each with its
/// arguments elsewhere.
#[must_use]
pub const fn usdt_cookie(cookie: u64, place: u16) -> u64 {
    cookie | (place as u64) << 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_width_and_sign() {
        let of = |bytes, flags| UsdtArgument { bytes, flags, ..UsdtArgument::default() };
        let bits = 0x1234_5678_9abc_def0;
        for (bytes, flags, value) in [
            (1, 0, 0xf0),
            (2, 0, 0xdef0),
            (4, 0, 0x9abc_def0),
            (8, 0, bits),
            (1, UsdtArgument::SIGNED, 0xffff_ffff_ffff_fff0),
            (2, UsdtArgument::SIGNED, 0xffff_ffff_ffff_def0),
            (4, UsdtArgument::SIGNED, 0xffff_ffff_9abc_def0),
            (8, UsdtArgument::SIGNED, bits),
            (1, UsdtArgument::HIGH, 0xde),
            (1, UsdtArgument::HIGH | UsdtArgument::SIGNED, 0xffff_ffff_ffff_ffde),
        ] {
            assert_eq!(of(bytes, flags).value(bits), value, "{bytes} {flags}");
        }
    }
}
