//! The registers of x86-64 as assemblers write them, and where the kernel's `pt_regs` has them.

/// A register, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Where the whole register is in `pt_regs`, bytes.
    pub offset: u16,
    /// Bytes of the part; it begins with the lowest, unless `high`.
    pub bytes: u8,
    /// It is bits 8 to 15.
    pub high: bool,
}

/// (`pt_regs`, names of 8, 4, 2 and 1 bytes, name of bits 8 to 15).
const OLD: [(u16, [&str; 4], &str); 8] = [
    (80, ["rax", "eax", "ax", "al"], "ah"),
    (40, ["rbx", "ebx", "bx", "bl"], "bh"),
    (88, ["rcx", "ecx", "cx", "cl"], "ch"),
    (96, ["rdx", "edx", "dx", "dl"], "dh"),
    (104, ["rsi", "esi", "si", "sil"], ""),
    (112, ["rdi", "edi", "di", "dil"], ""),
    (32, ["rbp", "ebp", "bp", "bpl"], ""),
    (152, ["rsp", "esp", "sp", "spl"], ""),
];

/// (`pt_regs`, number).
const NEW: [(u16, &str); 8] =
    [(72, "8"), (64, "9"), (56, "10"), (48, "11"), (24, "12"), (16, "13"), (8, "14"), (0, "15")];

/// The register of a name without its `%`.
pub fn named(name: &str) -> Option<Register> {
    for (offset, names, high) in OLD {
        if let Some(at) = names.iter().position(|known| *known == name) {
            return Some(Register { offset, bytes: 8 >> at, high: false });
        }
        if !high.is_empty() && high == name {
            return Some(Register { offset, bytes: 1, high: true });
        }
    }
    let rest = name.strip_prefix('r')?;
    let number = rest.trim_end_matches(['d', 'w', 'b']);
    let (offset, _) = NEW.into_iter().find(|(_, known)| *known == number)?;
    let bytes = match rest.strip_prefix(number)? {
        "" => 8,
        "d" => 4,
        "w" => 2,
        "b" => 1,
        _ => return None,
    };
    Some(Register { offset, bytes, high: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_where_the_kernel_has_them() {
        for (name, offset, bytes, high) in [
            ("rax", 80, 8, false),
            ("eax", 80, 4, false),
            ("al", 80, 1, false),
            ("ah", 80, 1, true),
            ("bpl", 32, 1, false),
            ("rsp", 152, 8, false),
            ("r8", 72, 8, false),
            ("r9d", 64, 4, false),
            ("r15w", 0, 2, false),
            ("r14b", 8, 1, false),
        ] {
            assert_eq!(named(name), Some(Register { offset, bytes, high }), "{name}");
        }
        for name in ["", "r", "rip", "r16", "r1", "r8db", "r8q", "xmm0", "sih", "st(0)", "cs"] {
            assert_eq!(named(name), None, "{name}");
        }
    }
}
