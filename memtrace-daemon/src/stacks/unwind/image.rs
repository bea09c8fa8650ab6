//! The parts of an ELF file that unwinding needs: its segments, and where its unwind
//! information is. Only looks at headers; what they say is checked against the file's size.

use std::io::Read;
use std::ops::Range;

use object::LittleEndian;
use object::elf::{self, FileHeader64, SectionHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

use super::bytes::Bytes;

type Header = FileHeader64<LittleEndian>;
const LE: LittleEndian = LittleEndian;

const MAX_SEGMENTS: usize = 256;
const MAX_SECTIONS: usize = 8_192;
/// Largest section of unwind information that is unpacked, bytes.
const MAX_UNPACKED: u64 = 4 << 20;
const PAGE: u64 = 4_096;

/// A file's layout.
#[derive(Debug)]
pub struct Image {
    /// The file.
    pub bytes: Bytes,
    /// `.eh_frame`.
    pub eh_frame: Option<Part>,
    /// `.eh_frame_hdr`.
    pub eh_frame_hdr: Option<Part>,
    /// `.debug_frame`.
    pub debug_frame: Option<Packed>,
    /// The same, unpacked, once it was wanted.
    pub unpacked: Option<Bytes>,
    segments: Vec<Segment>,
}

/// A section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it is in the file.
    pub range: Range<u64>,
    /// Where it is in memory before relocation.
    pub address: u64,
}

/// A section that may be compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Where it is in the file.
    pub range: Range<u64>,
    /// How large it is when it is unpacked, if it is compressed.
    pub unpacked: Option<u64>,
}

/// A loaded part of the file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    offset: u64,
    size: u64,
    address: u64,
    executable: bool,
}

