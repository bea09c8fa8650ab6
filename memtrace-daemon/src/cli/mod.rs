//! The subcommands, one file each. `main.rs` parses, wires and exits; nothing here decides
//! anything about memory.

pub mod args;
pub mod doctor;
