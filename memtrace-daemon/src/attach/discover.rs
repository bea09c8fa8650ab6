//! Finds executable file mappings of running processes, and opens the very file that is mapped.
//!
//! A path in /proc/PID/maps is a hint: it may be of another mount namespace, deleted, replaced
//! or made to mislead. What is opened is checked to be the inode that is mapped.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use super::deadline;
use super::elf::{self, ElfError};
use super::mappings::Mapping;

/// A process whose maps cannot be read within this time is stuck.
const PROCESS_DEADLINE: Duration = Duration::from_secs(2);
/// Bytes read of a process' maps; 65,530 mappings, the kernel's default limit, have some 8 MB.
const MAX_MAPS: u64 = 32 << 20;

/// Descriptors of a process that are looked at for a GPU: it is opened early.
const MAX_DESCRIPTORS: usize = 1_024;
/// What the paths of GPUs begin with: `/dev/nvidia0`, `/dev/nvidiactl`, `/dev/nvidia-uvm`.
const NVIDIA: &[u8] = b"/dev/nvidia";

/// Which file a mapping is of, as the kernel writes it into maps and perf records. On some file
/// systems (btrfs) the device differs from that of stat(2): a key for remembering, no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    /// Device.
    pub major: u32,
    /// Device.
    pub minor: u32,
    /// Inode.
    pub inode: u64,
}

/// Executable bytes of a file in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeMapping {
    /// Process.
    pub pid: u32,
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// The file.
    pub key: FileKey,
    /// Its path as the process' root has it: bytes in no particular encoding.
    pub path: Vec<u8>,
}

impl From<Mapping> for CodeMapping {
    fn from(mapping: Mapping) -> Self {
        Self {
            pid: mapping.pid,
            start: mapping.address,
            end: mapping.address.saturating_add(mapping.length),
            key: FileKey { major: mapping.major, minor: mapping.minor, inode: mapping.inode },
            path: mapping.path,
        }
    }
}

impl CodeMapping {
    /// Opens the file that is mapped: through /proc/PID/map_files, which works for deleted
    /// files and other roots, else by its path below the process' root.
    ///
    /// May block for ever on a dead network mount: call it on an expendable thread.
    ///
    /// # Errors
    /// What the system said, or that the path leads to another file now.
    pub fn open(&self) -> Result<File, ElfError> {
        let process = PathBuf::from(format!("/proc/{}", self.pid));
        let direct = process.join(format!("map_files/{:x}-{:x}", self.start, self.end));
        match elf::open(&direct) {
            Ok(file) if file.metadata()?.ino() == self.key.inode => return Ok(file),
            // The mapping has been split or is gone, or the tracer may not use map_files.
            _ => {}
        }
        let path =
            self.path.strip_prefix(b"/").ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let file = elf::open(&process.join("root").join(OsStr::from_bytes(path)))?;
        if file.metadata()?.ino() != self.key.inode {
            return Err(io::Error::other("its path leads to another file now").into());
        }
        Ok(file)
    }
}

/// Executable file mappings in the text of a maps file.
pub fn parse_maps(pid: u32, text: &[u8]) -> impl Iterator<Item = CodeMapping> + '_ {
    text.split(|byte| *byte == b'\n').filter_map(move |line| parse_line(pid, line))
}

/// `start-end rwxp offset major:minor inode    path`, where the path goes on to the end of the
/// line, spaces included.
fn parse_line(pid: u32, line: &[u8]) -> Option<CodeMapping> {
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let mut field = || fields.next().and_then(|field| std::str::from_utf8(field).ok());
    let (start, end) = field()?.split_once('-')?;
    let permissions = field()?;
    let _offset = field()?;
    let (major, minor) = field()?.split_once(':')?;
    let inode = field()?.parse().ok()?;
    if permissions.as_bytes().get(2) != Some(&b'x') || inode == 0 {
        return None;
    }
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let hex32 = |text| u32::from_str_radix(text, 16).ok();
    Some(CodeMapping {
        pid,
        start: hex(start)?,
        end: hex(end)?,
        key: FileKey { major: hex32(major)?, minor: hex32(minor)?, inode },
        path: path(fields.next().unwrap_or_default()),
    })
}

fn path(field: &[u8]) -> Vec<u8> {
    let field = field.trim_ascii_start();
    let field = field.strip_suffix(b" (deleted)").unwrap_or(field);
    // Of all characters the kernel escapes the newline alone.
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            path.push(b'\n');
            rest = after;
        } else {
            path.push(*byte);
            rest = after;
        }
    }
    path
}

/// What a look through all processes found.
#[derive(Debug, Default)]
pub struct Scan {
    /// One mapping of each file.
    pub files: HashMap<FileKey, CodeMapping>,
    /// The processes that map it.
    pub users: HashMap<FileKey, Vec<u32>>,
    /// A GPU of each process that has one open, where that was looked at.
    pub devices: Option<HashMap<u32, String>>,
    /// Processes that were looked into.
    pub looked: HashSet<u32>,
    /// Processes whose maps could not be read in time: they are stuck in the kernel.
    pub stuck: Vec<u32>,
    /// Processes that may not be looked into: nothing was ever found through one of them.
    pub denied: Vec<u32>,
    /// Whether all other processes were looked into. Only then is a file that is not in `files`
    /// mapped by none of them.
    pub complete: bool,
}

