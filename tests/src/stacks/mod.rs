//! Stacks held against what the traced programs know of themselves: the programs in every
//! flavour, their notes, independent names of their functions, the comparison and its table.
//!
//! Nothing here may use memtrace's own code: what is compared must be found out twice.

pub mod build;
pub mod compare;
pub mod names;
pub mod notes;
pub mod programs;
