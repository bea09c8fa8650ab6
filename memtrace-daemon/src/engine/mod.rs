//! The engine: one owner of the books, which publishes immutable snapshots.
//!
//! [`Core`] is the pure part: records in, books and pictures out. It does no I/O and reads no
//! clock, so that a recording replays to the same findings.

mod call_rows;
mod core;
mod coverage;
mod devices;
mod finding;
mod host;
mod kernel_rows;
mod latency;
mod levels;
mod measured;
#[cfg(test)]
mod measured_rules;
mod picture;
pub mod policy;
mod pools;
mod row;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod stack_rules;
pub mod task;
#[cfg(test)]
mod tests;
mod todo;

pub use core::{Core, CoreConfig, Setting};
pub use measured::Wanted;
