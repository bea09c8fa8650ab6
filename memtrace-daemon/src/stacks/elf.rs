//! What the headers of an ELF file say, read with a bound on every single read and without
//! mapping the file: its owner may cut it short meanwhile.

use std::fs::File;
use std::io::{BufReader, Seek};
use std::ops::Range;
use std::sync::Arc;

use object::read::elf::{
    CompressionHeader as _, FileHeader as _, NoteIterator, ProgramHeader as _, SectionHeader as _,
    SectionTable,
};
use object::read::{ReadCache, ReadRef};
use object::{LittleEndian, elf};

/// Largest single read, bytes: section headers and notes are far smaller.
const MAX_READ: u64 = 4 << 20;
/// Longest name of a section, bytes: readers look for its end.
const MAX_NAME: u64 = 512;
/// Most sections. Programs have some 40; whoever looks one up reads all names.
const MAX_SECTIONS: usize = 8_192;
/// Most parts of a file that are loaded, of those that addresses are looked up in.
const MAX_LOADS: usize = 256;
/// Most bytes of one symbol table: 16 million symbols.
const MAX_SYMBOLS: u64 = 384 << 20;
/// Most bytes of debug information that are read; beyond, names come from symbols alone.
const MAX_DEBUG: u64 = 1 << 30;
/// Most bytes of abbreviations, which are held in memory at some four times their size.
const MAX_ABBREVIATIONS: u64 = 6 << 20;
/// Most bytes of address ranges of units, which are held at twice their size.
const MAX_ARANGES: u64 = 8 << 20;
/// Most bytes that compressed debug information may take when it is not: it is memory of ours.
const MAX_INFLATED: u64 = 16 << 20;

/// What the headers say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElfFacts {
    /// Build id, hex.
    pub build_id: Option<Arc<str>>,
    /// Whether it has a full symbol table, or only the symbols it exports.
    pub full_symbols: bool,
    /// The full symbol table and the exported symbols.
    pub tables: Vec<SymbolTable>,
    /// Whether it has debug information that is within limits; else names come from symbols
    /// alone.
    pub debug: bool,
    /// Where its units are in the file, bytes.
    pub info: Range<u64>,
    /// Where the abbreviations that these use are, bytes.
    pub abbreviations: Range<u64>,
    /// Whether some of that is compressed.
    pub compressed: bool,
    /// Whether it has symbols in a compressed file of its own (`.gnu_debugdata`).
    pub mini: bool,
    /// Its separate debug file's name and checksum.
    pub link: Option<(Vec<u8>, u32)>,
    /// The path of a file that its debug information refers to (as dwz writes it).
    pub alternate: Option<Vec<u8>>,
    /// What of the file is loaded where.
    pub loads: Vec<Load>,
    /// Why nothing is looked up in it, if nothing is.
    pub refused: Option<&'static str>,
}

/// A part of the file that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Where in the file, bytes.
    pub offset: u64,
    /// How much, bytes.
    pub size: u64,
    /// At which address of the file's own.
    pub address: u64,
}

/// Where a table of symbols and its strings are in the file, bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolTable {
    /// The symbols, of 24 bytes each.
    pub symbols: Range<u64>,
    /// Their names.
    pub strings: Range<u64>,
}

impl ElfFacts {
    /// The file's own address of an offset in it; `None` where nothing is loaded from there.
    #[must_use]
    pub fn address(&self, offset: u64) -> Option<u64> {
        self.loads.iter().find_map(|load| {
            let inside = offset.checked_sub(load.offset).filter(|inside| *inside < load.size)?;
            load.address.checked_add(inside)
        })
    }

    /// Bytes of all its symbol tables.
    #[must_use]
    pub fn symbol_bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.symbols.end - table.symbols.start).sum()
    }
}

type Header = elf::FileHeader64<LittleEndian>;

/// Reads them.
///
/// # Errors
/// A few words, where it is no ELF file that can be read.
pub fn facts(file: &File) -> Result<ElfFacts, String> {
    let mut reader = BufReader::new(file);
    reader.rewind().map_err(|error| format!("it cannot be read: {error}"))?;
    let cache = ReadCache::new(reader);
    let data = Bounded(&cache);
    read(data).map_err(|error| format!("not an ELF file that can be read: {error}"))
}

