//! What /proc says of one process: for a person to know it by, and for its baseline. Every
//! read is limited, and what is read belongs to the process that was meant, not to a later
//! one with the same id.

use std::fs::File;
use std::io::Read;

use super::cgroup;
use super::text::text;
use crate::record::Observation;

/// Longest command line, bytes.
const MAX_CMDLINE: u64 = 4_096;
/// Longest of the other files, bytes.
const MAX_FILE: u64 = 64 << 10;
/// /proc counts start times in units of this many ns (`USER_HZ` is 100 on all of Linux).
const TICK_NS: u64 = 10_000_000;

/// A process that facts are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessAsk {
    /// Serial, for the answer.
    pub serial: u32,
    /// Thread group id.
    pub tgid: u32,
    /// Start, ns since boot, where it is known.
    pub start_ns: Option<u64>,
    /// Whether it ran before memtrace was attached, for the answer.
    pub before_attach: bool,
}

impl ProcessAsk {
    /// Reads the facts. Can block where the process hangs in a driver.
    #[must_use]
    pub fn look(&self) -> Observation {
        let Self { serial, tgid, start_ns, before_attach } = *self;
        let (cmdline, cgroup, rss_bytes) = (cmdline(tgid), cgroup(tgid), rss_bytes(tgid));
        // Asked last: the id cannot have been given away before.
        if start_ns.is_some_and(|start_ns| !started_at(tgid, start_ns)) {
            return self.unknown();
        }
        Observation::ProcessFacts { serial, cmdline, cgroup, rss_bytes, before_attach }
    }

    /// The answer where nothing could be read.
    #[must_use]
    pub fn unknown(&self) -> Observation {
        let Self { serial, before_attach, .. } = *self;
        let (cmdline, cgroup, rss_bytes) = (None, None, None);
        Observation::ProcessFacts { serial, cmdline, cgroup, rss_bytes, before_attach }
    }
}

/// Whether the process with this id is the one that started at `start_ns` since boot.
#[must_use]
pub fn started_at(tgid: u32, start_ns: u64) -> bool {
    start_ticks(tgid).is_some_and(|ticks| ticks == start_ns / TICK_NS)
}

/// Start of a process, ns since boot, to 10 ms; `None` where it has ended.
#[must_use]
pub fn start_ns(tgid: u32) -> Option<u64> {
    Some(start_ticks(tgid)? * TICK_NS)
}

/// The hidden first argument of the process that waits to become a traced command; two
/// descriptors, the user and the command follow it.
pub const LAUNCH: &str = "__launch";

/// Arguments joined by spaces; `None` for kernel threads and where they cannot be read.
#[must_use]
pub fn cmdline(tgid: u32) -> Option<String> {
    joined(&read(tgid, "cmdline", MAX_CMDLINE)?)
}

fn joined(bytes: &[u8]) -> Option<String> {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    // A command that ended at once was asked about while it still waited to be one.
    let mut arguments = bytes.splitn(6, |byte| *byte == 0);
    let bytes = match arguments.nth(1) {
        Some(first) if first == LAUNCH.as_bytes() => arguments.nth(3).unwrap_or_default(),
        _ => bytes,
    };
    let joined: Vec<u8> = bytes.iter().map(|byte| if *byte == 0 { b' ' } else { *byte }).collect();
    Some(text(&joined)).filter(|line| !line.is_empty())
}

/// Path of its cgroup.
#[must_use]
pub fn cgroup(tgid: u32) -> Option<String> {
    cgroup::path(&text(&read(tgid, "cgroup", MAX_FILE)?))
}

/// Resident bytes (RSS).
#[must_use]
pub fn rss_bytes(tgid: u32) -> Option<u64> {
    let statm = read(tgid, "statm", MAX_FILE)?;
    let pages: u64 = text(&statm).split(' ').nth(1)?.parse().ok()?;
    let page = u64::try_from(rustix::param::page_size()).ok()?;
    pages.checked_mul(page).filter(|bytes| *bytes > 0)
}

fn start_ticks(tgid: u32) -> Option<u64> {
    let stat = read(tgid, "stat", MAX_FILE)?;
    // The name, in parentheses, may hold anything; field 3 follows the last one.
    let behind = stat.iter().rposition(|byte| *byte == b')')? + 2;
    text(stat.get(behind..)?).split(' ').nth(19)?.parse().ok()
}

/// Name of its leader; `None` where it has ended.
#[must_use]
pub fn comm(tgid: u32) -> Option<String> {
    Some(text(read(tgid, "comm", MAX_FILE)?.trim_ascii_end()))
}

/// At most `limit` bytes of one of its files.
pub(super) fn read(tgid: u32, name: &str, limit: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{tgid}/{name}")).ok()?;
    file.take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_launcher_is_called_by_its_command() {
        let called = |bytes: &[u8]| joined(bytes);
        assert_eq!(called(b"a\0b c\0").as_deref(), Some("a b c"));
        assert_eq!(
            called(b"memtrace\0__launch\0\x39\0\x31\x33\0\0ls\0-l\0").as_deref(),
            Some("ls -l")
        );
        assert_eq!(called(b"memtrace\0__launch\0").as_deref(), None);
        assert_eq!(called(b""), None);
    }

    #[test]
    fn facts_of_a_child_whose_arguments_are_not_utf8() {
        let argument = std::ffi::OsStr::from_bytes(b"6\xff0");
        let mut command = Command::new("sh");
        command.args(["-c", "read x", "a b"]).arg(argument);
        let child = child_with_pipe(&mut command);
        let pid = child.0.id();
        let start_ns = start_ns(pid).unwrap();
        let ask =
            ProcessAsk { serial: 3, tgid: pid, start_ns: Some(start_ns), before_attach: false };
        let facts = ask.look();
        let other = ProcessAsk { start_ns: Some(start_ns + TICK_NS), ..ask }.look();
        drop(child);
        let Observation::ProcessFacts { serial, cmdline, cgroup, rss_bytes, before_attach } = facts
        else {
            panic!("{facts:?}")
        };
        assert_eq!((serial, before_attach), (3, false));
        assert_eq!(cmdline.unwrap(), "sh -c read x a b 6\\xff0");
        assert!(cgroup.unwrap().starts_with('/'));
        assert!(rss_bytes.unwrap() > 0);
        let Observation::ProcessFacts { cmdline: None, rss_bytes: None, .. } = other else {
            panic!("a process that started later was taken for it: {other:?}")
        };
        assert_eq!(super::start_ns(pid), None);
    }

    /// A child that waits for its standard input, ended and reaped when dropped.
    struct Waiting(std::process::Child);

    impl Drop for Waiting {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            self.0.wait().unwrap();
        }
    }

    fn child_with_pipe(command: &mut Command) -> Waiting {
        let mut child = command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // spawn returns in the middle of exec, before the arguments are in place.
        while cmdline(child.id()).is_none() {
            assert!(child.try_wait().unwrap().is_none());
        }
        Waiting(child)
    }
}
