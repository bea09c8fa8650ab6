//! Where the bytes of a file are: mapped, or our own memory's.

use std::fs::File;
use std::ops::{Deref, Range};

use memmap2::Mmap;

/// Bytes that stay where they are.
#[derive(Debug)]
pub enum Bytes {
    /// A mapped file. Its owner may write to it or cut it short meanwhile: what is read is
    /// checked each time, and the thread is guarded against SIGBUS.
    Mapped(Mmap),
    /// The vDSO.
    Static(&'static [u8]),
    /// Unpacked.
    Own(Vec<u8>),
}

impl Bytes {
    /// Maps a file for reading.
    pub fn map(file: &File) -> std::io::Result<Self> {
        // SAFETY: the mapping is private and read-only, and this daemon does not write to the
        // file. That others may is accepted as every reader of mapped symbols accepts it: the
        // bytes have no invariants, and each number taken from them is checked.
        unsafe { Mmap::map(file) }.map(Self::Mapped)
    }

    /// A part, if it is all there.
    pub fn part(&self, range: &Range<u64>) -> Option<&[u8]> {
        let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
        self.get(start..end)
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
            Self::Own(bytes) => bytes,
        }
    }
}
