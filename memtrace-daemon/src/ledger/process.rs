//! Processes: who they are, whether they run, and which accounts and spaces are theirs.
//!
//! Keyed by serial, never by pid, so that a pid that is used again cannot mix books.

use memtrace_common::{ProcessEntry, ProcessFlags};

/// What a person calls a process, as observed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Arguments joined by spaces.
    pub cmdline: Option<String>,
    /// Path of its cgroup.
    pub cgroup: Option<String>,
    /// Resident bytes at first sight.
    pub rss_bytes: Option<u64>,
    /// Device bytes at first sight, by NVML.
    pub device_bytes: Option<u64>,
    /// Whether it ran before memtrace was attached.
    pub before_attach: bool,
}

/// The books of one process.
#[derive(Debug)]
pub struct ProcessBooks {
    /// Its serial.
    pub serial: u32,
    /// What the kernel side says; `None` while only its accounts have come.
    pub entry: Option<ProcessEntry>,
    /// What the host says.
    pub facts: Facts,
    /// When its end was told, monotonic ns.
    pub ended_ns: Option<u64>,
    /// Its kernel accounts.
    pub accounts: Vec<usize>,
    /// Its address spaces, closed ones included.
    pub spaces: Vec<u32>,
    /// Whether the kernel side was told to forget it.
    pub(super) released: bool,
}

impl ProcessBooks {
    pub(super) fn new(serial: u32) -> Self {
        Self {
            serial,
            entry: None,
            facts: Facts::default(),
            ended_ns: None,
            accounts: Vec::new(),
            spaces: Vec::new(),
            released: false,
        }
    }

    /// Whether its last thread has ended.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ended_ns.is_some()
    }

    /// Thread group id in the initial pid namespace; 0 while unknown.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.entry.map_or(0, |entry| entry.key.tgid)
    }

    /// Whether it is a kernel thread.
    #[must_use]
    pub fn kernel_thread(&self) -> bool {
        self.entry.is_some_and(|entry| entry.flags & ProcessFlags::KERNEL_THREAD != 0)
    }

    /// Whether this process has moved on from an address space of its own.
    pub(super) fn has_left(&self, space: u32) -> bool {
        let moved_on = self.entry.is_some_and(|entry| {
            // Spaces are numbered in the order of their making.
            entry.space_owner == self.serial && entry.space > space
        });
        moved_on || self.ended()
    }

    /// What it has in common with others of the same program in the same cgroup.
    #[must_use]
    pub fn service(&self) -> FoldedKey {
        let entry = self.entry.unwrap_or_default();
        FoldedKey { comm: entry.comm, cgroup: entry.cgroup }
    }
}

/// What processes of one program in one cgroup have in common: the name of a service, and of
/// ended processes that are not kept one by one any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FoldedKey {
    /// The name, NUL-padded.
    pub comm: [u8; 16],
    /// Cgroup id.
    pub cgroup: u64,
}

/// Kernel memory that outlives the books of the processes that took it.
#[derive(Debug, Default)]
pub struct Folded {
    /// The accounts, all with live memory when they came here.
    pub accounts: Vec<usize>,
    /// Path of the cgroup.
    pub cgroup: Option<String>,
    /// The last end among the processes, ns since boot.
    pub ended_boot_ns: u64,
    /// The same, monotonic ns.
    pub ended_ns: u64,
}

/// A name as text: bytes that are not UTF-8 are escaped, never dropped.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let mut text = String::new();
    for chunk in bytes.get(..end).unwrap_or_default().utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn a_name_is_escaped_and_never_dropped() {
        assert_eq!(text(b"python3\0\0\0"), "python3");
        assert_eq!(text(b"caf\xc3\xa9"), "café");
        assert_eq!(text(b"a\xff\x01b"), "a\\xff\u{1}b");
    }
}
