//! What the kernel counts about our own BPF programs and maps, from the descriptors' fdinfo.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Counts of one program since it was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramStats {
    /// Runs that were skipped because the program was running on that CPU already.
    pub recursion_misses: u64,
    /// Time in the program, ns; 0 where the kernel's statistics are off.
    pub run_time_ns: u64,
    /// Runs; 0 where the kernel's statistics are off.
    pub run_count: u64,
}

impl ProgramStats {
    /// Reads the counts of a program.
    ///
    /// # Errors
    /// The system's; `InvalidData` where the descriptor is no BPF program's.
    pub fn read(program: BorrowedFd<'_>) -> io::Result<Self> {
        let text = fdinfo(program)?;
        field(&text, "prog_type").ok_or_else(|| not("program"))?;
        Ok(Self {
            // Older kernels do not count it.
            recursion_misses: field(&text, "recursion_misses").unwrap_or(0),
            run_time_ns: field(&text, "run_time_ns").unwrap_or(0),
            run_count: field(&text, "run_cnt").unwrap_or(0),
        })
    }
}

/// Bytes of kernel memory that a map takes.
///
/// # Errors
/// The system's; `InvalidData` where the descriptor is no BPF map's.
pub fn map_bytes(map: BorrowedFd<'_>) -> io::Result<u64> {
    let text = fdinfo(map)?;
    field(&text, "map_type").ok_or_else(|| not("map"))?;
    Ok(field(&text, "memlock").unwrap_or(0))
}

fn fdinfo(fd: BorrowedFd<'_>) -> io::Result<String> {
    std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok();
    text.lines().find_map(value)
}

fn not(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the descriptor is no BPF {what}'s"))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "pos:\t0\nprog_type:\t26\nrun_time_ns:\t77\nrun_cnt:\t3\nrecursion_misses:\t5\n";
        assert_eq!(field(text, "recursion_misses"), Some(5));
        assert_eq!(field(text, "run_cnt"), Some(3));
        assert_eq!(field(text, "run"), None);
    }

    #[test]
    fn a_descriptor_of_something_else_is_an_error() {
        let file = std::fs::File::open("/proc/self/comm").unwrap();
        let error = ProgramStats::read(file.as_fd()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(map_bytes(file.as_fd()).unwrap_err().to_string().contains("map"));
    }
}
