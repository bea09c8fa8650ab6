//! Names of Rust (v0 and legacy) and C++ as people write them. A name of a few hundred bytes
//! can stand for gigabytes: what comes out is bounded while it is written. Reads nothing.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, Symbol};

use crate::host::text::limited;

/// Longest name as a file has it that is looked into, bytes.
pub const MAX_MANGLED: usize = 8 << 10;
/// Longest name as a person reads it, bytes: C++ templates can fill pages.
const MAX_NAME: usize = 2 << 10;

/// The name that people know, or the given one where it is in no form known; both cut.
#[must_use]
pub fn demangled(name: &str) -> String {
    // A second name that glibc gives its functions for itself.
    let name = name.strip_prefix("__GI_").unwrap_or(name);
    if name.len() <= MAX_MANGLED {
        let mut out = Bounded(String::new());
        let done = match rustc_demangle::try_demangle(name) {
            Ok(rust) => Some(write!(out, "{rust:#}")),
            Err(_) => cpp(name, &mut out),
        };
        // What has filled the room is a name too.
        if done.is_some_and(|done| done.is_ok() || out.0.len() >= MAX_NAME) && !out.0.is_empty() {
            return limited(out.0, MAX_NAME);
        }
    }
    limited(name.get(..name.floor_char_boundary(MAX_NAME + 4)).unwrap_or(name).into(), MAX_NAME)
}

fn cpp(name: &str, out: &mut Bounded) -> Option<fmt::Result> {
    // Everything else would be taken for a type.
    let symbol = Symbol::new(name.as_bytes()).ok().filter(|_| name.starts_with("_"))?;
    Some(symbol.structured_demangle(out, &DemangleOptions::default()))
}

/// Text that fails when it is full.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = (MAX_NAME + 1).saturating_sub(self.0.len());
        let part = text.get(..text.floor_char_boundary(room)).unwrap_or_default();
        self.0.push_str(part);
        if part.len() < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rust_and_cpp_are_those_that_people_know() {
        for (name, known) in [
            ("_ZN4core3ptr13drop_in_place17h0123456789abcdefE", "core::ptr::drop_in_place"),
            ("_RNvCs15kBYyAo9fc_7mycrate3foo", "mycrate::foo"),
            ("_ZN3foo3barEiPKc", "foo::bar(int, char const*)"),
            ("_Znwm", "operator new(unsigned long)"),
            ("malloc", "malloc"),
            ("__GI___libc_malloc", "__libc_malloc"),
            ("i", "i"),
            ("main", "main"),
            ("_start", "_start"),
            ("gr\u{fc}n", "gr\u{fc}n"),
        ] {
            assert_eq!(demangled(name), known);
        }
    }

    #[test]
    fn a_name_that_stands_for_gigabytes_is_cut() {
        // Each pair doubles what the one before stands for.
        let mut bomb = "_Z1fSt4pairIiiE".to_owned();
        for _ in 0..40 {
            bomb = format!("_Z1fSt4pairI{}S0_E", &bomb[4..]);
        }
        let types: String = (0..60)
            .map(|n: u32| {
                let digit = char::from_digit(n % 36, 36).unwrap().to_ascii_uppercase();
                if n < 36 { format!("St4pairIS{digit}_S{digit}_E") } else { String::new() }
            })
            .collect();
        for name in [bomb, format!("_Z1f1a{types}"), format!("_Z1f{}", "P".repeat(8_000))] {
            assert!(demangled(&name).len() <= MAX_NAME + '…'.len_utf8());
        }
        let long = "\u{fc}".repeat(MAX_NAME);
        let cut = demangled(&long);
        assert!(cut.len() <= MAX_NAME + '…'.len_utf8() && cut.ends_with("\u{fc}…"));
    }
}
