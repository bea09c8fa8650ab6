//! Whether debug information is such that a reader neither runs out of stack nor fills memory:
//! blazesym follows functions inlined in one another by calling itself, and keeps something of
//! every unit. Reads a unit at a time, and holds no more than that.

use std::fs::File;
use std::os::unix::fs::FileExt;

use gimli::{DebugAbbrev, DebugInfo, LittleEndian};

use super::elf::ElfFacts;

/// Most units of a file: some 20 MB of memory for their headers.
const MAX_UNITS: u32 = 20_000;
/// Largest unit of a file that anybody may have written, bytes.
const MAX_UNIT: u64 = 16 << 20;
/// Most bytes of such a file's units: they are read at some 200 MB/s.
const MAX_INFO: u64 = 128 << 20;
/// Deepest nesting in such a file. Compilers were seen to reach 60; a reader needs some hundred
/// bytes of stack a level, and its stack has 2 MB.
const MAX_DEPTH: isize = 512;

/// Whether a file's debug information may be read; where only root can have written the file,
/// only its amount is looked at.
#[must_use]
pub fn passes(file: &File, facts: &ElfFacts, trusted: bool) -> bool {
    // What is compressed is small, and read only where it is trusted.
    facts.compressed && trusted || units(file, facts, trusted).is_some()
}

/// `None` where something is beyond a limit or cannot be read.
fn units(file: &File, facts: &ElfFacts, trusted: bool) -> Option<()> {
    let mut abbreviations = Vec::new();
    if !trusted {
        let size = facts.info.end.checked_sub(facts.info.start)?;
        if size > MAX_INFO {
            return None;
        }
        let range = &facts.abbreviations;
        abbreviations.resize(usize::try_from(range.end.checked_sub(range.start)?).ok()?, 0);
        file.read_exact_at(&mut abbreviations, range.start).ok()?;
    }
    let mut buffer = Vec::new();
    let (mut at, mut count) = (facts.info.start, 0);
    while at < facts.info.end {
        let size = size_of_unit(file, at)?;
        let end = at.checked_add(size).filter(|end| *end <= facts.info.end)?;
        count += 1;
        if count > MAX_UNITS {
            return None;
        }
        if !trusted {
            if size > MAX_UNIT {
                return None;
            }
            buffer.resize(usize::try_from(size).ok()?, 0);
            file.read_exact_at(&mut buffer, at).ok()?;
            is_shallow(&buffer, &abbreviations)?;
        }
        at = end;
    }
    Some(())
}

/// Bytes of a unit with the field that says so.
fn size_of_unit(file: &File, at: u64) -> Option<u64> {
    let mut head = [0_u8; 12];
    let read = file.read_at(&mut head, at).ok()?;
    let short = u32::from_le_bytes(*head.get(..read)?.first_chunk()?);
    if short < 0xffff_fff0 {
        return Some(u64::from(short) + 4);
    }
    // 64-bit DWARF.
    let long = u64::from_le_bytes(*head.get(4..read)?.first_chunk()?);
    long.checked_add(12).filter(|_| short == u32::MAX)
}

fn is_shallow(unit: &[u8], abbreviations: &[u8]) -> Option<()> {
    let header = DebugInfo::new(unit, LittleEndian).units().next().ok()??;
    let abbreviations = DebugAbbrev::new(abbreviations, LittleEndian);
    let abbreviations = header.abbreviations(&abbreviations).ok()?;
    let mut entries = header.entries_raw(&abbreviations, None).ok()?;
    while !entries.is_empty() {
        if entries.next_depth() > MAX_DEPTH {
            return None;
        }
        // A reader stops at what it cannot read, too.
        let Ok(abbreviation) = entries.read_abbreviation() else { return Some(()) };
        if let Some(abbreviation) = abbreviation
            && entries.skip_attributes(abbreviation.attributes()).is_err()
        {
            return Some(());
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A unit, and in it functions inlined in one another.
    fn nested(depth: usize) -> (File, ElfFacts) {
        // A unit and an inlined function, both with children and without attributes.
        let abbreviations = [1_u8, 0x11, 1, 0, 0, 2, 0x1d, 1, 0, 0, 0];
        let mut info = vec![0_u8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 1];
        info.extend(std::iter::repeat_n(2, depth));
        info.extend(std::iter::repeat_n(0, depth + 1));
        let length = u32::try_from(info.len() - 4).unwrap();
        info[..4].copy_from_slice(&length.to_le_bytes());
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&info, 100).unwrap();
        file.write_all_at(&abbreviations, 0).unwrap();
        let facts = ElfFacts {
            info: 100..100 + info.len() as u64,
            abbreviations: 0..abbreviations.len() as u64,
            ..ElfFacts::default()
        };
        (file, facts)
    }

    #[test]
    fn what_is_nested_too_deep_is_not_read() {
        for (depth, passing) in [(3, true), (500, true), (600, false), (1 << 20, false)] {
            let (file, facts) = nested(depth);
            assert_eq!(passes(&file, &facts, false), passing, "{depth}");
            assert!(passes(&file, &facts, true));
        }
    }

    #[test]
    fn too_many_units_and_units_beyond_the_end_are_not_read() {
        let (file, mut facts) = nested(1);
        facts.info.end += 7;
        assert!(!passes(&file, &facts, true), "what is behind is no unit");
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        // Empty units, of four bytes each.
        facts.info = 0..4 * u64::from(MAX_UNITS);
        assert!(passes(&file, &facts, true));
        facts.info.end += 4;
        assert!(!passes(&file, &facts, true));
    }

    #[test]
    fn our_own_debug_information_passes() {
        let file = File::open("/proc/self/exe").unwrap();
        let facts = crate::stacks::elf::facts(&file).unwrap();
        assert!(facts.debug && passes(&file, &facts, true));
    }
}
