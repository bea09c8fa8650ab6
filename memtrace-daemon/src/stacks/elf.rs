//! What the headers of an ELF file say, read with a bound on every single read and without
//! mapping the file: its owner may cut it short meanwhile.

use std::fs::File;
use std::io::{BufReader, Seek};
use std::ops::Range;
use std::sync::Arc;

use object::read::{Object, ObjectSection, ReadCache, ReadRef, SectionKind};

/// Largest single read, bytes: section headers and notes are far smaller.
const MAX_READ: u64 = 4 << 20;
/// Most sections looked at.
const MAX_SECTIONS: usize = 8_192;
/// Most bytes of symbol tables that are indexed: 24 bytes a symbol, eight more a symbol here.
const MAX_SYMBOLS: u64 = 384 << 20;
/// Most bytes of debug information that are read; beyond, names come from symbols alone.
const MAX_DEBUG: u64 = 1 << 30;

/// What the headers say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElfFacts {
    /// Build id, hex.
    pub build_id: Option<Arc<str>>,
    /// Whether it has a full symbol table, or only the symbols it exports.
    pub full_symbols: bool,
    /// Bytes of debug information.
    pub debug_bytes: u64,
    /// Whether that is within limits; else names come from symbols alone.
    pub debug: bool,
    /// Why nothing is looked up in it, if nothing is.
    pub refused: Option<&'static str>,
}

/// Reads them.
///
/// # Errors
/// A few words, where it is no ELF file that can be read.
pub fn facts(file: &File) -> Result<ElfFacts, String> {
    let mut reader = BufReader::new(file);
    reader.rewind().map_err(|error| format!("it cannot be read: {error}"))?;
    let cache = ReadCache::new(reader);
    let elf = object::File::parse(Bounded(&cache))
        .map_err(|error| format!("not an ELF file that can be read: {error}"))?;
    let build_id = elf.build_id().ok().flatten().filter(|id| !id.is_empty() && id.len() <= 64);
    let mut facts = ElfFacts { build_id: build_id.map(|id| hex(id).into()), ..ElfFacts::default() };
    let mut symbols = 0_u64;
    for section in elf.sections().take(MAX_SECTIONS) {
        let bytes = section.file_range().map_or(0, |(_, size)| size);
        match section.kind() {
            SectionKind::Metadata if section.name() == Ok(".symtab") => {
                facts.full_symbols = true;
                symbols = symbols.saturating_add(bytes);
            }
            SectionKind::Metadata if section.name() == Ok(".dynsym") => {
                symbols = symbols.saturating_add(bytes);
            }
            _ if section.name().is_ok_and(|name| name.starts_with(".debug_")) => {
                facts.debug_bytes = facts.debug_bytes.saturating_add(bytes);
            }
            _ => {}
        }
    }
    facts.debug = facts.debug_bytes <= MAX_DEBUG;
    if symbols > MAX_SYMBOLS {
        facts.refused = Some("its symbol tables are beyond the limit");
    }
    Ok(facts)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Refuses large reads, whatever the headers ask for.
#[derive(Clone, Copy)]
struct Bounded<'a>(&'a ReadCache<BufReader<&'a File>>);

impl<'a> ReadRef<'a> for Bounded<'a> {
    fn len(self) -> Result<u64, ()> {
        self.0.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        if size > MAX_READ {
            return Err(());
        }
        self.0.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let end = range.end.min(range.start.saturating_add(MAX_READ));
        self.0.read_bytes_at_until(range.start..end, delimiter)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn our_own_executable_has_symbols_and_a_build_id() {
        let facts = facts(&File::open("/proc/self/exe").unwrap()).unwrap();
        assert_eq!(facts.build_id.unwrap().len(), 40);
        assert!(facts.full_symbols && facts.debug);
        assert_eq!(facts.refused, None);
    }

    #[test]
    fn what_is_no_elf_file_says_so() {
        let error = facts(&File::open("/proc/self/cmdline").unwrap()).unwrap_err();
        assert!(error.contains("not an ELF file"), "{error}");
    }

    #[test]
    fn a_note_as_large_as_the_file_claims_is_not_read() {
        let path = std::env::temp_dir().join(format!("memtrace-elf-{}", std::process::id()));
        let mut file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // A 64-bit x86 header with one program header: a note of 8 GiB in a sparse file.
        let mut header = vec![0_u8; 64 + 56];
        header[..8].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]);
        header[16..20].copy_from_slice(&[3, 0, 62, 0]);
        header[20] = 1;
        header[32] = 64;
        header[52..58].copy_from_slice(&[64, 0, 56, 0, 1, 0]);
        header[64] = 4;
        header[64 + 32..64 + 40].copy_from_slice(&(8_u64 << 30).to_le_bytes());
        file.write_all(&header).unwrap();
        file.set_len(9 << 30).unwrap();
        assert_eq!(facts(&file).unwrap().build_id, None);
    }
}