/// Not by `object::File`, which reads whole symbol tables.
fn read(data: Bounded<'_>) -> object::Result<ElfFacts> {
    let header = Header::parse(data)?;
    let mut facts = ElfFacts::default();
    // A kernel's core and a file that is still to be linked are never executed, and reading
    // the latter takes memory without a bound.
    if !matches!(header.e_type(LittleEndian), elf::ET_EXEC | elf::ET_DYN) {
        facts.refused = Some("it is neither a program nor a library");
        return Ok(facts);
    }
    for program in header.program_headers(LittleEndian, data)? {
        match program.p_type(LittleEndian) {
            elf::PT_LOAD if facts.loads.len() < MAX_LOADS => facts.loads.push(Load {
                offset: program.p_offset(LittleEndian),
                size: program.p_filesz(LittleEndian),
                address: program.p_vaddr(LittleEndian),
            }),
            elf::PT_NOTE if facts.build_id.is_none() => {
                // Notes that cannot be read have no build id.
                if let Ok(Some(notes)) = program.notes(LittleEndian, data) {
                    facts.build_id = build_id(notes);
                }
            }
            _ => {}
        }
    }
    let sections = header.sections(LittleEndian, data)?;
    facts.refused = take_sections(&sections, data, &mut facts).err();
    Ok(facts)
}

fn build_id(notes: NoteIterator<'_, Header>) -> Option<Arc<str>> {
    // Bounded by the size of a read.
    let mut notes = notes.map_while(Result::ok);
    let note = notes.find(|note| {
        note.name() == elf::ELF_NOTE_GNU && note.n_type(LittleEndian) == elf::NT_GNU_BUILD_ID
    })?;
    let id = Some(note.desc()).filter(|id| !id.is_empty() && id.len() <= 64)?;
    Some(hex(id).into())
}

/// Takes in what the section headers say; refuses what a reader would stumble over.
fn take_sections<'a>(
    sections: &SectionTable<'a, Header, Bounded<'a>>,
    data: Bounded<'a>,
    facts: &mut ElfFacts,
) -> Result<(), &'static str> {
    if sections.len() > MAX_SECTIONS {
        return Err("it has more sections than any program");
    }
    let (mut debug, mut inflated) = (0_u64, 0_u64);
    let mut within_limits = true;
    let mut seen = Vec::new();
    let (mut full, mut full_strings) = (None, None);
    let (mut exported, mut exported_strings) = (None, None);
    for section in sections.iter().skip(1) {
        let name = sections
            .section_name(LittleEndian, section)
            .map_err(|_| "a section has no name that can be read")?;
        let read_by_name = name.starts_with(b".debug_")
            || matches!(name, b".symtab" | b".dynsym" | b".strtab" | b".dynstr");
        if read_by_name {
            // Of two sections with one name a reader takes whichever it likes, and what was
            // looked at here would be the other one.
            if seen.contains(&name) {
                return Err("it has two sections of one name");
            }
            seen.push(name);
        }
        let Ok(packed) = section.compression(LittleEndian, data) else {
            return Err("a compressed section cannot be read");
        };
        let packed = packed
            .map(|(header, _, _)| (header.ch_type(LittleEndian), header.ch_size(LittleEndian)));
        let nothing = section.sh_type(LittleEndian) == elf::SHT_NOBITS;
        let size = if nothing { 0 } else { section.sh_size(LittleEndian) };
        let bytes = packed.map_or(size, |(_, bytes): (u32, u64)| bytes);
        let start = section.sh_offset(LittleEndian);
        let range = start.checked_add(size).map(|end| start..end).filter(|range| !range.is_empty());
        match name {
            b".symtab" | b".dynsym" => {
                if packed.is_some() || bytes > MAX_SYMBOLS {
                    return Err("its symbol tables are beyond the limit");
                }
                if name == b".symtab" {
                    facts.full_symbols = range.is_some();
                    full = range;
                } else {
                    exported = range;
                }
            }
            b".strtab" => full_strings = range,
            b".dynstr" => exported_strings = range,
            b".gnu_debugdata" => facts.mini = true,
            b".gnu_debuglink" => facts.link = section.data(LittleEndian, data).ok().and_then(link),
            b".gnu_debugaltlink" => {
                let bytes = section.data(LittleEndian, data).unwrap_or_default();
                facts.alternate = bytes.split(|byte| *byte == 0).next().map(<[u8]>::to_vec);
            }
            _ if name.starts_with(b".debug_") => {
                debug = debug.saturating_add(bytes);
                match name {
                    b".debug_info" => facts.info = range.unwrap_or_default(),
                    b".debug_abbrev" => facts.abbreviations = range.unwrap_or_default(),
                    _ => {}
                }
                within_limits &= match name {
                    b".debug_abbrev" => bytes <= MAX_ABBREVIATIONS,
                    b".debug_aranges" => bytes <= MAX_ARANGES,
                    _ => true,
                };
            }
            _ => {}
        }
        if let Some((format, bytes)) = packed {
            facts.compressed = true;
            inflated = inflated.saturating_add(bytes);
            within_limits &= format == elf::ELFCOMPRESS_ZLIB;
        }
    }
    let table = |symbols: Option<Range<u64>>, strings: Option<Range<u64>>| {
        Some(SymbolTable { symbols: symbols?, strings: strings? })
    };
    let tables = [table(full, full_strings), table(exported, exported_strings)];
    facts.tables = tables.into_iter().flatten().collect();
    let info = !facts.info.is_empty();
    facts.debug = info && within_limits && debug <= MAX_DEBUG && inflated <= MAX_INFLATED;
    Ok(())
}

