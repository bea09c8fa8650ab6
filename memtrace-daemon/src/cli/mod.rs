//! The subcommands, one file each. `main.rs` parses, wires and exits; nothing here decides
//! anything about memory.

pub mod args;
pub mod client;
pub mod dump;
pub mod output;
pub mod status;
