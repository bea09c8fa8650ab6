//! Static probes (USDT): places inside a library that its authors have named, with their
//! arguments, in a note of the file.
//!
//! Notes are hostile input, like everything in a file: every size is bounded, and what is not
//! understood is refused with a sentence. Must never give a place that is not an instruction that
//! does nothing: a probe anywhere else could change what the program does.

mod arguments;
mod firing;
mod notes;
mod registers;

use std::fs::File;

use memtrace_common::{FunctionId, UsdtPoint};

pub use arguments::{ArgumentError, arguments};
pub use firing::{Firing, FiringProgram, PointMap};
pub use notes::{MAX_PLACES, Note, notes};

use super::elf::ElfError;
use crate::catalog::Function;

/// One place of a static probe of the catalog, ready to be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The probe.
    pub function: FunctionId,
    /// Where in the file its instruction is, bytes.
    pub offset: u64,
    /// Where in the file its semaphore is, bytes: the program fires only while that counter is
    /// not 0.
    pub semaphore: Option<u64>,
    /// Where its arguments are.
    pub point: UsdtPoint,
}

/// Static probes of the catalog that a file has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Where they are.
    pub places: Vec<Place>,
    /// Probes that the file does not have.
    pub missing: Vec<&'static str>,
    /// Probes that it has, and why they cannot be used.
    pub refused: Vec<(&'static str, String)>,
}

/// Finds static probes of the catalog in a file. One that cannot be read at any one of its places
/// is refused as a whole: half of its calls would be no books.
///
/// # Errors
/// That it cannot be read, is no ELF file, or is broken.
pub fn find<'f>(
    file: &File,
    probes: impl IntoIterator<Item = &'f Function>,
) -> Result<Places, ElfError> {
    let notes = notes(file)?;
    let mut found = Places::default();
    for probe in probes {
        let (provider, name) = probe.symbol.split_once(':').unwrap_or_default();
        let mut own =
            notes.iter().filter(|note| note.provider == provider && note.name == name).peekable();
        if own.peek().is_none() {
            found.missing.push(probe.symbol);
            continue;
        }
        match own.map(|note| place(probe, note)).collect::<Result<Vec<_>, _>>() {
            Ok(places) => found.places.extend(places),
            Err(why) => found.refused.push((probe.symbol, why)),
        }
    }
    Ok(found)
}

fn place(probe: &Function, note: &Note) -> Result<Place, String> {
    let location = note.place.clone()?;
    let arguments = arguments(&note.arguments);
    let argument = |number: u8| {
        let argument = arguments.get(usize::from(number)).ok_or_else(|| {
            format!("it has no argument {number}: `{}`", note.arguments.escape_debug())
        })?;
        argument.clone().map_err(|error| error.to_string())
    };
    let size = if probe.allocates() { argument(probe.spec.size_a)? } else { Default::default() };
    Ok(Place {
        function: probe.id,
        offset: location.offset,
        semaphore: location.semaphore,
        point: UsdtPoint { pointer: argument(probe.spec.pointer_argument)?, size },
    })
}

#[cfg(test)]
pub(super) mod tests;
