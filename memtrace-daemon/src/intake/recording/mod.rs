//! Recordings: the stream of records in a file, in the order in which the engine took them in.
//!
//! Must never interpret a record, make the engine wait for the disk, lose records in silence, or
//! believe a file: what is read was perhaps cut off, damaged or made by somebody else.
//!
//! A file is [`MAGIC`], the version of its format, and frames. The first frame is a header that
//! whoever records gives and that nobody here looks into; others hold many records each, say that
//! records are missing, or end the file. A frame is whole or it is not there: its head and what
//! it holds have checksums of their own.

mod format;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use format::{MAGIC, VERSION};
pub use reader::{Part, Recording, RecordingError};
pub use writer::{Recorder, Writing, Written};
