//! Snapshot to text, JSON and folded stacks.
//!
//! Invariant: reads a snapshot and nothing else, neither files nor clocks, so a saved
//! snapshot prints the same everywhere. Everything that came from a traced process is escaped
//! before it reaches a terminal.

pub mod escape;
pub mod filter;
#[cfg(test)]
pub(crate) mod fixture;
pub mod folded;
pub mod frames;
pub mod human;
pub mod summary;
pub mod table;
pub mod text;

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
    /// pprof's protobuf. Not in this version.
    Pprof,
    /// A flame graph. Not in this version.
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
            Self::Pprof => "application/vnd.google.protobuf",
            Self::Svg => "image/svg+xml",
        }
    }

    /// Whether this version can write it; to be asked before anything is traced.
    ///
    /// # Errors
    ///
    /// [`RenderError::NotYet`].
    pub const fn supported(self) -> Result<(), RenderError> {
        match self {
            Self::Text | Self::Json | Self::Folded => Ok(()),
            Self::Pprof | Self::Svg => Err(RenderError::NotYet(self)),
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

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The format is in the command line and not in this version.
    #[error("this version cannot write {0}; use folded (`inferno-flamegraph` makes an SVG of it)")]
    NotYet(Format),
    /// The report could not be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// Writes a snapshot.
///
/// `width` is the number of columns of the terminal that will show it; `None` for a file,
/// where lines are as long as they are.
///
/// # Errors
///
/// A format that this version cannot write, or what came back from writing.
pub fn render(
    snapshot: &Snapshot,
    format: Format,
    filter: &Filter,
    width: Option<usize>,
    out: &mut dyn Write,
) -> Result<(), RenderError> {
    format.supported()?;
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
        Format::Text | Format::Pprof | Format::Svg => text::write(&snapshot, width, out)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests;
