//! Rules that people use today, behind the same interface as memtrace's own, for comparison only.
//!
//! Nothing that memtrace says to a person comes from here: `cargo xtask bench verdict` measures
//! them beside it. Each is as its source describes it, with what was simplified said at the top
//! of its file. They know live bytes over time and nothing else, once a window of ten seconds,
//! of each row, each process and each service.

mod levels;
mod outstanding;
mod quartile;
mod regression;
#[cfg(test)]
mod tests;

pub use outstanding::Outstanding;
pub use quartile::Quartile;
pub use regression::Regression;
