//! The copied part of a stack. Reads nothing outside it.

use crate::record::StackCopy;

/// What lies so many bytes beyond a copy may be the same stack's; farther away nothing that is
/// copied leads.
const NEAR: u64 = 64 << 20;

/// Why a word cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// It lies beyond the end of the copy.
    Beyond,
    /// It lies in a page that could not be copied.
    Missing,
    /// It lies elsewhere.
    Elsewhere,
}

/// The copy as memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    copy: &'a StackCopy,
}

impl<'a> Memory<'a> {
    /// Of a copy.
    pub const fn new(copy: &'a StackCopy) -> Self {
        Self { copy }
    }

    /// Lowest address in it.
    pub const fn start(&self) -> u64 {
        self.copy.registers.rsp
    }

    /// Lowest address beyond it.
    pub const fn end(&self) -> u64 {
        self.start().saturating_add(self.copy.bytes.len() as u64)
    }

    /// Lowest address that is not on this stack, copied or not, as far as can be told.
    pub const fn reach(&self) -> u64 {
        if self.copy.whole { self.end() } else { self.end().saturating_add(NEAR) }
    }

    /// `size` bytes, at most eight, as a number.
    pub fn read(&self, address: u64, size: usize) -> Result<u64, Outside> {
        if address < self.start() {
            return Err(Outside::Elsewhere);
        }
        let beyond = if address < self.end().saturating_add(NEAR) {
            Outside::Beyond
        } else {
            Outside::Elsewhere
        };
        let offset = usize::try_from(address - self.start()).map_err(|_| Outside::Elsewhere)?;
        let bytes =
            self.copy.bytes.get(offset..).and_then(|rest| rest.get(..size)).ok_or(beyond)?;
        let last = address.saturating_add(size.saturating_sub(1) as u64);
        if self.copy.is_missing(address) || self.copy.is_missing(last) {
            return Err(Outside::Missing);
        }
        let mut word = [0; 8];
        word.get_mut(..size).ok_or(Outside::Elsewhere)?.copy_from_slice(bytes);
        Ok(u64::from_le_bytes(word))
    }

    /// A word.
    #[inline]
    pub fn word(&self, address: u64) -> Result<u64, Outside> {
        let offset = address.wrapping_sub(self.start());
        let word = usize::try_from(offset)
            .ok()
            .and_then(|offset| self.copy.bytes.get(offset..)?.first_chunk::<8>());
        match word {
            Some(word) if self.copy.missing == 0 => Ok(u64::from_le_bytes(*word)),
            _ => self.read(address, 8),
        }
    }

    /// A return address: where its slot holds the trampoline of a return probe, what belongs
    /// there.
    pub fn return_address(&self, slot: u64) -> Result<u64, Outside> {
        let read = self.word(slot)?;
        let mended = self.copy.slots.iter().find(|(address, _)| *address == slot && slot != 0);
        Ok(mended.map_or(read, |(_, belongs)| *belongs))
    }

    /// Whether the copy ends before the stack does.
    pub const fn cut(&self) -> bool {
        !self.copy.whole
    }
}
