//! Opening the files that processes run code from, once, in the right mount namespace, and
//! keeping the descriptor, so that ended processes and containers are named right.
//!
//! Files are hostile: only regular files are opened for reading, and only up to limits.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};

use super::elf::{self, ElfFacts};
use super::maps::Row;
use super::separate;
use crate::host::text::text;

/// Largest file that is looked into, bytes. The largest libraries of today are near 2 GiB.
const MAX_FILE: u64 = 16 << 30;

/// What the kernel adds to the path of a file that has no name any more.
const DELETED: &[u8] = b" (deleted)";

/// Which content a file has: another inode, size or time of change is another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileKey {
    fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
            changed: (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or(0)),
        }
    }
}

impl FileKey {
    /// Size of the file, bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }
}

/// A file that is open for as long as somebody names addresses in it.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    /// Which content.
    pub key: FileKey,
    /// Path as the process has it, without ` (deleted)`.
    pub module: Arc<str>,
    /// What its headers say.
    pub facts: ElfFacts,
    /// Whether only root can have written it: root of the host, not of a container.
    pub trusted: bool,
    /// Whether it is certainly what the mapping shows: what lies at the mapping's place may be
    /// another program's by now.
    pub as_mapped: bool,
    /// Its separate debug file.
    pub separate: Option<Box<OpenFile>>,
    /// Why a separate debug file that is there is not used.
    pub note: Option<String>,
}

impl OpenFile {
    /// The file itself.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// A path that leads to this very file whatever becomes of its name.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Whether the content is still the one that was opened.
    #[must_use]
    pub fn unchanged(&self) -> bool {
        rustix::fs::fstat(&self.file).is_ok_and(|stat| FileKey::of(&stat) == self.key)
    }

    /// What stands for the file in a site's identity: its build id, or its path.
    #[must_use]
    pub fn identity(&self) -> &str {
        self.facts.build_id.as_deref().unwrap_or(&self.module)
    }
}

/// Opens the file behind a mapping of process `tgid`: by `map_files`, else by its path in the
/// process' root, else (where the process has ended) by its path in ours. The last two count
/// only where inode and device agree.
///
/// # Errors
/// One sentence that says what was tried and what came back.
pub fn open(tgid: u32, row: &Row) -> Result<OpenFile, String> {
    let module = shown(row);
    let range = format!("/proc/{tgid}/map_files/{:x}-{:x}", row.start, row.end);
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let by_range = rustix::fs::openat(CWD, &range, flags, Mode::empty());
    let handle = match by_range {
        Ok(handle) => handle,
        Err(first) => open_by_path(&format!("/proc/{tgid}/root"), row)
            .or_else(|_| open_by_path("/", row))
            .map_err(|second| refusal(&module, first, &second))?,
    };
    let (file, stat) = regular(&handle, &module)?;
    // A name may end like that without the file being deleted.
    let module = if row.path.ends_with(DELETED)
        && stat.st_nlink > 0
        && open_by_path(&format!("/proc/{tgid}/root"), row)
            .or_else(|_| open_by_path("/", row))
            .is_ok()
    {
        text(&row.path)
    } else {
        module
    };
    let mut open = described(file, &stat, module)?;
    open.as_mapped = is_of(&stat, row);
    // Root of a container is not root of the host: only what lies in our own root counts.
    open.trusted = only_root_writes(&stat) && open_by_path("/", row).is_ok();
    if open.facts.refused.is_none() {
        let path = row.path.strip_suffix(DELETED).unwrap_or(&row.path);
        let found = separate::find(tgid, path, &open);
        (open.separate, open.note) = match found {
            Ok(found) => (found.map(Box::new), None),
            Err(why) => (None, Some(why)),
        };
    }
    Ok(open)
}

