//! Reads how a note describes the arguments of a static probe: `N@OPERAND` each, N the bytes,
//! negative where the value is signed, and the operand as the assembler writes it.

use memtrace_common::{UsdtArgument, UsdtPlace};
use thiserror::Error;

use super::registers::{self, Register};

/// Arguments of a probe; the macros that make them allow 12.
const MAX_ARGUMENTS: usize = 12;

/// Why an argument cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("its argument `{}` {why}", .text.escape_debug())]
pub struct ArgumentError {
    /// The argument.
    text: String,
    /// What is wrong with it.
    why: &'static str,
}

/// All arguments of a note; of each that cannot be read, why. Those beyond the twelfth are left
/// out.
#[must_use]
pub fn arguments(text: &str) -> Vec<Result<UsdtArgument, ArgumentError>> {
    let one =
        |text: &str| argument(text).map_err(|why| ArgumentError { text: shortened(text), why });
    split(text).into_iter().take(MAX_ARGUMENTS).map(one).collect()
}

/// Operands are parted by spaces; inside of parentheses a space is only a space.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth) = (Vec::new(), 0_u32);
    let mut begin = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b' ' | b'\t' if depth == 0 => {
                parts.extend(text.get(begin..at).filter(|part| !part.is_empty()));
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.extend(text.get(begin..).filter(|part| !part.is_empty()));
    parts
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

fn argument(text: &str) -> Result<UsdtArgument, &'static str> {
    let (width, operand) = text.split_once('@').ok_or("has no width")?;
    let width: i8 = width.parse().map_err(|_| "has a width that is no number")?;
    let bytes = width.unsigned_abs();
    if !matches!(bytes, 1 | 2 | 4 | 8) {
        return Err("is not 1, 2, 4 or 8 bytes wide");
    }
    let flags = if width < 0 { UsdtArgument::SIGNED } else { 0 };
    let (none, index) = (UsdtArgument::NONE, UsdtArgument::NONE);
    let plain = UsdtArgument { number: 0, base: none, index, scale: 0, place: 0, bytes, flags };
    if let Some(number) = operand.strip_prefix('$') {
        let number = self::number(number).ok_or("is a constant that is no number")?;
        return Ok(UsdtArgument { number, place: UsdtPlace::Constant as u8, ..plain });
    }
    if let Some(name) = operand.strip_prefix('%') {
        if name.contains(':') {
            return Err("lies in a segment, whose address nobody tells");
        }
        let Register { offset, bytes: held, high } =
            registers::named(name).ok_or("is in a register that is not known")?;
        if held < bytes {
            return Err("is wider than its register");
        }
        let flags = if high { flags | UsdtArgument::HIGH } else { flags };
        return Ok(UsdtArgument { base: offset, place: UsdtPlace::Register as u8, flags, ..plain });
    }
    let Some((number, rest)) = operand.split_once('(') else {
        return Err("is named by a symbol or by an address, which a note cannot tell");
    };
    let inside = rest.strip_suffix(')').ok_or("has no closing parenthesis")?;
    if inside.trim() == "%rip" {
        return Err("is named by a symbol, which a note cannot tell");
    }
    let number = match number.trim() {
        "" => 0,
        number => self::number(number).ok_or("is named by a symbol, which a note cannot tell")?,
    };
    let mut parts = inside.split(',').map(str::trim);
    let (base, index, scale) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    if parts.next().is_some() {
        return Err("has an address of more than three parts");
    }
    let base = if base.is_empty() { none } else { whole(base)? };
    let index = match index {
        None | Some("") => none,
        Some(name) => whole(name)?,
    };
    let scale = match scale {
        None | Some("" | "1") => 0,
        Some("2") => 1,
        Some("4") => 2,
        Some("8") => 3,
        Some(_) => return Err("has a scale that is not 1, 2, 4 or 8"),
    };
    if base == none && index == none {
        return Err("has an address without a register");
    }
    Ok(UsdtArgument { number, base, index, scale, place: UsdtPlace::Memory as u8, ..plain })
}

/// A whole register that an address is made of.
fn whole(name: &str) -> Result<u16, &'static str> {
    let name = name.strip_prefix('%').ok_or("has an address that is made of no register")?;
    let register = registers::named(name).ok_or("has a register that is not known")?;
    if register.bytes == 8 { Ok(register.offset) } else { Err("has an address of 32 bits") }
}

/// A number as assemblers write it: decimal, hexadecimal with `0x`, octal with `0`; and sums of
/// such, as of `16+8(%rax)`. A constant may be as large as an unsigned word.
fn number(text: &str) -> Option<i64> {
    let mut sum = 0_i64;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (negative, digits) = match rest.as_bytes().first()? {
            b'-' => (true, rest.get(1..)?),
            b'+' => (false, rest.get(1..)?),
            _ => (false, rest),
        };
        let end = digits.find(['+', '-']).unwrap_or(digits.len());
        let (term, after) = digits.split_at_checked(end)?;
        let term = unsigned(term)?.cast_signed();
        sum = if negative { sum.wrapping_sub(term) } else { sum.wrapping_add(term) };
        rest = after;
    }
    Some(sum)
}

