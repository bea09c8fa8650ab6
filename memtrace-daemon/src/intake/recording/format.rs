//! The layout of a frame: head, content, checksum.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | bytes of the content as it is stored |
//! | 4 | bytes of the content; where it is more than stored, the content is an LZ4 block |
//! | 4 | kind |
//! | 4 | CRC-32 of the 12 bytes before |
//! | … | the content |
//! | 4 | CRC-32 of the stored content |
//!
//! Numbers are little-endian.

use bytes::{Buf, BufMut};

/// What a recording begins with. Not text, and mended by nobody's line endings.
pub const MAGIC: [u8; 8] = *b"\x89mtrec\r\n";
/// The version of the format: of the frames, and of what records look like in them.
pub const VERSION: u32 = 2;

/// Bytes of a frame's head.
pub(super) const HEAD: usize = 16;
/// Bytes of a checksum.
pub(super) const CHECKSUM: usize = size_of::<u32>();
/// Bytes of records after which a frame is full. A frame is written at once, and what was not
/// written is lost in a crash, so it is small.
pub(super) const BATCH: usize = 64 << 10;
/// Most bytes that a frame holds. One record can be longer than a batch (all live ids, all
/// coverage); what is longer than this is no record.
pub(super) const LONGEST: usize = 16 << 20;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// What whoever records gives; the first frame.
    Header = 1,
    /// Records, one behind the other.
    Records = 2,
    /// That records are missing here: their number, 8 bytes.
    Gap = 3,
    /// The end of the recording; the last frame.
    End = 4,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Header, Self::Records, Self::Gap, Self::End];
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    /// Bytes as stored, at most `bytes`.
    pub(super) stored: usize,
    /// Bytes of the content, at most [`LONGEST`].
    pub(super) bytes: usize,
}

impl Head {
    /// Reads a head.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn read(bytes: [u8; HEAD]) -> Result<Self, &'static str> {
        let (said, mut checksum) = bytes.split_at(HEAD - CHECKSUM);
        if crc32fast::hash(said) != checksum.get_u32_le() {
            return Err("the head of a frame does not have its checksum");
        }
        let mut said = said;
        let (stored, bytes, kind) = (said.get_u32_le(), said.get_u32_le(), said.get_u32_le());
        let kind = Kind::ALL.into_iter().find(|known| *known as u32 == kind);
        let kind = kind.ok_or("a frame has an unknown kind")?;
        match (usize::try_from(stored), usize::try_from(bytes)) {
            (Ok(stored), Ok(bytes)) if stored <= bytes && bytes <= LONGEST => {
                Ok(Self { kind, stored, bytes })
            }
            _ => Err("a frame is longer than any that memtrace writes"),
        }
    }
}

/// Puts a frame together. The content has at most [`LONGEST`] bytes.
pub(super) fn write(kind: Kind, content: &[u8], to: &mut Vec<u8>) {
    let packed = lz4_flex::block::compress(content);
    let stored = if packed.len() < content.len() { &packed } else { content };
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let start = to.len();
    to.put_u32_le(length(stored));
    to.put_u32_le(length(content));
    to.put_u32_le(kind as u32);
    let checksum = to.get(start..).map_or(0, crc32fast::hash);
    to.put_u32_le(checksum);
    to.put_slice(stored);
    to.put_u32_le(crc32fast::hash(stored));
}