/// Opens what a handle leads to, if that is a file that may be read.
///
/// # Errors
/// A sentence about the file, by this name.
pub fn regular(handle: &OwnedFd, name: &str) -> Result<(File, Stat), String> {
    let stat = rustix::fs::fstat(handle)
        .map_err(|error| format!("{name} cannot be looked at: {error}"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(format!("{name} is not a regular file"));
    }
    if FileKey::of(&stat).size > MAX_FILE {
        return Err(format!("{name} is larger than {} GiB", MAX_FILE >> 30));
    }
    let file = File::open(format!("/proc/self/fd/{}", handle.as_raw_fd()))
        .map_err(|error| format!("{name} cannot be read: {error}"))?;
    Ok((file, stat))
}

/// A file with what its headers say.
///
/// # Errors
/// A sentence, where it is no ELF file.
pub fn described(file: File, stat: &Stat, module: String) -> Result<OpenFile, String> {
    let facts = elf::facts(&file).map_err(|why| format!("{module}: {why}"))?;
    Ok(OpenFile {
        file,
        key: FileKey::of(stat),
        module: module.into(),
        facts,
        trusted: false,
        as_mapped: false,
        separate: None,
        note: None,
    })
}

/// The path of a mapping as a person reads it, where its file is not open.
#[must_use]
pub fn shown(row: &Row) -> String {
    text(row.path.strip_suffix(DELETED).unwrap_or(&row.path))
}

/// The root directory of a process, by its path in /proc, or ours.
///
/// # Errors
/// The system's.
pub fn root_of(path: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// A handle of what is at a path in a root: nothing is opened for reading, and no link leads
/// out of the root.
///
/// # Errors
/// The system's.
pub fn open_in(root: &OwnedFd, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let relative = std::ffi::OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path));
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(root.as_fd(), relative, flags, Mode::empty(), resolve)
}

fn open_by_path(root: &str, row: &Row) -> Result<OwnedFd, String> {
    let handle = root_of(root).and_then(|root| open_in(&root, &row.path));
    let handle = handle.map_err(|error| error.to_string())?;
    let stat = rustix::fs::fstat(&handle).map_err(|error| error.to_string())?;
    if is_of(&stat, row) { Ok(handle) } else { Err("another file has its path now".into()) }
}

/// Whether a file is the one that a mapping shows.
fn is_of(stat: &Stat, row: &Row) -> bool {
    // File systems with many subvolumes show one device in maps and another in stat, both
    // without a driver (major 0).
    let nameless = |device| rustix::fs::major(device) == 0;
    let device = stat.st_dev == row.device || nameless(stat.st_dev) && nameless(row.device);
    stat.st_ino == row.inode && device
}

/// Whether only root of the host can have written a file that lies in our own root.
#[must_use]
pub fn only_root_writes(stat: &Stat) -> bool {
    stat.st_uid == 0 && stat.st_mode & 0o022 == 0
}

fn refusal(module: &str, first: rustix::io::Errno, second: &str) -> String {
    let first = if first == rustix::io::Errno::PERM {
        "by map_files it is not permitted, which CAP_CHECKPOINT_RESTORE would".into()
    } else {
        format!("by map_files: {}", io::Error::from(first))
    };
    format!("{module} cannot be opened ({first}; by path: {second})")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn own_row() -> Row {
        let here = own_row as *const () as u64;
        let rows = crate::stacks::maps::read(File::open("/proc/self/maps").unwrap()).unwrap();
        rows.into_iter().find(|row| row.holds(here)).unwrap()
    }

    #[test]
    fn our_own_executable_opens_by_path_where_the_range_is_gone() {
        let mut row = own_row();
        row.start += 1;
        let file = open(std::process::id(), &row).unwrap();
        assert_eq!(file.key.inode, std::fs::metadata("/proc/self/exe").unwrap().ino());
        assert!(file.unchanged());
        assert_eq!(file.facts.build_id.as_ref().unwrap().len(), 40);
    }

    #[test]
    fn a_file_that_took_the_path_is_not_taken_for_the_one_that_was_mapped() {
        let mut row = own_row();
        row.start += 1;
        row.inode += 1;
        let error = open(std::process::id(), &row).unwrap_err();
        assert!(error.contains("another file has its path now"), "{error}");
    }

    #[test]
    fn a_device_is_not_read() {
        let stat = std::fs::metadata("/dev/null").unwrap();
        let row = Row {
            start: 1,
            end: 2,
            offset: 0,
            device: stat.dev(),
            inode: stat.ino(),
            path: b"/dev/null"[..].into(),
        };
        let error = open(std::process::id(), &row).unwrap_err();
        assert_eq!(error, "/dev/null is not a regular file");
    }
}
