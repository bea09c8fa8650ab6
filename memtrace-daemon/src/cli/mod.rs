//! The subcommands, one file each. `main.rs` parses, wires and exits; nothing here decides
//! anything about memory.

pub mod args;
pub mod attach;
pub mod client;
pub mod command;
pub mod control;
pub mod daemon;
pub mod doctor;
pub mod dump;
pub mod launch;
pub mod line;
pub mod output;
pub mod record;
pub mod recording;
pub mod replay;
pub mod run;
pub mod session;
pub mod status;
pub mod top;
pub mod traced;
pub mod user;
