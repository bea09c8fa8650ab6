//! Reads the notes of static probes in an ELF file (`.note.stapsdt`, as `sys/sdt.h` makes them).
//!
//! Each is three addresses (of the place, of the section `.stapsdt.base` when the note was made,
//! and of the semaphore) and three strings (provider, name, arguments).

use std::fs::File;

use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::ReadRef;
use object::read::elf::{FileHeader, SectionHeader, SectionTable};

use crate::attach::elf::{Bounded, ElfError, Image, Source};

/// Bytes read of a file to find its notes, headers and names of sections among them.
const BUDGET: u64 = 32 << 20;
/// Section headers of a file; real ones have some 40.
const MAX_SECTIONS: usize = 65_536;
/// Bytes of notes; node's and libc's are below 100 KB.
const MAX_NOTE_BYTES: u64 = 4 << 20;
/// Notes of a file.
const MAX_NOTES: usize = 16_384;
/// Notes of one probe: places that an optimiser copied it to.
pub const MAX_PLACES: usize = 64;
/// Longest string of a note, bytes.
const MAX_STRING: usize = 1_024;

/// Who makes such notes, and their type.
const OWNER: &[u8] = b"stapsdt";
const TYPE: u32 = 3;

/// One place of a static probe, as its note has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Who named it.
    pub provider: String,
    /// Its name.
    pub name: String,
    /// Where it is; or why it cannot be probed.
    pub place: Result<Location, String>,
    /// Its arguments, as the assembler wrote them.
    pub arguments: String,
}

/// Where a static probe is in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Offset of its instruction, bytes.
    pub offset: u64,
    /// Offset of its semaphore, bytes.
    pub semaphore: Option<u64>,
}

/// All static probes of a file. Of one probe more than [`MAX_PLACES`] places are refused.
///
/// # Errors
/// That it cannot be read, is no ELF file, or is broken.
pub fn notes(file: &File) -> Result<Vec<Note>, ElfError> {
    let source = Source::new(file, BUDGET)?;
    let image = Image::read(&source)?;
    let outside = |_| ElfError::Broken("its section headers lie outside of it");
    let sections = image.header.sections(image.endian, image.data).map_err(outside)?;
    if sections.len() > MAX_SECTIONS {
        return Err(ElfError::Broken("it has too many sections"));
    }
    let named = |name| sections.section_by_name(image.endian, name).map(|(_, section)| section);
    let base = named(b".stapsdt.base").map(|section| section.sh_addr(image.endian));
    let mut notes = Vec::new();
    for section in own_sections(&image, &sections) {
        if section.sh_size(image.endian) > MAX_NOTE_BYTES {
            return Err(ElfError::Broken("its notes of static probes are too large"));
        }
        let broken = ElfError::Broken("its notes of static probes lie outside of it");
        let Ok(Some(found)) = section.notes(image.endian, image.data) else { return Err(broken) };
        for note in found.map_while(Result::ok) {
            if note.name() != OWNER || note.n_type(image.endian) != TYPE {
                continue;
            }
            if notes.len() >= MAX_NOTES {
                return Err(ElfError::Broken("it has too many static probes"));
            }
            notes.extend(read(&image, base, note.desc()));
        }
    }
    bound(&mut notes);
    Ok(notes)
}

type Sections<'a> = SectionTable<'a, FileHeader64<LittleEndian>, Bounded<'a>>;

/// The sections that hold such notes; a linker makes one.
fn own_sections<'a>(
    image: &Image<'a>,
    sections: &Sections<'a>,
) -> Vec<&'a elf::SectionHeader64<LittleEndian>> {
    let endian = image.endian;
    let of_notes = sections.iter().filter(|section| section.sh_type(endian) == elf::SHT_NOTE);
    of_notes
        .filter(|section| sections.section_name(endian, section) == Ok(b".note.stapsdt"))
        .collect()
}

/// Reads one note; nothing where it is cut off or its strings are no strings.
fn read(image: &Image<'_>, base: Option<u64>, note: &[u8]) -> Option<Note> {
    let (addresses, strings) = note.split_at_checked(3 * size_of::<u64>())?;
    let mut words = addresses.chunks_exact(size_of::<u64>());
    let mut word = || words.next()?.try_into().ok().map(u64::from_le_bytes);
    let (place, noted_base, semaphore) = (word()?, word()?, word()?);
    let mut strings = strings.split(|byte| *byte == 0);
    let mut string = || {
        let bytes = strings.next().filter(|bytes| bytes.len() <= MAX_STRING)?;
        std::str::from_utf8(bytes).ok().map(str::to_owned)
    };
    let (provider, name, arguments) = (string()?, string()?, string()?);
    // What moved a file's addresses after it was linked moved that section too, but no notes.
    let moved = base.filter(|_| noted_base != 0).map_or(0, |base| base.wrapping_sub(noted_base));
    let place = location(image, place.wrapping_add(moved), semaphore, moved);
    Some(Note { provider, name, place, arguments })
}

fn location(image: &Image<'_>, place: u64, semaphore: u64, moved: u64) -> Result<Location, String> {
    let offset = image
        .code_offset(place)
        .ok_or_else(|| format!("its place {place:#x} is in no executable bytes of the file"))?;
    if !does_nothing(image.data, offset) {
        return Err(format!("at its place {place:#x} is no instruction that does nothing"));
    }
    if semaphore == 0 {
        return Ok(Location { offset, semaphore: None });
    }
    let address = semaphore.wrapping_add(moved);
    // The kernel adds to two bytes there, in memory that is the process' own.
    let semaphore = image
        .data_offset(address)
        .filter(|offset| offset % 2 == 0)
        .ok_or_else(|| format!("its semaphore {address:#x} is in no writable bytes of the file"))?;
    Ok(Location { offset, semaphore: Some(semaphore) })
}

/// Whether the instruction at an offset is one of those that do nothing.
fn does_nothing(data: Bounded<'_>, offset: u64) -> bool {
    const NOTHING: [&[u8]; 4] = [&[0x90], &[0x66, 0x90], &[0x0f, 0x1f], &[0x66, 0x0f, 0x1f]];
    let begins = |with: &&[u8]| data.read_bytes_at(offset, with.len() as u64) == Ok(*with);
    NOTHING.iter().any(begins)
}

/// Refuses probes with more places than are ever attached.
fn bound(notes: &mut [Note]) {
    let mut places = std::collections::HashMap::new();
    for note in &*notes {
        *places.entry((note.provider.clone(), note.name.clone())).or_insert(0_usize) += 1;
    }
    for note in notes {
        let count = places.get(&(note.provider.clone(), note.name.clone()));
        if count.is_some_and(|count| *count > MAX_PLACES) {
            note.place = Err(format!("it has more than {MAX_PLACES} places"));
        }
    }
}
