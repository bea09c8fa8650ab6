//! Which description of a section covers an address, where the file has no search table: an
//! index of our own, built once a file and bounded.

use gimli::{BaseAddresses, CieOrFde, UnwindSection};

use super::expression::Slice;
use super::image::Image;
use super::look_up::cie;

/// Most descriptions: 8 bytes each.
const MAX_DESCRIPTIONS: usize = 400_000;
/// Largest section that is read through, bytes.
const MAX_SECTION: usize = 64 << 20;

/// Where descriptions begin, relative to the lowest loaded address, and their offsets in the
/// section; in order.
#[derive(Debug, Default)]
pub struct Index(Box<[(u32, u32)]>);

impl Index {
    /// Reads a section through. What comes behind a damaged entry is not found.
    pub fn build<'a, S>(section: &S, data: &[u8], bases: &BaseAddresses, image: &Image) -> Self
    where
        S: UnwindSection<Slice<'a>>,
    {
        let mut starts = Vec::new();
        if data.len() > MAX_SECTION {
            return Self::default();
        }
        let (mut entries, mut seen) = (section.entries(bases), 0);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else { continue };
            seen += 1;
            if seen > MAX_DESCRIPTIONS {
                break;
            }
            let Ok(description) = partial.parse(|section, bases, at| cie(section, data, bases, at))
            else {
                continue;
            };
            let offset = u32::try_from(description.offset());
            let start = image.relative(description.initial_address());
            if let (Some(start), Ok(offset)) = (start, offset)
                && description.len() > 0
            {
                starts.push((start, offset));
            }
        }
        starts.sort_unstable();
        Self(starts.into())
    }

    /// Offset of the description that begins last before an address; it may end before it.
    pub fn find(&self, address: u64, lowest: u64) -> Option<usize> {
        let address = u32::try_from(address.checked_sub(lowest)?).ok()?;
        let behind = self.0.partition_point(|(start, _)| *start <= address);
        self.0.get(behind.checked_sub(1)?).map(|(_, offset)| *offset as usize)
    }

    /// Memory, bytes.
    pub fn heap(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// The search table of `.eh_frame_hdr`, as every linker writes it: pairs of 4-byte numbers
/// relative to the section. `None` where it is otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    rows: &'a [[u8; 8]],
    address: u64,
}

impl<'a> Table<'a> {
    /// Of a section that is loaded at an address.
    pub fn of(section: &'a [u8], address: u64) -> Option<Self> {
        // Version 1; an encoded pointer of 4 bytes; a count of 4 bytes; sdata4, datarel.
        let [1, pointer, 0x03, 0x3b, rest @ ..] = section else { return None };
        if !matches!(pointer & 0x0f, 0x03 | 0x0b) {
            return None;
        }
        let (count, rows) = rest.get(4..)?.split_first_chunk::<4>()?;
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        let rows = rows.as_chunks::<8>().0.get(..count)?;
        (!rows.is_empty()).then_some(Self { rows, address })
    }

    /// Address of the description that begins last before an address.
    pub fn find(&self, address: u64) -> Option<u64> {
        let wanted = address.wrapping_sub(self.address).cast_signed();
        let start = |row: &[u8; 8]| i64::from(halves(row).0);
        let behind = self.rows.partition_point(|row| start(row) <= wanted);
        let (_, description) = halves(self.rows.get(behind.checked_sub(1)?)?);
        self.address.checked_add_signed(i64::from(description))
    }
}

fn halves(row: &[u8; 8]) -> (i32, i32) {
    let [a, b, c, d, e, f, g, h] = *row;
    (i32::from_le_bytes([a, b, c, d]), i32::from_le_bytes([e, f, g, h]))
}
