//! Attachment: loads the kernel side, finds the files to probe, attaches to each once, and
//! says what is covered and what is not.
//!
//! Nothing here knows the books (`ledger/`, `verdict/`): it hands out file descriptors and
//! coverage rows. A file is recognised by what it exports, never by its name.

pub mod abilities;
pub mod btf;
pub mod elf;
pub mod memory;
pub mod multi;
pub mod object;
pub mod options;
pub mod perf;
pub mod probing;
pub mod symbols;
pub mod sys;
#[cfg(test)]
mod test_files;
#[cfg(test)]
mod test_programs;