/// Looks through the maps of all processes except `skip`, and through their descriptors for GPUs
/// where that is wanted: with many of them it takes longer than the maps.
///
/// # Errors
/// That /proc cannot be listed.
pub fn scan(skip: &[u32], devices: bool) -> io::Result<Scan> {
    let devices = devices.then(HashMap::new);
    let mut scan = Scan { complete: true, devices, ..Scan::default() };
    for pid in processes()? {
        if !skip.contains(&pid) {
            scan_process(pid, &mut scan);
        }
    }
    Ok(scan)
}

/// Adds one process to a scan.
pub fn scan_process(pid: u32, scan: &mut Scan) {
    let devices = scan.devices.is_some();
    let look = move || Ok((read_maps(pid)?, devices.then(|| device(pid)).flatten()));
    match deadline::run(PROCESS_DEADLINE, look) {
        Ok(Ok((text, device))) => {
            scan.looked.insert(pid);
            for mapping in parse_maps(pid, &text) {
                let users = scan.users.entry(mapping.key).or_default();
                // A file's segments follow each other.
                if users.last() != Some(&pid) {
                    users.push(pid);
                }
                scan.files.entry(mapping.key).or_insert(mapping);
            }
            if let (Some(devices), Some(device)) = (&mut scan.devices, device) {
                devices.insert(pid, device);
            }
        }
        // It has ended, which is no loss.
        Ok(Err(error)) if ended(&error) => {}
        Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => scan.denied.push(pid),
        Ok(Err(_)) => scan.complete = false,
        Err(deadline::Late::Deadline(_)) => scan.stuck.push(pid),
        Err(deadline::Late::TooManyStuck) => scan.complete = false,
    }
}

fn ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn read_maps(pid: u32) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?.take(MAX_MAPS).read_to_end(&mut text)?;
    Ok(text)
}

/// A GPU that a process has open. A path is enough: nothing is done to it.
fn device(pid: u32) -> Option<String> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.take(MAX_DESCRIPTORS);
    let mut paths = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let device = paths.find(|path| {
        path.as_os_str().as_bytes().starts_with(NVIDIA) || path.starts_with("/dev/kfd")
    })?;
    Some(device.to_string_lossy().into_owned())
}

/// All processes.
///
/// # Errors
/// That /proc cannot be listed.
pub fn processes() -> io::Result<Vec<u32>> {
    Ok(fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn lines_are_read_to_their_end() {
        let text = b"55d0-55e0 r-xp 00001000 fd:01 77                   /opt/a b\\012c (deleted)\n\
            7f00-7f10 r--p 00000000 fd:01 78                    /plain\n\
            7f20-7f30 rwxp 00000000 00:00 0 \n\
            7f40-7f50 r-xp 00000000 103:0a 79                   /\xff\n\
            7ffe-7fff r-xp 00000000 00:00 0                     [vdso]\n\
            rubbish\n\n";
        let found: Vec<_> = parse_maps(5, text).collect();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].start, found[0].end), (0x55d0, 0x55e0));
        assert_eq!(found[0].key, FileKey { major: 0xfd, minor: 1, inode: 77 });
        assert_eq!(found[0].path, b"/opt/a b\nc");
        assert_eq!(found[1].key, FileKey { major: 0x103, minor: 10, inode: 79 });
        assert_eq!(found[1].path, b"/\xff");
    }

    #[test]
    fn own_code_is_found_and_opens_as_the_mapped_file() {
        let scan = scan(&[], true).unwrap();
        let exe = fs::metadata("/proc/self/exe").unwrap();
        let mapping = scan.files.values().find(|mapping| mapping.key.inode == exe.ino()).unwrap();
        assert_eq!(elf::identity(&mapping.open().unwrap()).unwrap().device, exe.dev());
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_refused() {
        let inode = fs::metadata("/proc/self/exe").unwrap().ino();
        let mapping = CodeMapping {
            pid: std::process::id(),
            start: 1,
            end: 2,
            key: FileKey { major: 0, minor: 0, inode },
            path: b"/proc/self/cmdline".to_vec(),
        };
        assert!(mapping.open().unwrap_err().to_string().contains("another file"));
        let gone = CodeMapping { path: b"/nowhere".to_vec(), ..mapping };
        assert!(matches!(gone.open(), Err(ElfError::Io(_))));
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_deleted_file_opens_as_long_as_it_is_mapped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cat");
        fs::copy("/bin/cat", &path).unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        let mut child = std::process::Command::new(&path)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // It runs, and so is mapped, once it answers.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        fs::remove_file(&path).unwrap();
        let mut scan = Scan::default();
        scan_process(child.id(), &mut scan);
        let opened = scan
            .files
            .values()
            .find(|mapping| mapping.key.inode == inode)
            .map(|mapping| mapping.open().map(|file| file.metadata().map(|m| m.ino())));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(opened.unwrap().unwrap().unwrap(), inode);
    }
}
