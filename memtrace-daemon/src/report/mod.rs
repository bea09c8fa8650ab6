//! Snapshot to text, JSON, folded stacks, flame graph and profile.
//!
//! Invariant: reads a snapshot and nothing else, neither files nor clocks, so a saved
//! snapshot prints the same everywhere. Everything that came from a traced process is escaped
//! before it reaches a terminal.

pub mod coverage;
pub mod escape;
pub mod filter;
#[cfg(test)]
pub(crate) mod fixture;
pub mod folded;
pub mod frames;
pub mod pprof;
pub mod summary;
pub mod svg;
pub mod table;
pub mod text;
pub mod tree;
pub mod words;

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

pub use filter::Filter;

use crate::snapshot::Snapshot;

/// What a report is written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// Everything, schema 1.
    Json,
    /// One line a stack, for flame graphs; weights are live bytes.
    Folded,
    /// A gzipped profile for `pprof` and profile stores.
    Pprof,
    /// A flame graph of live bytes, for a browser.
    Svg,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 5] = [Self::Text, Self::Json, Self::Folded, Self::Pprof, Self::Svg];

    /// The name that the command line and the socket use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::Folded => "folded",
            Self::Pprof => "pprof",
            Self::Svg => "svg",
        }
    }

    /// The media type for HTTP.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Text | Self::Folded => "text/plain; charset=utf-8",
            Self::Json => "application/json",
            // As Go's /debug/pprof sends it: the gzip is the file's, not the transfer's.
            Self::Pprof => "application/octet-stream",
            Self::Svg => "image/svg+xml",
        }
    }

    /// Whether a terminal can show it.
    #[must_use]
    pub const fn for_terminals(self) -> bool {
        match self {
            Self::Text | Self::Json | Self::Folded => true,
            Self::Pprof | Self::Svg => false,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| {
            format!("unknown format `{text}`; choose from text, json, folded, pprof, svg")
        })
    }
}

/// Writes a snapshot.
///
/// `width` is the number of columns of the terminal that will show it; `None` for a file,
/// where lines are as long as they are.
///
/// # Errors
///
/// What came back from writing.
pub fn render(
    snapshot: &Snapshot,
    format: Format,
    filter: &Filter,
    width: Option<usize>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let snapshot = filter.apply(snapshot);
    match format {
        Format::Json => {
            let mut out = io::BufWriter::new(out);
            match width {
                Some(_) => serde_json::to_writer_pretty(&mut out, &*snapshot),
                None => serde_json::to_writer(&mut out, &*snapshot),
            }
            .map_err(io::Error::from)?;
            out.write_all(b"\n")?;
            out.flush()?;
        }
        Format::Folded => folded::write(&snapshot, out)?,
        Format::Text => text::write(&snapshot, width, out)?,
        Format::Pprof => pprof::write(&snapshot, filter, out)?,
        Format::Svg => svg::write(&snapshot, filter, out)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests;
