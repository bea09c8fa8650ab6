//! Unwinds copies of user stacks by the unwind information of the files that the code is in.
//!
//! A step of our own over gimli's rows, because a wrong stack must never pass as a whole one:
//! all registers are followed, every kind of rule is applied, and each address that is found
//! must lie in code. It asks the process and /proc nothing itself, takes no locks, and reads
//! no memory but the copy and the mapped files. Files and copies are hostile: everything is
//! bounded.

mod bytes;
mod code;
mod expression;
mod files;
mod fold;
mod image;
mod index;
mod look_up;
mod memory;
pub mod own;
mod registers;
mod rule;
#[cfg(test)]
mod tests;
mod vdso;
mod walk;

use std::sync::Arc;

use memtrace_common::Step;

use super::files::OpenFile;
use super::maps::Row;
use crate::record::StackCopy;

use files::Files;
use look_up::Context;
use walk::Walk;

/// Most return addresses that a stack has in the end; deeper recursion is folded, and what is
/// deeper nevertheless is cut.
pub const MAX_ADDRESSES: usize = 256;
/// Most return addresses that are followed.
pub const MAX_DEPTH: usize = 512;

/// Where code is that an address lies in.
#[derive(Clone, Debug)]
pub enum Code {
    /// In a file.
    File {
        /// Which.
        file: Arc<OpenFile>,
        /// Offset of the address in it, bytes.
        offset: u64,
    },
    /// In the vDSO, this many bytes from its start.
    Vdso {
        /// Bytes.
        offset: u64,
    },
    /// Executable, but in no file: made at run time.
    Anonymous,
    /// In nothing that is executable.
    Nowhere,
    /// In a file that cannot be read.
    Unreadable {
        /// Path as the process has it.
        module: String,
        /// Why, as a sentence that names the file.
        why: String,
    },
}

impl Code {
    /// Of an address in a mapping that no file is behind; `None` where one is.
    pub(in crate::stacks) fn special(row: &Row, address: u64) -> Option<Self> {
        let named = |name: &[u8]| row.path.starts_with(name);
        match &*row.path {
            _ if row.inode != 0 => None,
            b"[vdso]" => Some(Self::Vdso { offset: address.wrapping_sub(row.start) }),
            b"" | b"[heap]" => Some(Self::Anonymous),
            _ if named(b"[anon") || named(b"[stack") => Some(Self::Anonymous),
            // Return probes' trampolines, among others.
            _ => Some(Self::Nowhere),
        }
    }
}

/// Where the code of a process is.
pub trait AddressSpace {
    /// What an address lies in. Asked with the address of the call, that is one less than the
    /// return address, since a call may be the last instruction of its mapping.
    fn find(&mut self, address: u64) -> Code;

    /// Code bytes from an address on, as many as can be had: none where the process has ended.
    /// Asked only where there is no file to read.
    fn bytes(&mut self, address: u64, into: &mut [u8]) -> usize;

    /// A file (`None`: the vDSO) is about to be read, which blocks where its file system does.
    ///
    /// # Errors
    /// A sentence, where it must not be.
    fn begin_reading(&mut self, file: Option<&OpenFile>) -> Result<(), String> {
        let _ = file;
        Ok(())
    }

    /// It was read.
    fn end_reading(&mut self) {}
}

/// What an unwound copy tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unwound {
    /// Return addresses, innermost first; the first is the copy's.
    pub addresses: Vec<u64>,
    /// Why frames are missing or may be; `None` where the outermost frame was reached and each
    /// step is certain.
    pub incomplete: Option<String>,
    /// That repetitions were left out, if they were. Not a fault.
    pub folded: Option<String>,
    /// Steps that the kernel's walk can take, by return address, each once.
    pub steps: Vec<(u64, Step)>,
}

/// What is kept at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnwinderSizes {
    /// Files that are mapped.
    pub files: usize,
    /// Rules of addresses in them.
    pub rules: usize,
    /// Memory of our own for both, bytes; pages of mapped files do not count.
    pub bytes: usize,
}

/// Unwinds copied stacks. For one thread, on which SIGBUS of files that are cut short is
/// caught.
#[derive(Debug)]
pub struct Unwinder {
    files: Files,
    context: Context,
}

impl Unwinder {
    /// Makes one, for this thread.
    #[must_use]
    pub fn new() -> Self {
        if let Err(error) = super::sigbus::guard_this_thread() {
            tracing::warn!(%error, "no SIGBUS handler: a file that is cut short ends the daemon");
        }
        Self { files: Files::default(), context: Context::default() }
    }

    /// Unwinds a copy.
    #[must_use]
    pub fn unwind(&mut self, copy: &StackCopy, space: &mut dyn AddressSpace) -> Unwound {
        Walk::new(&mut self.files, &mut self.context, copy, space).run()
    }

    /// Closes files in which nothing was looked up for a minute, and forgets their rules.
    pub fn idle(&mut self) {
        self.files.close_unused(std::time::Instant::now());
    }

    /// What is kept at the moment.
    #[must_use]
    pub fn sizes(&self) -> UnwinderSizes {
        self.files.sizes()
    }
}

impl Default for Unwinder {
    fn default() -> Self {
        Self::new()
    }
}
