//! Attachment: loads the kernel side, finds the files to probe, attaches to each once, and
//! says what is covered and what is not.
//!
//! Nothing here knows the books (`ledger/`, `verdict/`): it hands out file descriptors and
//! coverage rows. A file is recognised by what it exports, never by its name.

pub mod abilities;
pub mod btf;
pub mod ceiling;
pub mod coverage;
pub mod deadline;
pub mod discover;
pub mod elf;
pub mod error;
pub mod inspect;
mod ld_cache;
pub mod libraries;
mod looked;
pub mod mappings;
pub mod memory;
mod misses;
pub mod multi;
pub mod object;
pub mod options;
pub mod perf;
mod plain;
pub mod policy;
pub mod preattach;
pub mod probing;
pub mod rest;
mod ring;
pub mod survey;
pub mod symbols;
pub mod sys;
#[cfg(test)]
mod test_files;
#[cfg(test)]
mod test_programs;
pub mod thread;
pub mod tracer;
pub mod usdt;
mod users;
pub mod watch;
