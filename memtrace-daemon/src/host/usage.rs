//! How much memory one process has, of which kind, as /proc has it. Reads are limited, and what
//! is read belongs to the process that was meant. It can block where the process hangs in a
//! driver.

use super::limits::Limits;
use super::process::{comm, read, started_at};
use super::rows::Rows;
use super::text::text;
use crate::expendable::Worker;
use crate::record::{Observation, Parent, ProcessMemory};

/// Longest of the files that are read, bytes.
const MAX_FILE: u64 = 64 << 10;

/// A process whose memory is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageAsk {
    /// Serial, for the answer.
    pub serial: u32,
    /// Thread group id.
    pub tgid: u32,
    /// Start, ns since boot.
    pub start_ns: u64,
    /// Whether to look at huge pages and at the heap as well, which takes the process' memory
    /// map under its lock.
    pub closer: bool,
}

/// Answers such questions.
#[derive(Default)]
pub(super) struct Usage {
    limits: Limits,
}

impl Worker for Usage {
    type Job = UsageAsk;
    type Out = Option<Observation>;

    fn work(&mut self, ask: &UsageAsk) -> Option<Observation> {
        let status = text(&read(ask.tgid, "status", MAX_FILE)?);
        let mut memory = parse(&status)?;
        memory.serial = ask.serial;
        if let Some(parent) = &mut memory.parent {
            parent.comm = comm(parent.tgid).unwrap_or_default();
        }
        if ask.closer {
            let rollup = read(ask.tgid, "smaps_rollup", MAX_FILE).map(|bytes| text(&bytes));
            memory.huge_bytes = rollup.and_then(|rollup| Rows::new(&rollup).get("AnonHugePages"));
            // It lies right behind the executable, among the first mappings.
            let maps = read(ask.tgid, "maps", MAX_FILE).map(|bytes| text(&bytes));
            memory.brk_bytes = maps.and_then(|maps| brk_bytes(&maps));
        }
        let cgroup = read(ask.tgid, "cgroup", MAX_FILE).map(|bytes| text(&bytes));
        memory.limit = cgroup.and_then(|lines| self.limits.of(&lines));
        // Asked last: the id cannot have been given away before.
        started_at(ask.tgid, ask.start_ns).then_some(Observation::ProcessMemory(memory))
    }
}

/// `None` for what has no memory of its own: kernel threads, and who has just ended.
fn parse(status: &str) -> Option<ProcessMemory> {
    let rows = Rows::new(status);
    let parent = rows.get("PPid").and_then(|tgid| u32::try_from(tgid).ok());
    Some(ProcessMemory {
        serial: 0,
        parent: parent.map(|tgid| Parent { tgid, comm: String::new() }),
        anonymous_bytes: rows.get("RssAnon")?,
        file_bytes: rows.get("RssFile")?,
        shared_bytes: rows.get("RssShmem")?,
        swap_bytes: rows.or_zero("VmSwap"),
        virtual_bytes: rows.get("VmSize")?,
        threads: u32::try_from(rows.get("Threads")?).unwrap_or(u32::MAX),
        huge_bytes: None,
        brk_bytes: None,
        limit: None,
    })
}

/// The size of `[heap]`.
fn brk_bytes(maps: &str) -> Option<u64> {
    let line = maps.lines().find(|line| line.ends_with(" [heap]"))?;
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).ok());
    end?.checked_sub(start?)
}

#[cfg(test)]
mod tests {
    use super::super::process::start_ns;
    use super::*;

    #[test]
    fn a_real_status_is_read() {
        let status = "Name:\tpython3\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t812\nPid:\t812\n\
                      PPid:\t17926\nVmPeak:\t 9663060 kB\nVmSize:\t 9663052 kB\n\
                      VmRSS:\t  221736 kB\nRssAnon:\t  200108 kB\nRssFile:\t   21600 kB\n\
                      RssShmem:\t      28 kB\nVmSwap:\t    4096 kB\nThreads:\t42\n";
        let memory = parse(status).unwrap();
        assert_eq!(memory.anonymous_bytes, 200_108 << 10);
        assert_eq!((memory.file_bytes, memory.shared_bytes), (21_600 << 10, 28 << 10));
        assert_eq!(memory.private_bytes(), (200_108 + 4_096) << 10);
        assert_eq!((memory.virtual_bytes, memory.threads), (9_663_052 << 10, 42));
        assert_eq!(memory.parent.unwrap().tgid, 17_926);
        assert_eq!(parse("Name:\tkthreadd\nPPid:\t0\nThreads:\t1\n"), None);
    }

    #[test]
    fn the_heap_is_found_among_the_mappings() {
        let maps = "55d0c0a00000-55d0c0a21000 r-xp 00000000 08:01 77  /usr/bin/x [heap]y\n\
                    55d0c1e00000-55d0c1e21000 rw-p 00000000 00:00 0                          [heap]\n";
        assert_eq!(brk_bytes(maps), Some(0x21000));
        assert_eq!(brk_bytes("nonsense [heap]\n"), None);
        assert_eq!(brk_bytes(""), None);
    }

    #[test]
    fn our_own_memory_grows_when_we_write_to_new_pages() {
        let tgid = std::process::id();
        let ask = UsageAsk { serial: 5, tgid, start_ns: start_ns(tgid).unwrap(), closer: true };
        let look = || match Usage::default().work(&ask) {
            Some(Observation::ProcessMemory(memory)) => memory,
            other => panic!("{other:?}"),
        };
        let before = look();
        let bytes = vec![1_u8; 64 << 20];
        let after = look();
        assert!(bytes.iter().all(|byte| *byte == 1));
        assert_eq!(after.serial, 5);
        assert!(after.private_bytes() >= before.private_bytes() + (48 << 20), "{after:?}");
        assert!(after.huge_bytes.is_some() && after.threads > 0);
        let parent = after.parent.unwrap();
        assert!(parent.tgid > 0 && !parent.comm.is_empty());
        let later = UsageAsk { start_ns: ask.start_ns + (1 << 30), ..ask };
        assert_eq!(Usage::default().work(&later).map(|_| ()), None, "another process");
    }
}