impl Image {
    /// Reads the headers.
    ///
    /// # Errors
    /// A few words that go behind the file's name.
    pub fn new(bytes: Bytes) -> Result<Self, &'static str> {
        let damaged = |_| "has headers that cannot be read";
        let data: &[u8] = &bytes;
        let header = Header::parse(data).map_err(|_| "is not an ELF file")?;
        if !header.is_little_endian() || header.e_machine(LE) != elf::EM_X86_64 {
            return Err("is not an x86-64 file");
        }
        let programs = header.program_headers(LE, data).map_err(damaged)?;
        if programs.len() > MAX_SEGMENTS {
            return Err("has too many segments");
        }
        let mut segments = Vec::new();
        let mut eh_frame_hdr = None;
        for program in programs {
            let (offset, size) = program.file_range(LE);
            let address = program.p_vaddr(LE);
            match program.p_type(LE) {
                elf::PT_LOAD => {
                    let executable = program.p_flags(LE) & elf::PF_X != 0;
                    segments.push(Segment { offset, size, address, executable });
                }
                elf::PT_GNU_EH_FRAME => eh_frame_hdr = part(offset, size, address),
                _ => {}
            }
        }
        segments.shrink_to_fit();
        let mut image = Self {
            eh_frame: None,
            eh_frame_hdr,
            debug_frame: None,
            unpacked: None,
            segments,
            bytes: Bytes::Static(&[]),
        };
        // A file can do without section headers.
        if let Ok(sections) = header.section_headers(LE, data)
            && sections.len() <= MAX_SECTIONS
        {
            let names = header.section_strings_index(LE, data).ok();
            let names = names.and_then(|index| sections.get(index.0)?.data(LE, data).ok());
            for section in sections.iter().filter(|section| section.sh_type(LE) != elf::SHT_NOBITS)
            {
                image.section(section, names.unwrap_or_default(), data);
            }
        }
        if image.eh_frame.is_none() {
            image.eh_frame = image.eh_frame_by_header(data);
        }
        image.bytes = bytes;
        Ok(image)
    }

    fn section(&mut self, section: &SectionHeader64<LittleEndian>, names: &[u8], data: &[u8]) {
        let Ok(start) = usize::try_from(section.sh_name(LE)) else { return };
        let name = names.get(start..).unwrap_or_default();
        let (offset, size) = (section.sh_offset(LE), section.sh_size(LE));
        let own = part(offset, size, section.sh_addr(LE));
        if name.starts_with(b".eh_frame\0") {
            self.eh_frame = own;
        } else if name.starts_with(b".eh_frame_hdr\0") && self.eh_frame_hdr.is_none() {
            self.eh_frame_hdr = own;
        } else if name.starts_with(b".debug_frame\0")
            && let Some(own) = own
        {
            self.debug_frame = match section.compression(LE, data) {
                Ok(None) => Some(Packed { range: own.range, unpacked: None }),
                Ok(Some((header, offset, size)))
                    if header.ch_type.get(LE) == elf::ELFCOMPRESS_ZLIB =>
                {
                    let range = part(offset, size, 0).map(|part| part.range);
                    let unpacked = Some(header.ch_size.get(LE));
                    range.map(|range| Packed { range, unpacked })
                }
                _ => None,
            };
        }
    }

    /// The header before the search table points to `.eh_frame`, which goes to the end of its
    /// segment at most.
    fn eh_frame_by_header(&self, data: &[u8]) -> Option<Part> {
        let header = self.eh_frame_hdr.as_ref()?;
        let start = usize::try_from(header.range.start).ok()?;
        let [1, 0x1b, _, _, pointer @ ..] = data.get(start..)?.first_chunk::<8>()? else {
            return None;
        };
        // Relative to itself, which is 4 bytes on.
        let address = header
            .address
            .checked_add(4)?
            .checked_add_signed(i64::from(i32::from_le_bytes(*pointer)))?;
        let segment = self.segments.iter().find(|segment| {
            address.checked_sub(segment.address).is_some_and(|into| into < segment.size)
        })?;
        let into = address - segment.address;
        part(segment.offset.checked_add(into)?, segment.size - into, address)
    }

    /// The address before relocation that is at an offset in the file.
    pub fn address(&self, offset: u64) -> Option<u64> {
        let holds = |segment: &&Segment| {
            // Mappings begin and end with pages.
            let start = segment.offset & !(PAGE - 1);
            let end = segment.offset.saturating_add(segment.size);
            start <= offset && offset < end
        };
        let mut holding = self.segments.iter().filter(holds);
        let first =
            holding.clone().find(|segment| segment.executable).or_else(|| holding.next())?;
        first.address.checked_add_signed(offset.wrapping_sub(first.offset).cast_signed())
    }

    /// Whether an address is executable, and how far it is from the lowest that is loaded.
    pub fn relative(&self, address: u64) -> Option<u32> {
        let holds = |segment: &Segment| {
            segment.executable
                && address.checked_sub(segment.address).is_some_and(|into| into < segment.size)
        };
        if !self.segments.iter().any(holds) {
            return None;
        }
        u32::try_from(address - self.lowest()).ok()
    }

    /// Lowest address that is loaded.
    pub fn lowest(&self) -> u64 {
        self.segments.iter().map(|segment| segment.address).min().unwrap_or(0)
    }

    /// `.debug_frame`, unpacked where that is needed and within the limit.
    pub fn debug_frame(&mut self) -> Option<&[u8]> {
        let packed = self.debug_frame.clone()?;
        let Some(size) = packed.unpacked else { return self.bytes.part(&packed.range) };
        if self.unpacked.is_none() {
            let input = self.bytes.part(&packed.range).filter(|_| size <= MAX_UNPACKED);
            let mut out = Vec::new();
            if let Some(input) = input {
                let reader = flate2::read::ZlibDecoder::new(input).take(size);
                let _ = { reader }.read_to_end(&mut out);
            }
            out.shrink_to_fit();
            self.unpacked = Some(Bytes::Own(out));
        }
        self.unpacked.as_deref()
    }

    /// Memory of what is unpacked, bytes.
    pub fn unpacked(&self) -> usize {
        match &self.unpacked {
            Some(Bytes::Own(bytes)) => bytes.capacity(),
            _ => 0,
        }
    }

    /// Other memory, bytes.
    pub fn heap(&self) -> usize {
        self.segments.capacity() * size_of::<Segment>()
    }
}

fn part(offset: u64, size: u64, address: u64) -> Option<Part> {
    Some(Part { range: offset..offset.checked_add(size)?, address })
}
