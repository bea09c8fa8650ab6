//! Perf maps: the files in which run-time compilers (CPython with `-X perf`, node with
//! `--perf-basic-prof`) say which function is where in anonymous memory.
//!
//! The file is the process' own, so it is hostile: only a regular file of the process' user, of
//! a bounded size, reached without a symbolic link through the process' own root; it is never
//! opened before it is known to be one, and memory is bounded whatever it says.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;

use rustc_hash::FxHashMap;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::jit::JitName;
use crate::host::text::{limited, text};

/// Largest file that is read, bytes. The largest node programs write tens of MB.
const MAX_FILE: u64 = 64 << 20;
/// Longest line, bytes.
const MAX_LINE: u64 = 4_096;
/// Longest name kept, bytes.
const MAX_NAME: usize = 512;
/// Most functions of one process: 2.5 MB.
const MAX_ENTRIES: usize = 65_536;
/// Most bytes of names of one process.
const MAX_NAMES: usize = 4 << 20;
/// Most bytes of all processes' maps, as [`Table::bytes`] estimates them.
const MAX_BYTES: usize = 12 << 20;
/// A file that begins with so many bytes of something else is no perf map.
const MAX_GARBAGE: usize = 64 << 10;
/// Most bytes of /proc/PID/status.
const MAX_STATUS: u64 = 64 << 10;

/// The maps of the processes whose run-time code was met, by address space.
#[derive(Debug, Default)]
pub struct PerfMaps {
    tables: FxHashMap<u32, Table>,
    clock: u64,
}

impl PerfMaps {
    /// The function at an address, by what was read so far.
    pub fn find(&mut self, space: u32, address: u64) -> Option<JitName> {
        self.clock += 1;
        let table = self.tables.get_mut(&space)?;
        table.used = self.clock;
        table.find(address).map(JitName::parse)
    }

    /// Reads what has been added to the file of a process since it was read last. Can block
    /// where the process' file system does.
    ///
    /// # Errors
    /// Why it is not read, for a frame's reason; `None` where there is no such file.
    pub fn read(&mut self, tgid: u32, space: u32) -> Result<(), Option<String>> {
        let (path, file) = open(tgid)?;
        self.clock += 1;
        let table = self.tables.entry(space).or_default();
        table.used = self.clock;
        let result = table.read(file).map_err(|why| Some(format!("{path} {why}")));
        self.make_room(space);
        result
    }

    /// Drops the maps used longest ago, but for this space's, until all have room.
    fn make_room(&mut self, space: u32) {
        while self.tables.values().map(Table::bytes).sum::<usize>() > MAX_BYTES {
            let others = self.tables.iter().filter(|(id, _)| **id != space);
            let Some(oldest) = others.min_by_key(|(_, table)| table.used).map(|(id, _)| *id) else {
                break;
            };
            self.tables.remove(&oldest);
        }
    }
}

/// Opens the perf map of a process, if it has one that may be read.
fn open(tgid: u32) -> Result<(String, File), Option<String>> {
    let Owner { pid, uids } = owner(tgid).ok_or(None)?;
    let name = format!("tmp/perf-{pid}.map");
    let path = format!("its perf map /{name}");
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = format!("/proc/{tgid}/root");
    let root = rustix::fs::openat(CWD, &root, flags | OFlags::DIRECTORY, Mode::empty())
        .map_err(|_| None)?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::NOFOLLOW;
    let handle = match rustix::fs::openat2(&root, &name, flags, Mode::empty(), resolve) {
        Ok(handle) => handle,
        Err(Errno::NOENT) => return Err(None),
        Err(Errno::LOOP) => {
            return Err(Some(format!("{path} is not read: there is a symbolic link in the way")));
        }
        Err(error) => return Err(Some(format!("{path} cannot be opened: {error}"))),
    };
    let stat = rustix::fs::fstat(&handle)
        .map_err(|error| Some(format!("{path} cannot be looked at: {error}")))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Symlink => return Err(Some(format!("{path} is not read: a symbolic link"))),
        _ => return Err(Some(format!("{path} is not read: not a regular file"))),
    }
    if stat.st_uid != 0 && !uids.contains(&stat.st_uid) {
        return Err(Some(format!("{path} is not read: it belongs to user {}", stat.st_uid)));
    }
    // The handle is this very file, which is regular: to open it cannot block on a writer.
    let file = File::open(format!("/proc/self/fd/{}", handle.as_raw_fd()))
        .map_err(|error| Some(format!("{path} cannot be read: {error}")))?;
    Ok((path, file))
}

