//! Symbols of a file by reading its table from one end to the other, for several addresses at
//! once: for tables that are too large for an index in memory. Takes no memory of its own worth
//! speaking of, and about 0.1 s for 100 MB.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::demangle::MAX_MANGLED;
use super::elf::SymbolTable;

/// Bytes of a symbol.
const SYMBOL: usize = 24;
/// Bytes read at a time.
const CHUNK: usize = SYMBOL * 10_240;

/// A symbol that holds an address.
#[derive(Clone, Copy, Debug)]
struct Best {
    start: u64,
    name: u32,
}

/// The names, as the file has them, of the functions that hold the addresses.
#[must_use]
pub fn names(file: &File, table: &SymbolTable, addresses: &[u64]) -> Vec<Option<String>> {
    let mut order: Vec<usize> = (0..addresses.len()).collect();
    let address = |index: &usize| addresses.get(*index).copied().unwrap_or_default();
    order.sort_by_key(address);
    let mut best: Vec<Option<Best>> = vec![None; addresses.len()];
    let mut buffer = vec![0_u8; CHUNK];
    let mut at = table.symbols.start;
    while at < table.symbols.end {
        let left = usize::try_from(table.symbols.end - at).unwrap_or(CHUNK).min(CHUNK);
        let Some(part) = buffer.get_mut(..left) else { break };
        if file.read_exact_at(part, at).is_err() {
            break;
        }
        for (start, end, name) in part.chunks_exact(SYMBOL).filter_map(function) {
            let first = order.partition_point(|index| address(index) < start);
            for index in order.iter().skip(first).take_while(|index| address(index) < end) {
                if let Some(best) = best.get_mut(*index)
                    && best.is_none_or(|best| best.start < start)
                {
                    *best = Some(Best { start, name });
                }
            }
        }
        at += left as u64;
    }
    best.into_iter().map(|best| name(file, table, best?.name)).collect()
}

/// First address, first address behind, and name of a symbol that is a function.
fn function(symbol: &[u8]) -> Option<(u64, u64, u32)> {
    let word = |at: usize| symbol.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let name = u32::from_le_bytes(symbol.get(..4)?.try_into().ok()?);
    let (kind, section) = (symbol.get(4)? & 0xf, symbol.get(6..8)?);
    let (start, size) = (word(8)?, word(16)?);
    // No kind, a function, or a function chosen at start; and defined here.
    let is = matches!(kind, 0 | 2 | 10) && section != [0, 0] && size != 0 && name != 0;
    is.then_some((start, start.checked_add(size)?, name))
}

fn name(file: &File, table: &SymbolTable, name: u32) -> Option<String> {
    let at = table.strings.start.checked_add(u64::from(name))?;
    let room = usize::try_from(table.strings.end.checked_sub(at)?).unwrap_or(usize::MAX);
    let mut bytes = vec![0_u8; room.min(MAX_MANGLED + 1)];
    // The last name of a file may be shorter than what is asked for.
    let read = file.read_at(&mut bytes, at).ok()?;
    let name = bytes.get(..read)?.split(|byte| *byte == 0).next()?;
    Some(crate::host::text::text(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::elf;

    #[test]
    fn our_own_functions_are_found_in_one_pass() {
        let file = File::open("/proc/self/exe").unwrap();
        let facts = elf::facts(&file).unwrap();
        let rows = crate::stacks::maps::read(File::open("/proc/self/maps").unwrap()).unwrap();
        let own = |function: u64| {
            let row = rows.iter().find(|row| row.holds(function)).unwrap();
            facts.address(row.file_offset(function)).unwrap() + 1
        };
        let here = own(our_own_functions_are_found_in_one_pass as *const () as u64);
        let there = own(function as *const () as u64);
        let found = names(&file, &facts.tables[0], &[there, 3, here]);
        let is = |at: usize, end: &str| {
            let name = found[at].as_deref().unwrap();
            assert!(crate::stacks::demangle::demangled(name).ends_with(end), "{name}");
        };
        is(0, "scan::function");
        is(2, "our_own_functions_are_found_in_one_pass");
        assert_eq!(found[1], None);
    }

    #[test]
    fn a_table_that_is_not_there_names_nothing() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4_096).unwrap();
        let table = SymbolTable { symbols: 0..1 << 40, strings: 5..9 };
        assert_eq!(names(&file, &table, &[1, 2]), [None, None]);
    }
}
