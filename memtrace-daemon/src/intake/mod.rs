//! Intake: ring buffer bytes to typed records, the faults that tests inject there, and recordings
//! of what the engine was told.
//!
//! Must never interpret a record, wait for the engine, or drop what it cannot read in silence.

mod bell;
mod call;
mod decode;
mod reader;
pub mod recording;

pub use bell::Bell;
pub(crate) use call::INNER;
pub use decode::{DecodeError, Item, decode};
pub use reader::{Pause, Reader};