/// A process as it sees itself.
#[derive(Debug, PartialEq, Eq)]
struct Owner {
    /// Its id in the innermost pid namespace.
    pid: u32,
    /// Its real, effective, saved and file system user ids.
    uids: Vec<u32>,
}

fn owner(tgid: u32) -> Option<Owner> {
    let mut status = Vec::new();
    let file = File::open(format!("/proc/{tgid}/status")).ok()?;
    file.take(MAX_STATUS).read_to_end(&mut status).ok()?;
    parse_owner(&text(&status))
}

fn parse_owner(status: &str) -> Option<Owner> {
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
    let pid = line("NSpid:").or_else(|| line("Pid:"))?.split_whitespace().last()?;
    let uids = line("Uid:")?.split_whitespace().filter_map(|uid| uid.parse().ok());
    Some(Owner { pid: pid.parse().ok()?, uids: uids.collect() })
}

/// The map of one process, as far as it was read.
#[derive(Debug, Default)]
struct Table {
    /// By first address; none overlap.
    functions: BTreeMap<u64, Function>,
    /// All names, one after the other.
    names: String,
    /// Device and inode of the file.
    file: Option<(u64, u64)>,
    /// Bytes of it that were read.
    behind: u64,
    used: u64,
}

#[derive(Clone, Copy, Debug)]
struct Function {
    end: u64,
    name: u32,
    length: u16,
}

impl Table {
    fn bytes(&self) -> usize {
        self.functions.len() * 40 + self.names.capacity()
    }

    fn find(&self, address: u64) -> Option<&str> {
        let (_, function) = self.functions.range(..=address).next_back()?;
        if address >= function.end {
            return None;
        }
        let start = usize::try_from(function.name).ok()?;
        self.names.get(start..start + usize::from(function.length))
    }

    /// Reads on behind what was read; from the beginning where it is another file by now.
    fn read(&mut self, mut file: File) -> Result<(), String> {
        let stat = rustix::fs::fstat(&file).map_err(|error| format!("is gone: {error}"))?;
        let (id, size) = ((stat.st_dev, stat.st_ino), u64::try_from(stat.st_size).unwrap_or(0));
        if size > MAX_FILE {
            return Err(format!("is not read: larger than {} MiB", MAX_FILE >> 20));
        }
        if self.file != Some(id) || size < self.behind {
            *self = Self { file: Some(id), used: self.used, ..Self::default() };
        }
        if size == self.behind {
            return Ok(());
        }
        let start = SeekFrom::Start(self.behind);
        file.seek(start).map_err(|error| format!("cannot be read: {error}"))?;
        self.lines(BufReader::with_capacity(64 << 10, file.take(size - self.behind)))
    }

    fn lines(&mut self, mut reader: impl BufRead) -> Result<(), String> {
        let (mut line, mut garbage) = (Vec::new(), 0);
        loop {
            line.clear();
            let read = (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line);
            let read = read.map_err(|error| format!("cannot be read: {error}"))?;
            let whole = line.ends_with(b"\n");
            // The last line may still be being written.
            if read == 0 || !whole && (read as u64) < MAX_LINE {
                return Ok(());
            }
            self.behind = self.behind.saturating_add(read as u64);
            if self.functions.len() >= MAX_ENTRIES || self.names.len() >= MAX_NAMES {
                return Err("is not read to its end: too many functions".into());
            }
            if self.line(&line).is_none() && self.functions.is_empty() {
                garbage += read;
                if garbage > MAX_GARBAGE {
                    return Err("is not read: it is no perf map".into());
                }
            }
        }
    }