fn unsigned(text: &str) -> Option<u64> {
    // `from_str_radix` takes a sign.
    if !text.as_bytes().first()?.is_ascii_digit() {
        return None;
    }
    match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(hex), _) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(hex, 16).ok()
        }
        (None, Some(octal)) if !octal.is_empty() => u64::from_str_radix(octal, 8).ok(),
        (None, _) => text.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: u16 = UsdtArgument::NONE;

    fn memory(number: i64, base: u16, index: u16, scale: u8) -> UsdtArgument {
        let place = UsdtPlace::Memory as u8;
        UsdtArgument { number, base, index, scale, place, bytes: 8, flags: 0 }
    }

    #[test]
    fn the_real_librarys_arguments_are_read() {
        let read = arguments("-8@%rax -1@%dl -8@%r14 -8@-56(%rbp)");
        let read: Vec<UsdtArgument> = read.into_iter().map(Result::unwrap).collect();
        let signed = UsdtArgument::SIGNED;
        let register = |base, bytes| UsdtArgument {
            number: 0,
            base,
            index: NONE,
            scale: 0,
            place: UsdtPlace::Register as u8,
            bytes,
            flags: signed,
        };
        assert_eq!(read[..3], [register(80, 8), register(96, 1), register(8, 8)]);
        assert_eq!(read[3], UsdtArgument { flags: signed, ..memory(-56, 32, NONE, 0) });
    }

    #[test]
    fn every_form_of_an_address_is_read() {
        for (text, expected) in [
            ("8@(%rdi)", memory(0, 112, NONE, 0)),
            ("8@0x10(%rsp)", memory(16, 152, NONE, 0)),
            ("8@16+8(%rax)", memory(24, 80, NONE, 0)),
            ("8@-8-8(%rax)", memory(-16, 80, NONE, 0)),
            ("8@8(%rax,%r9)", memory(8, 80, 64, 0)),
            ("8@-4(%rbx, %rcx, 4)", memory(-4, 40, 88, 2)),
            ("8@010(,%r15,8)", memory(8, NONE, 0, 3)),
            ("8@(%rax,%rax,1)", memory(0, 80, 80, 0)),
        ] {
            assert_eq!(arguments(text), [Ok(expected)], "{text}");
        }
        let two = arguments("  8@-4(%rbx, %rcx, 4)\t4@%esi ");
        assert_eq!(two.len(), 2, "a space inside of parentheses parts nothing");
    }

    #[test]
    fn constants_are_numbers() {
        for (text, number) in [
            ("4@$0", 0),
            ("-4@$-1", -1),
            ("8@$0xffffffffffffffff", -1),
            ("8@$18446744073709551615", -1),
            ("-8@$-9223372036854775808", i64::MIN),
            ("2@$017", 15),
        ] {
            let read = arguments(text)[0].clone().unwrap();
            assert_eq!((read.number, read.place), (number, UsdtPlace::Constant as u8), "{text}");
        }
    }

    #[test]
    fn high_bytes_are_bits_8_to_15() {
        let read = arguments("1@%ah")[0].clone().unwrap();
        assert_eq!((read.base, read.bytes, read.flags), (80, 1, UsdtArgument::HIGH));
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        for (text, why) in [
            ("%rax", "has no width"),
            ("x@%rax", "no number"),
            ("3@%rax", "1, 2, 4 or 8"),
            ("-128@%rax", "1, 2, 4 or 8"),
            ("8f@%xmm0", "no number"),
            ("8@%xmm0", "not known"),
            ("8@%eax", "wider than its register"),
            ("8@counter", "a symbol"),
            ("8@counter(%rip)", "a symbol"),
            ("8@counter+4(%rax)", "a symbol"),
            ("8@%fs:-8", "a segment"),
            ("8@$counter", "no number"),
            ("8@$", "no number"),
            ("8@$0x", "no number"),
            ("8@$+-1", "no number"),
            ("8@8(%rax", "no closing"),
            ("8@8()", "without a register"),
            ("8@8(%rax,%rbx,3)", "a scale"),
            ("8@8(%rax,%rbx,1,1)", "more than three"),
            ("8@8(rax)", "no register"),
            ("8@8(%eax)", "32 bits"),
            ("8@8(%xmm1)", "not known"),
        ] {
            let error = arguments(text)[0].clone().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("its argument `"), "{text}: {error}");
            assert_eq!(error.lines().count(), 1);
        }
        let long = arguments(&"é".repeat(5_000))[0].clone().unwrap_err().to_string();
        assert!(long.len() < 256, "{long}");
        assert_eq!(arguments(&"4@$1 ".repeat(100)).len(), MAX_ARGUMENTS);
        assert!(arguments("").is_empty() && arguments("  ").is_empty());
    }
}
