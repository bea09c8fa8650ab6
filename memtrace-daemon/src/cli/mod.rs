//! Subcommands, one a file. To be written.

pub mod doctor;