/// A name, zeros up to a multiple of four bytes, and a checksum.
fn link(data: &[u8]) -> Option<(Vec<u8>, u32)> {
    let end = data.iter().position(|byte| *byte == 0)?;
    let sum = data.get((end + 4) & !3..)?.first_chunk()?;
    Some((data.get(..end)?.to_vec(), u32::from_le_bytes(*sum)))
}

/// Bytes as hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
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
        let end = range.end.min(range.start.saturating_add(MAX_NAME));
        self.0.read_bytes_at_until(range.start..end, delimiter)
    }
}

#[cfg(test)]
mod tests {
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

    /// A file without a name that holds these bytes at these offsets, and claims this size.
    fn file_of(parts: &[(u64, &[u8])], size: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        for (offset, bytes) in parts {
            std::os::unix::fs::FileExt::write_all_at(&file, bytes, *offset).unwrap();
        }
        file.set_len(size).unwrap();
        file
    }

    /// A 64-bit x86 header of this kind of file: program headers at 64, sections at 4,096.
    fn header(kind: u8, programs: u16, sections: u16) -> Vec<u8> {
        let mut header = vec![0_u8; 64];
        header[..8].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]);
        header[16..20].copy_from_slice(&[kind, 0, 62, 0]);
        header[20] = 1;
        header[32] = 64;
        header[40..48].copy_from_slice(&4_096_u64.to_le_bytes());
        header[52..56].copy_from_slice(&[64, 0, 56, 0]);
        header[56..58].copy_from_slice(&programs.to_le_bytes());
        header[58] = 64;
        header[60..62].copy_from_slice(&sections.to_le_bytes());
        header[62..64].copy_from_slice(&1_u16.to_le_bytes());
        header
    }

    /// A section header; names are at 4 MiB, where the second section (the strings) begins.
    fn section(name: u32, kind: u32, flags: u64, offset: u64, size: u64, link: u32) -> Vec<u8> {
        let mut header = vec![0_u8; 64];
        header[..4].copy_from_slice(&name.to_le_bytes());
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[8..16].copy_from_slice(&flags.to_le_bytes());
        header[24..32].copy_from_slice(&offset.to_le_bytes());
        header[32..40].copy_from_slice(&size.to_le_bytes());
        header[40..44].copy_from_slice(&link.to_le_bytes());
        header
    }

    const NAMES: &[u8] = b"\0.shstrtab\0.symtab\0.strtab\0.debug_info\0";
    const LIBRARY: u8 = 3;

    fn with_sections(more: &[Vec<u8>], size: u64) -> File {
        let mut headers = section(0, 0, 0, 0, 0, 0);
        headers.extend(section(1, 3, 0, 4 << 20, NAMES.len() as u64, 0));
        headers.extend(more.concat());
        let count = u16::try_from(headers.len() / 64).unwrap();
        file_of(&[(0, &header(LIBRARY, 0, count)), (4_096, &headers), (4 << 20, NAMES)], size)
    }

    #[test]
    fn a_note_as_large_as_the_file_claims_is_not_read() {
        let mut note = vec![0_u8; 56];
        note[0] = 4;
        note[32..40].copy_from_slice(&(8_u64 << 30).to_le_bytes());
        let file = file_of(&[(0, &header(LIBRARY, 1, 0)), (64, &note)], 9 << 30);
        assert_eq!(facts(&file).unwrap().build_id, None);
    }

    #[test]
    fn a_file_that_is_no_program_is_refused() {
        for kind in [1, 4] {
            let found = facts(&file_of(&[(0, &header(kind, 0, 0))], 8_192)).unwrap();
            assert_eq!(found.refused, Some("it is neither a program nor a library"));
        }
    }

    #[test]
    fn absurd_section_tables_are_refused() {
        // As many sections as the file has room for, by the field that is for many.
        for count in [65_536_u64, 1 << 20, u64::MAX / 64] {
            let first = section(0, 0, 0, 0, count, 0);
            let strings = section(1, 3, 0, 4 << 20, NAMES.len() as u64, 0);
            let parts: [(u64, &[u8]); 4] =
                [(0, &header(LIBRARY, 0, 0)), (4_096, &first), (4_160, &strings), (4 << 20, NAMES)];
            match facts(&file_of(&parts, 1 << 30)) {
                Ok(found) => assert!(found.refused.is_some(), "{count}"),
                Err(why) => assert!(why.contains("not an ELF file"), "{why}"),
            }
        }
        let many = vec![section(11, 1, 0, 0, 1, 0); MAX_SECTIONS];
        let found = facts(&with_sections(&many, 8 << 20)).unwrap();
        assert_eq!(found.refused, Some("it has more sections than any program"));
        // A name without an end, which a reader would look for in all of the file.
        let endless = file_of(
            &[
                (0, &header(LIBRARY, 0, 3)),
                (4_160, &section(0, 3, 0, 1 << 16, 1 << 30, 0)),
                (4_224, &section(9, 1, 0, 0, 1, 0)),
                (1 << 16, &vec![b'x'; 64 << 10]),
            ],
            2 << 30,
        );
        assert_eq!(
            facts(&endless).unwrap().refused,
            Some("a section has no name that can be read")
        );
    }

    #[test]
    fn symbol_tables_are_taken_as_they_are_and_refused_beyond_the_limit() {
        let symtab = |offset, size, link| section(11, 2, 0, offset, size, link);
        let strtab = section(19, 3, 0, 1 << 16, 100, 0);
        // A table that names itself, or nothing, as its strings; they are found by name.
        for link in [2, 77] {
            let file = with_sections(&[symtab(1 << 17, 48, link), strtab.clone()], 8 << 20);
            let found = facts(&file).unwrap();
            assert!(found.full_symbols && found.refused.is_none());
            assert_eq!(found.tables[0].strings, 65_536..65_636);
            assert_eq!(found.symbol_bytes(), 48);
        }
        let file = with_sections(&[symtab(0, MAX_SYMBOLS + 24, 3), strtab.clone()], 8 << 20);
        assert_eq!(facts(&file).unwrap().refused, Some("its symbol tables are beyond the limit"));
        let file = with_sections(&[symtab(u64::MAX - 8, 48, 3), strtab], 8 << 20);
        let found = facts(&file).unwrap();
        assert!(found.tables.is_empty() && found.refused.is_none());
    }

    #[test]
    fn two_sections_of_one_name_are_refused() {
        for name in [11, 19, 27] {
            let one = section(name, 1, 0, 1 << 16, 100, 0);
            assert_eq!(
                facts(&with_sections(std::slice::from_ref(&one), 8 << 20)).unwrap().refused,
                None
            );
            let two = facts(&with_sections(&[one.clone(), one], 8 << 20)).unwrap();
            assert_eq!(two.refused, Some("it has two sections of one name"), "{name}");
        }
    }

    #[test]
    fn a_debug_link_has_a_name_and_a_checksum() {
        assert_eq!(link(b"a.debug\0\x01\0\0\0"), Some((b"a.debug".to_vec(), 1)));
        assert_eq!(link(b"ab.debug\0\0\0\0\x02\0\0\0"), Some((b"ab.debug".to_vec(), 2)));
        assert_eq!((link(b"a.debug\0\x01\0\0"), link(b"abcd"), link(b"")), (None, None, None));
    }

    #[test]
    fn a_compressed_section_that_claims_terabytes_is_no_debug_information() {
        for (claim, usable) in [(MAX_INFLATED, true), (MAX_INFLATED + 1, false), (8 << 40, false)] {
            let compressed = section(27, 1, 0x800, 1 << 16, 64, 0);
            let file = with_sections(&[compressed], 8 << 20);
            let mut claims = vec![1_u8, 0, 0, 0, 0, 0, 0, 0];
            claims.extend(u64::to_le_bytes(claim));
            claims.extend(1_u64.to_le_bytes());
            std::os::unix::fs::FileExt::write_all_at(&file, &claims, 1 << 16).unwrap();
            let found = facts(&file).unwrap();
            assert_eq!((found.refused, found.compressed, found.debug), (None, true, usable));
        }
    }

    #[test]
    fn an_offset_has_the_address_of_its_segment() {
        let load = |offset, size, address| Load { offset, size, address };
        let loads = vec![load(0, 0x100, 0x40_0000), load(0x100, 0x10, u64::MAX - 4)];
        let facts = ElfFacts { loads, ..ElfFacts::default() };
        assert_eq!(facts.address(0xff), Some(0x40_00ff));
        assert_eq!(facts.address(0x104), Some(u64::MAX));
        assert_eq!((facts.address(0x105), facts.address(0x110)), (None, None));
    }
}
