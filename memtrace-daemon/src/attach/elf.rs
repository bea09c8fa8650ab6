//! Reads what an ELF file says of itself, from an open descriptor: DT_SONAME, build id, the
//! libraries it needs, and whether it is Go.
//!
//! Files are hostile input and may be a gigabyte large: only headers and the dynamic section
//! are read, every size is bounded, and nothing is mapped (a file that shrinks under a mapping
//! kills the reader). x86-64 only; the instruction that `symbols.rs` skips is known here.

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use object::LittleEndian;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};
use thiserror::Error;

/// Bytes read of a file to know what it is: headers and the dynamic section.
const HEADER_BUDGET: u64 = 4 << 20;
/// Program headers of a file; real ones have a dozen.
const MAX_SEGMENTS: usize = 256;
/// Entries of a dynamic section; real ones have some 40, one more for each needed library.
const MAX_DYNAMIC: usize = 4_096;
/// Longest string read from the dynamic section, bytes.
const MAX_STRING: u64 = 4_096;
/// Bytes of notes read from a segment.
const MAX_NOTES: u64 = 64 << 10;
/// Longest build id, bytes. The usual one has 20.
const MAX_BUILD_ID: usize = 64;

/// `endbr64`: marks a target of indirect jumps and does nothing else. A probe on it is
/// single-stepped, some 20 times as dear as one behind it.
pub(super) const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Why a file cannot be read as an ELF file.
#[derive(Debug, Error)]
pub enum ElfError {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is not a file of the usual kind.
    #[error("is not a regular file")]
    NotRegular,
    /// It is not a program or library for this machine.
    #[error("is not an x86-64 ELF program or library")]
    NotElf,
    /// It contradicts itself, or is larger than anything real.
    #[error("is a broken ELF file: {0}")]
    Broken(&'static str),
}

/// Which file it is, and what tells two files apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device, as stat(2) has it.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

impl Identity {
    /// As coverage writes it: `major:minor:inode`.
    #[must_use]
    pub fn display(&self) -> String {
        let (major, minor) = (libc::major(self.device), libc::minor(self.device));
        format!("{major}:{minor}:{}", self.inode)
    }
}

/// What an ELF file says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// `DT_SONAME`.
    pub soname: Option<String>,
    /// `DT_NEEDED`, in order.
    pub needed: Vec<String>,
    /// `DT_RPATH`, unless there is a `DT_RUNPATH`.
    pub rpath: Option<String>,
    /// `DT_RUNPATH`.
    pub runpath: Option<String>,
    /// GNU build id, hex.
    pub build_id: Option<String>,
    /// Whether the Go linker made it.
    pub go: bool,
}

/// Opens a regular file for reading. Never waits for a device or a pipe.
///
/// # Errors
/// What the system said, or that it is not a regular file.
pub fn open(path: &Path) -> Result<File, ElfError> {
    let file =
        File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(ElfError::NotRegular) }
}

/// Which file this is.
///
/// # Errors
/// What the system said.
pub fn identity(file: &File) -> io::Result<Identity> {
    let metadata = file.metadata()?;
    Ok(Identity { device: metadata.dev(), inode: metadata.ino() })
}

/// Reads what the file says of itself.
///
/// # Errors
/// That it cannot be read, is no ELF file, or is broken.
pub fn describe(file: &File) -> Result<Description, ElfError> {
    let source = Source::new(file, HEADER_BUDGET)?;
    let image = Image::read(&source)?;
    let mut description = Description::default();
    for segment in image.segments {
        match segment.p_type(image.endian) {
            elf::PT_NOTE => read_notes(&image, segment, &mut description),
            elf::PT_DYNAMIC => read_dynamic(&image, segment, &mut description)?,
            _ => {}
        }
    }
    Ok(description)
}

fn read_notes(
    image: &Image<'_>,
    segment: &ProgramHeader64<LittleEndian>,
    description: &mut Description,
) {
    if segment.p_filesz(image.endian) > MAX_NOTES {
        return;
    }
    // Broken notes only mean that there is no build id.
    let Ok(Some(notes)) = segment.notes(image.endian, image.data) else { return };
    for note in notes.map_while(Result::ok) {
        match (note.name(), note.n_type(image.endian)) {
            (elf::ELF_NOTE_GNU, elf::NT_GNU_BUILD_ID) if note.desc().len() <= MAX_BUILD_ID => {
                description.build_id = Some(hex(note.desc()));
            }
            (elf::ELF_NOTE_GO, _) => description.go = true,
            _ => {}
        }
    }
}

