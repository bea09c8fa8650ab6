//! Intake: ring buffer bytes to typed records, and the faults that tests inject there.
//!
//! Must never interpret a record, wait for the engine, or drop what it cannot read in silence.

mod decode;
mod reader;

pub use decode::{DecodeError, decode};
pub use reader::{Pause, Reader};
