//! What the programs noted of their own stacks, by glibc's `backtrace()`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;

/// A line of a program.
#[derive(Clone, Debug, Deserialize)]
pub struct Notes {
    /// Its process id.
    pub pid: u32,
    /// The notes, in the order of the calls.
    pub notes: Vec<Note>,
}

/// The stack of one call.
#[derive(Clone, Debug, Deserialize)]
pub struct Note {
    /// What the call is an example of.
    pub name: String,
    /// Bytes that it allocated: no other call of the program did.
    pub bytes: u64,
    /// The stack, innermost first.
    pub frames: Vec<Place>,
}

/// A return address.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Place {
    /// The file as the loader names it; empty where the code is in none.
    pub module: PathBuf,
    /// Offset in the file.
    pub offset: u64,
    /// Address as the file was linked.
    pub address: u64,
}

impl Notes {
    /// Reads a line, and follows symbolic links of its files: mappings show none.
    ///
    /// # Errors
    ///
    /// When it is something else.
    pub fn parse(line: &Value) -> anyhow::Result<Self> {
        let mut notes: Self = serde_json::from_value(line.clone())
            .with_context(|| format!("no notes: {line:.200}"))?;
        for place in notes.notes.iter_mut().flat_map(|note| &mut note.frames) {
            if let Ok(path) = std::fs::canonicalize(&place.module) {
                place.module = path;
            }
        }
        Ok(notes)
    }

    /// The note of this name.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn named(&self, name: &str) -> anyhow::Result<&Note> {
        self.notes
            .iter()
            .find(|note| note.name == name)
            .with_context(|| format!("no note {name:?}"))
    }
}

impl Note {
    /// Whether a frame was interrupted by a signal: then its address is that of the instruction
    /// itself, and not the one behind a call.
    #[must_use]
    pub fn interrupted(&self, index: usize) -> bool {
        let before = index.checked_sub(1).and_then(|before| self.frames.get(before));
        before.is_some_and(is_signal_return)
    }
}

/// `mov $15,%rax; syscall`: what a signal handler returns to.
const SIGNAL_RETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

fn is_signal_return(place: &Place) -> bool {
    read_at(&place.module, place.offset).is_ok_and(|bytes| bytes == SIGNAL_RETURN)
}

fn read_at(path: &Path, offset: u64) -> std::io::Result<[u8; 9]> {
    use std::os::unix::fs::FileExt;
    let mut bytes = [0; 9];
    std::fs::File::open(path)?.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}