fn read_dynamic(
    image: &Image<'_>,
    segment: &ProgramHeader64<LittleEndian>,
    description: &mut Description,
) -> Result<(), ElfError> {
    let endian = image.endian;
    if segment.p_filesz(endian) > (MAX_DYNAMIC * size_of::<elf::Dyn64<LittleEndian>>()) as u64 {
        return Err(ElfError::Broken("its dynamic section is too large"));
    }
    let entries = segment
        .dynamic(endian, image.data)
        .ok()
        .flatten()
        .ok_or(ElfError::Broken("its dynamic section lies outside of it"))?;
    let entries = entries.iter().take_while(|entry| entry.tag(endian) != elf::DT_NULL);
    let strings = entries
        .clone()
        .find(|entry| entry.tag(endian) == elf::DT_STRTAB)
        .and_then(|entry| image.file_offset(entry.val(endian)));
    let Some(strings) = strings else { return Ok(()) };
    let string = |offset: u64| image.string(strings.checked_add(offset)?);
    let mut rpath = None;
    for entry in entries {
        let value = entry.val(endian);
        match entry.tag(endian) {
            elf::DT_SONAME => description.soname = string(value),
            elf::DT_NEEDED => description.needed.extend(string(value)),
            elf::DT_RUNPATH => description.runpath = string(value),
            elf::DT_RPATH => rpath = string(value),
            _ => {}
        }
    }
    description.rpath = rpath.filter(|_| description.runpath.is_none());
    Ok(())
}

/// An ELF file whose headers have been read.
pub(super) struct Image<'a> {
    pub(super) data: Bounded<'a>,
    pub(super) header: &'a FileHeader64<LittleEndian>,
    pub(super) endian: LittleEndian,
    pub(super) segments: &'a [ProgramHeader64<LittleEndian>],
}

impl<'a> Image<'a> {
    /// Reads the headers.
    pub(super) fn read(source: &'a Source) -> Result<Self, ElfError> {
        let data = Bounded { source };
        let header = FileHeader64::<LittleEndian>::parse(data).map_err(|_| ElfError::NotElf)?;
        let endian = header.endian().map_err(|_| ElfError::NotElf)?;
        let kind = header.e_type.get(endian);
        if header.e_machine.get(endian) != elf::EM_X86_64
            || (kind != elf::ET_DYN && kind != elf::ET_EXEC)
        {
            return Err(ElfError::NotElf);
        }
        let segments = header
            .program_headers(endian, data)
            .map_err(|_| ElfError::Broken("its program headers lie outside of it"))?;
        if segments.len() > MAX_SEGMENTS {
            return Err(ElfError::Broken("it has too many segments"));
        }
        Ok(Self { data, header, endian, segments })
    }

    /// Where in the file an address of its image lies.
    fn file_offset(&self, address: u64) -> Option<u64> {
        self.offset_where(address, |_| true)
    }

    /// Where in the file an address lies that can be executed.
    pub(super) fn code_offset(&self, address: u64) -> Option<u64> {
        self.offset_where(address, |flags| flags & elf::PF_X != 0)
    }

    /// Where in the file an address lies that a process can write to, in memory of its own.
    pub(super) fn data_offset(&self, address: u64) -> Option<u64> {
        self.offset_where(address, |flags| flags & elf::PF_W != 0)
    }

    fn offset_where(&self, address: u64, wanted: impl Fn(u32) -> bool) -> Option<u64> {
        let endian = self.endian;
        self.segments
            .iter()
            .filter(|segment| segment.p_type(endian) == elf::PT_LOAD)
            .filter(|segment| wanted(segment.p_flags(endian)))
            .find_map(|segment| {
                let inside = address.checked_sub(segment.p_vaddr(endian))?;
                (inside < segment.p_filesz(endian))
                    .then(|| segment.p_offset(endian).checked_add(inside))
                    .flatten()
            })
    }

