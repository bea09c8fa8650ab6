//! Names of functions as binutils' addr2line has them, and when two spellings are one name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::notes::Note;

/// Names of the functions at places in files: innermost first, the inlined ones before the one
/// that they are in.
#[derive(Debug, Default)]
pub struct Names {
    known: BTreeMap<(PathBuf, u64), Vec<String>>,
}

impl Names {
    /// Looks all frames of some notes up that are in files below this directory. `instead` is
    /// the file to look in for each: a twin that has its names.
    ///
    /// # Errors
    ///
    /// When addr2line is missing or fails.
    pub fn of(
        notes: &[Note],
        below: &Path,
        instead: impl Fn(&Path) -> PathBuf,
    ) -> anyhow::Result<Self> {
        let mut asked: BTreeMap<&Path, BTreeSet<u64>> = BTreeMap::new();
        for note in notes {
            for (index, place) in note.frames.iter().enumerate() {
                if place.module.starts_with(below) {
                    asked.entry(&place.module).or_default().insert(code_address(note, index));
                }
            }
        }
        let mut names = Self::default();
        for (module, addresses) in asked {
            let found = addr2line(&instead(module), addresses)?;
            let keyed = found.into_iter().map(|(at, all)| ((module.to_path_buf(), at), all));
            names.known.extend(keyed);
        }
        Ok(names)
    }

    /// The functions at a frame, where it was looked up.
    #[must_use]
    pub fn at(&self, note: &Note, index: usize) -> Option<&[String]> {
        let module = note.frames.get(index)?.module.clone();
        self.known.get(&(module, code_address(note, index))).map(Vec::as_slice)
    }
}

/// The address of a frame's code: the call is before the address that it returns to.
fn code_address(note: &Note, index: usize) -> u64 {
    let address = note.frames.get(index).map_or(0, |place| place.address);
    if note.interrupted(index) { address } else { address.saturating_sub(1) }
}

fn addr2line(file: &Path, addresses: BTreeSet<u64>) -> anyhow::Result<BTreeMap<u64, Vec<String>>> {
    let mut command = Command::new("addr2line");
    command.args(["--functions", "--inlines", "--demangle", "--addresses", "--exe"]).arg(file);
    command.args(addresses.iter().map(|address| format!("{address:#x}")));
    let output = command.output().context("running addr2line: run `cargo xtask setup`")?;
    ensure!(output.status.success(), "addr2line: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).context("addr2line printed no text")?;
    // A line with the address, then a line with a function and one with its place for each.
    let mut found: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let mut at = None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(digits) = line.strip_prefix("0x") {
            at = Some(u64::from_str_radix(digits, 16).context("an address of addr2line")?);
            continue;
        }
        let place = lines.next().context("a function without its place")?;
        // Without debug information, and so without a line, it is the nearest symbol, whatever
        // that is.
        let digit = place.rsplit(':').next().and_then(|line| line.chars().next());
        if digit.is_some_and(|digit| ('1'..='9').contains(&digit)) || line == "_start" {
            let at = at.context("a function without an address")?;
            found.entry(at).or_default().push(line.to_owned());
        }
    }
    Ok(found)
}

/// Whether two spellings name one function. Template arguments, parameters, compilers' suffixes
/// and the numbers of closures are spelled in too many ways; and debug information that is cut
/// to lines, as that of Rust's library, has the last part of a path alone.
#[must_use]
pub fn same(one: &str, other: &str) -> bool {
    let (one, other) = (plain(one), plain(other));
    let ends = |long: &str, short: &str| {
        !short.is_empty() && long.strip_suffix(short).is_some_and(|rest| rest.ends_with("::"))
    };
    one == other || ends(&one, &other) || ends(&other, &one)
}

/// The path of a function alone.
fn plain(name: &str) -> String {
    let name = name.replace("operator()", "operator_call").replace("{{closure}}", "{closure}");
    let mut out = String::new();
    let mut depth = 0_u32;
    for character in name.chars() {
        match character {
            '<' | '(' | '[' => depth += 1,
            // Of an arrow, or one too many.
            '>' | ')' | ']' => depth = depth.saturating_sub(1),
            _ if depth == 0 => out.push(character),
            _ => {}
        }
    }
    let out = out.trim_end_matches(" const");
    let out = out.split(".part.").next().unwrap_or_default();
    let out = out.split(".isra.").next().unwrap_or_default();
    let out = out.split(".constprop.").next().unwrap_or_default();
    let out = out.trim_end_matches(".cold").replace("{closure#0}", "{closure}");
    // `<Type as Trait>::function` leaves `::function`; a return type stands before a space.
    let segments = out.split("::").filter(|part| !part.is_empty() && !is_hash(part));
    let path = segments.collect::<Vec<_>>().join("::");
    path.rsplit(' ').next().unwrap_or_default().to_owned()
}

/// The hash at the end of a Rust symbol.
fn is_hash(part: &str) -> bool {
    part.len() == 17 && part.starts_with('h') && part.bytes().skip(1).all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn spellings_of_one_name_are_the_same_and_other_names_are_not() {
        assert!(same("shapes::Holder<long, 3>::take()", "shapes::Holder<long,3>::take()"));
        assert!(same("stacks::plain::h0123456789abcdef", "stacks::plain"));
        assert!(same("<stacks::Guard as core::ops::Drop>::drop", "stacks::{impl#1}::drop"));
        assert!(same("core::ops::function::FnOnce::call_once", "call_once<fn(), ()>"));
        assert!(same("compare.part.0", "compare"));
        assert!(!same("plain_inner", "plain"));
        assert!(!same("stacks::a::take", "stacks::b::take"));
        assert!(!same("main", ""));
    }
}