    /// `START SIZE name`, both in hexadecimal. A later line replaces what it overlaps.
    fn line(&mut self, line: &[u8]) -> Option<()> {
        let line = line.trim_ascii();
        let (start, rest) = number(line)?;
        let (size, name) = number(rest)?;
        let end =
            start.checked_add(size).filter(|end| start != 0 && *end < 1 << 47 && size != 0)?;
        let name = name.trim_ascii();
        if name.is_empty() {
            return None;
        }
        let name = limited(text(name), MAX_NAME);
        let overlapping = self.functions.range(..end).rev();
        let overlapping = overlapping.take_while(|(_, function)| function.end > start);
        let overlapping: Vec<u64> = overlapping.map(|(first, _)| *first).collect();
        for first in overlapping {
            self.functions.remove(&first);
        }
        let at = u32::try_from(self.names.len()).ok()?;
        self.names.push_str(&name);
        let length = u16::try_from(name.len()).ok()?;
        self.functions.insert(start, Function { end, name: at, length });
        Some(())
    }
}

/// A hexadecimal number and what is behind it.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let text = text.trim_ascii_start();
    let text = text.strip_prefix(b"0x").unwrap_or(text);
    let end = text.iter().position(u8::is_ascii_whitespace)?;
    let (digits, rest) = text.split_at_checked(end)?;
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    Some((u64::from_str_radix(digits, 16).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn table(text: &str) -> (Table, Result<(), String>) {
        let mut table = Table::default();
        let result = table.lines(text.as_bytes());
        (table, result)
    }

    #[test]
    fn later_lines_win_and_odd_ones_are_passed_over() {
        let (table, result) = table(
            "1000 100 first\n0x2000 0x10 second one\nnonsense\n2004 ffffffffffffffff huge\n\
             +7000 10 signed\n1080 100 third\n3000 0 empty\n4000 10 \n5000 10 not whole",
        );
        assert_eq!(result, Ok(()));
        let at = |address| table.find(address);
        assert_eq!((at(0x1010), at(0x10ff), at(0x117f)), (None, Some("third"), Some("third")));
        assert_eq!(
            (at(0x2000), at(0x200f), at(0x2010)),
            (Some("second one"), Some("second one"), None)
        );
        assert_eq!((at(0x3000), at(0x4000), at(0x5000), at(0x7000)), (None, None, None, None));
    }

    #[test]
    fn garbage_and_floods_are_bounded() {
        let garbage = "no map at all\n".repeat(MAX_GARBAGE);
        let (_, result) = table(&garbage);
        assert_eq!(result, Err("is not read: it is no perf map".into()));
        let (_, result) = table(&"x".repeat(1 << 20));
        assert!(result.is_err());
        let mut flood = String::new();
        for number in 1..2 * MAX_ENTRIES {
            flood.push_str(&format!("{:x} 10 f{number}\n", number * 16));
        }
        let (table, result) = table(&flood);
        assert!(result.unwrap_err().contains("too many functions"));
        assert_eq!(table.functions.len(), MAX_ENTRIES);
        assert_eq!(table.find(16), Some("f1"));
    }

    #[test]
    fn the_innermost_id_and_all_users_are_read() {
        let status = "Name:\tx\nPid:\t77\nUid:\t1\t2\t3\t4\nNSpid:\t77\t5\t1\n";
        assert_eq!(parse_owner(status), Some(Owner { pid: 1, uids: vec![1, 2, 3, 4] }));
        assert_eq!(parse_owner("Name:\tx\n"), None);
    }

    /// A process that has a perf map, which it leaves behind.
    struct Mapped(Child, PathBuf);

    impl Mapped {
        fn start() -> Self {
            let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let path = PathBuf::from(format!("/tmp/perf-{}.map", child.id()));
            Self(child, path)
        }

        fn read(&self, maps: &mut PerfMaps) -> Result<(), Option<String>> {
            maps.read(self.0.id(), 7)
        }
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            self.0.wait().unwrap();
            let _ = std::fs::remove_file(&self.1);
            let _ = std::fs::remove_dir(&self.1);
        }
    }

    #[test]
    fn a_map_is_read_on_as_it_grows_and_again_where_it_is_another() {
        let (mapped, mut maps) = (Mapped::start(), PerfMaps::default());
        assert_eq!(mapped.read(&mut maps), Err(None), "no file is no news");
        std::fs::write(&mapped.1, "1000 10 py::f:/a.py\n2000 10 hal").unwrap();
        mapped.read(&mut maps).unwrap();
        assert_eq!(maps.find(7, 0x1001).unwrap().symbol, "f");
        assert_eq!(maps.find(7, 0x2001), None);
        let mut file = File::options().append(true).open(&mapped.1).unwrap();
        std::io::Write::write_all(&mut file, b"f\n3000 10 JS:~g /x.js:1:2\n").unwrap();
        mapped.read(&mut maps).unwrap();
        assert_eq!(maps.find(7, 0x2001).unwrap().symbol, "half");
        assert_eq!(maps.find(7, 0x3001).unwrap().symbol, "g");
        std::fs::write(&mapped.1, "1000 10 new\n").unwrap();
        mapped.read(&mut maps).unwrap();
        assert_eq!(maps.find(7, 0x1001).unwrap().symbol, "new");
        assert_eq!((maps.find(7, 0x3001), maps.find(8, 0x1001)), (None, None));
    }

    #[test]
    fn what_only_looks_like_a_map_is_refused_at_once() {
        let (mapped, mut maps) = (Mapped::start(), PerfMaps::default());
        let refused = |maps: &mut PerfMaps| mapped.read(maps).unwrap_err().unwrap();
        // Nobody ever writes to it: to open it would block.
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &mapped.1, FileType::Fifo, mode, 0).unwrap();
        assert!(refused(&mut maps).contains("not a regular file"));
        std::fs::remove_file(&mapped.1).unwrap();
        symlink("/etc/passwd", &mapped.1).unwrap();
        assert!(refused(&mut maps).contains("symbolic link"), "{}", refused(&mut maps));
        std::fs::remove_file(&mapped.1).unwrap();
        std::fs::create_dir(&mapped.1).unwrap();
        assert!(refused(&mut maps).contains("not a regular file"));
        std::fs::remove_dir(&mapped.1).unwrap();
        File::create(&mapped.1).unwrap().set_len(1 << 40).unwrap();
        assert!(refused(&mut maps).contains("larger than 64 MiB"));
        File::create(&mapped.1).unwrap().set_len(32 << 20).unwrap();
        assert!(refused(&mut maps).contains("no perf map"));
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn another_users_file_is_refused() {
        let (mapped, mut maps) = (Mapped::start(), PerfMaps::default());
        std::fs::write(&mapped.1, "1000 10 f\n").unwrap();
        chown(&mapped.1, Some(12_345), None).unwrap();
        let why = mapped.read(&mut maps).unwrap_err().unwrap();
        assert!(why.contains("belongs to user 12345"), "{why}");
    }

    #[test]
    fn maps_of_all_processes_together_are_bounded() {
        let mut maps = PerfMaps::default();
        for space in 0..64 {
            let mut table = Table { used: u64::from(space), ..Table::default() };
            for number in 1..10_000_u64 {
                let line = format!("{:x} 10 function{number}\n", number * 16);
                table.line(line.as_bytes()).unwrap();
            }
            maps.tables.insert(space, table);
            maps.make_room(space);
        }
        let bytes: usize = maps.tables.values().map(Table::bytes).sum();
        assert!(bytes <= MAX_BYTES && maps.tables.len() > 4, "{bytes}");
        assert!(maps.find(63, 16).is_some() && maps.find(0, 16).is_none());
    }
}