    fn string(&self, offset: u64) -> Option<String> {
        let end = offset.checked_add(MAX_STRING)?.min(self.data.len().ok()?);
        let bytes = self.data.read_bytes_at_until(offset..end, 0).ok()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// A file, and how much of it may still be read.
pub(super) struct Source {
    cache: ReadCache<File>,
    left: Cell<u64>,
}

impl Source {
    /// Reads at most `budget` bytes of a file.
    pub(super) fn new(file: &File, budget: u64) -> io::Result<Self> {
        Ok(Self { cache: ReadCache::new(file.try_clone()?), left: Cell::new(budget) })
    }

    fn spend(&self, bytes: u64) -> Result<(), ()> {
        self.left.set(self.left.get().checked_sub(bytes).ok_or(())?);
        Ok(())
    }
}

/// A [`Source`] as the parser takes it.
#[derive(Clone, Copy)]
pub(super) struct Bounded<'a> {
    source: &'a Source,
}

impl<'a> ReadRef<'a> for Bounded<'a> {
    fn len(self) -> Result<u64, ()> {
        (&self.source.cache).len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.source.spend(size)?;
        (&self.source.cache).read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        self.source.spend(256)?;
        (&self.source.cache).read_bytes_at_until(range, delimiter)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::test_files::Library;

    #[test]
    fn a_library_says_what_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = Library {
            soname: Some("libcudart.so.12"),
            arguments: &["-Wl,--build-id=0x0123abcd", "-Wl,-rpath,$ORIGIN/x", "-lm"],
            ..Library::default()
        }
        .build(directory.path(), "anything.so");
        let description = describe(&open(&path).unwrap()).unwrap();
        assert_eq!(description.soname.as_deref(), Some("libcudart.so.12"));
        assert_eq!(description.build_id.as_deref(), Some("0123abcd"));
        assert_eq!(description.runpath.or(description.rpath).as_deref(), Some("$ORIGIN/x"));
        assert!(!description.go);
    }

    #[test]
    fn the_test_program_needs_libc() {
        let description = describe(&open(Path::new("/proc/self/exe")).unwrap()).unwrap();
        assert_eq!(description.soname, None);
        assert!(description.needed.iter().any(|name| name == "libc.so.6"));
    }

    #[test]
    fn what_is_not_an_elf_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let text = directory.path().join("text");
        std::fs::write(&text, "#!/bin/sh\n").unwrap();
        assert!(matches!(describe(&open(&text).unwrap()), Err(ElfError::NotElf)));
        assert!(matches!(open(Path::new("/dev/null")), Err(ElfError::NotRegular)));
        assert!(matches!(open(directory.path()), Err(ElfError::NotRegular)));
    }

    #[test]
    fn a_pipe_does_not_block() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(matches!(open(&pipe), Err(ElfError::NotRegular)));
    }

    /// Every byte of the headers and the dynamic section, set to each of a few values: never a
    /// panic, never an endless read.
    #[test]
    fn broken_files_are_refused_or_read_but_never_harm() {
        let directory = tempfile::tempdir().unwrap();
        let path = Library::default().build(directory.path(), "whole.so");
        let whole = std::fs::read(path).unwrap();
        let broken = directory.path().join("broken.so");
        for position in (0..whole.len().min(1_024)).step_by(3) {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[position] = value;
                std::fs::write(&broken, &bytes).unwrap();
                let _ = describe(&open(&broken).unwrap());
                let _ = crate::attach::symbols::find(
                    &open(&broken).unwrap(),
                    crate::catalog::library_functions(),
                    true,
                );
            }
        }
        for length in (0..whole.len()).step_by(97) {
            std::fs::write(&broken, &whole[..length]).unwrap();
            let _ = describe(&open(&broken).unwrap());
        }
    }

    #[test]
    fn a_go_program_is_known_by_its_note() {
        let directory = tempfile::tempdir().unwrap();
        let path = Library { go: true, ..Library::default() }.build(directory.path(), "go.so");
        assert!(describe(&open(&path).unwrap()).unwrap().go);
    }

    #[test]
    fn an_identity_is_that_of_stat() {
        let file = open(Path::new("/proc/self/exe")).unwrap();
        let identity = identity(&file).unwrap();
        assert_eq!(identity.inode, file.metadata().unwrap().ino());
        assert!(identity.display().ends_with(&format!(":{}", identity.inode)));
    }
}
