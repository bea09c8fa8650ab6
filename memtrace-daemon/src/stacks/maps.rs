//! Executable mappings of a process: the lines of /proc/PID/maps, and the rows made of them.
//! Parses bytes; opens nothing but the one file it is given.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;

/// Most rows kept of one process: a JIT that maps page by page must not fill the daemon.
pub const MAX_ROWS: usize = 4_096;
/// Most bytes read of one maps file.
const MAX_BYTES: u64 = 32 << 20;

/// One executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Offset in the file that `start` shows, bytes.
    pub offset: u64,
    /// Device number as `makedev` makes it.
    pub device: u64,
    /// Inode number; 0 where it is no file.
    pub inode: u64,
    /// Path as the process has it, with ` (deleted)` where the kernel says so; empty for
    /// anonymous memory.
    pub path: Arc<[u8]>,
}

impl Row {
    /// Whether an address is in it.
    #[must_use]
    pub const fn holds(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// Offset in the file of an address in it.
    #[must_use]
    pub const fn file_offset(&self, address: u64) -> u64 {
        address.wrapping_sub(self.start).wrapping_add(self.offset)
    }
}

/// Reads the executable mappings out of a maps file, in ascending order.
///
/// # Errors
/// The file's own: `NotFound` or `ESRCH` where the process has ended, `PermissionDenied`.
pub fn read(file: impl Read) -> io::Result<Vec<Row>> {
    let mut reader = BufReader::with_capacity(64 << 10, file.take(MAX_BYTES));
    let (mut rows, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if rows.len() < MAX_ROWS
            && let Some(row) = parse(line.strip_suffix(b"\n").unwrap_or(&line))
        {
            rows.push(row);
        }
    }
    rows.sort_by_key(|row: &Row| row.start);
    Ok(rows)
}

/// `start-end perms offset major:minor inode   path`; `None` where it is not executable.
fn parse(line: &[u8]) -> Option<Row> {
    let (range, rest) = field(line)?;
    let (permissions, rest) = field(rest)?;
    let (offset, rest) = field(rest)?;
    let (device, rest) = field(rest)?;
    let (inode, rest) = field(rest)?;
    if permissions.get(2) != Some(&b'x') {
        return None;
    }
    let dash = range.iter().position(|byte| *byte == b'-')?;
    let colon = device.iter().position(|byte| *byte == b':')?;
    Some(Row {
        start: number(range.get(..dash)?, 16)?,
        end: number(range.get(dash + 1..)?, 16)?,
        offset: number(offset, 16)?,
        device: rustix::fs::makedev(
            u32::try_from(number(device.get(..colon)?, 16)?).ok()?,
            u32::try_from(number(device.get(colon + 1..)?, 16)?).ok()?,
        ),
        inode: number(inode, 10)?,
        path: unescape(rest.trim_ascii_start()).into(),
    })
}

fn field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let bytes = bytes.trim_ascii_start();
    let end = bytes.iter().position(|byte| *byte == b' ').unwrap_or(bytes.len());
    if end == 0 { None } else { bytes.split_at_checked(end) }
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// The kernel writes a newline in a path as `\012`, and nothing else differently.
fn unescape(path: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(path.len()), path);
    while let [first, tail @ ..] = rest {
        if let Some(behind) = rest.strip_prefix(b"\\012") {
            out.push(b'\n');
            rest = behind;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_executable_lines_only() {
        let text = b"\
55d0c0a00000-55d0c0a01000 r--p 00000000 fd:01 77 /usr/bin/x\n\
55d0c0a01000-55d0c0a02000 r-xp 00001000 fd:01 77                         /usr/bin/a b\\012c (deleted)\n\
7f0000000000-7f0000001000 rwxp 00000000 00:00 0 \n\
7fff00000000-7fff00001000 r-xp 00000000 00:00 0                          [vdso]\n\
nonsense\n";
        let rows = read(&text[..]).unwrap();
        assert_eq!(rows.len(), 3);
        assert_eq!(
            rows[0],
            Row {
                start: 0x55d0_c0a0_1000,
                end: 0x55d0_c0a0_2000,
                offset: 0x1000,
                device: rustix::fs::makedev(0xfd, 1),
                inode: 77,
                path: b"/usr/bin/a b\nc (deleted)"[..].into(),
            }
        );
        assert_eq!(rows[0].file_offset(0x55d0_c0a0_1010), 0x1010);
        assert_eq!(&*rows[1].path, b"");
        assert_eq!(&*rows[2].path, b"[vdso]");
    }

    #[test]
    fn our_own_code_is_in_our_own_mappings() {
        let rows = read(std::fs::File::open("/proc/self/maps").unwrap()).unwrap();
        let here = our_own_code_is_in_our_own_mappings as *const () as u64;
        let row = rows.iter().find(|row| row.holds(here)).unwrap();
        let exe = std::env::current_exe().unwrap();
        assert_eq!(&*row.path, exe.as_os_str().as_encoded_bytes());
    }

    #[test]
    fn a_process_with_too_many_mappings_is_cut() {
        let line = b"55d0c0a01000-55d0c0a02000 r-xp 00001000 fd:01 77 /x\n";
        assert_eq!(read(&line.repeat(MAX_ROWS + 9)[..]).unwrap().len(), MAX_ROWS);
    }
}
