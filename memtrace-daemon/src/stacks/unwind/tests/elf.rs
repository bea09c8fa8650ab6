//! ELF files that say what a test wants, mapped as a process maps them.

use std::io::Write;
use std::os::fd::AsRawFd;

use tempfile::NamedTempFile;

use super::*;

/// Offset and address of the code.
pub const CODE: u64 = 0x1_0000;
/// Bytes of it.
pub const SIZE: u64 = 0x4000;
/// Offset and address of everything else.
const DATA: u64 = 0x1000;

/// What to write.
#[derive(Clone, Debug, Default)]
pub struct Elf {
    pub code: Vec<u8>,
    pub eh_frame: Vec<u8>,
    /// Address of `.eh_frame` and (start, offset of the description).
    pub table: Vec<(u64, u64)>,
    pub debug_frame: Vec<u8>,
    pub compress: bool,
    pub no_section_headers: bool,
}

/// A file that is mapped.
#[derive(Debug)]
pub struct Mapped {
    /// Where its code is.
    pub code: u64,
    pub file: NamedTempFile,
}

/// What descriptions have in common: the CFA is `rsp`+8, the return address below it.
pub fn common(debug: bool, augmentation: &str) -> Vec<u8> {
    let id = if debug { u32::MAX } else { 0 };
    let mut out = id.to_le_bytes().to_vec();
    out.push(1);
    out.extend(augmentation.bytes());
    out.extend([0, 1, 0x78, 16]);
    if augmentation.starts_with('z') {
        // Addresses are absolute, 8 bytes.
        out.extend([1, 0]);
    }
    out.extend([0x0c, 7, 8, 0x90, 1]);
    padded(out)
}

/// A description, at `at` in its section, of `length` bytes of code from `start` on.
pub fn description(debug: bool, at: usize, start: u64, length: u64, rules: &[u8]) -> Vec<u8> {
    let common = if debug { 0 } else { u32::try_from(at).unwrap() + 4 };
    let mut out = common.to_le_bytes().to_vec();
    out.extend((CODE + start).to_le_bytes());
    out.extend(length.to_le_bytes());
    if !debug {
        out.push(0);
    }
    out.extend(rules);
    padded(out)
}

fn padded(mut entry: Vec<u8>) -> Vec<u8> {
    entry.resize(entry.len().next_multiple_of(8) + 4, 0);
    let mut out = u32::try_from(entry.len()).unwrap().to_le_bytes().to_vec();
    out.extend(entry);
    out
}

/// A section of descriptions of (start, length, rules), and the starts with their offsets.
pub fn frames(
    debug: bool,
    augmentation: &str,
    functions: &[(u64, u64, &[u8])],
) -> (Vec<u8>, Vec<(u64, u64)>) {
    let mut out = common(debug, augmentation);
    let mut table = Vec::new();
    for (start, length, rules) in functions {
        table.push((CODE + start, out.len() as u64));
        let description = description(debug, out.len(), *start, *length, rules);
        out.extend(description);
    }
    if !debug {
        out.extend([0; 4]);
    }
    (out, table)
}

impl Elf {
    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0; usize::try_from(CODE + SIZE).unwrap()];
        out[CODE as usize..][..self.code.len()].copy_from_slice(&self.code);
        let mut at = DATA as usize;
        let mut put = |out: &mut Vec<u8>, bytes: &[u8]| {
            let here = at;
            out[here..here + bytes.len()].copy_from_slice(bytes);
            at = (here + bytes.len()).next_multiple_of(16);
            here as u64
        };
        let eh_frame = put(&mut out, &self.eh_frame);
        let mut header = Vec::new();
        if !self.table.is_empty() {
            let here = (eh_frame + self.eh_frame.len() as u64).next_multiple_of(16);
            let relative = |address: u64| (address.wrapping_sub(here) as i32).to_le_bytes();
            header.extend([1, 0x1b, 0x03, 0x3b]);
            header.extend(relative(eh_frame - 4));
            header.extend((self.table.len() as u32).to_le_bytes());
            for (start, offset) in &self.table {
                header.extend(relative(*start));
                header.extend(relative(eh_frame + offset));
            }
        }
        let header_at = put(&mut out, &header);
        let mut debug = self.debug_frame.clone();
        if self.compress {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
            encoder.write_all(&debug).unwrap();
            let length = debug.len() as u64;
            debug = [1_u64, length, 1].iter().flat_map(|word| word.to_le_bytes()).collect();
            debug.extend(encoder.finish().unwrap());
        }
        let debug_at = put(&mut out, &debug);
        let names = b"\0.eh_frame\0.debug_frame\0.shstrtab\0";
        let names_at = put(&mut out, names);
        let mut sections = Vec::new();
        let compressed = if self.compress { 0x800 } else { 0 };
        for (name, kind, flags, address, at, size) in [
            (0_u32, 0_u32, 0_u64, 0, 0, 0),
            (1, 1, 2, eh_frame, eh_frame, self.eh_frame.len()),
            (11, 1, compressed, 0, debug_at, debug.len()),
            (24, 3, 0, 0, names_at, names.len()),
        ] {
            let kind = if size == 0 { 0 } else { kind };
            sections.extend(name.to_le_bytes());
            sections.extend(u32::to_le_bytes(kind));
            for word in [flags, address, at, size as u64, 0, 8, 0] {
                sections.extend(u64::to_le_bytes(word));
            }
        }
        let sections_at = put(&mut out, &sections);
        let mut head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        head.extend([3, 0, 62, 0, 1, 0, 0, 0]);
        let count = if self.no_section_headers { 0 } else { 4_u8 };
        let sections_at = if count == 0 { 0 } else { sections_at };
        for word in [0, 64, sections_at] {
            head.extend(word.to_le_bytes());
        }
        let names = count.saturating_sub(1);
        let programs = 2 + u8::from(!header.is_empty());
        head.extend([0, 0, 0, 0, 64, 0, 56, 0, programs, 0, 64, 0, count, 0, names, 0]);
        for (kind, flags, at, size) in [
            (1_u32, 4_u32, 0, CODE),
            (1, 5, CODE, SIZE),
            (0x6474_e550, 4, header_at, header.len() as u64),
        ] {
            head.extend(kind.to_le_bytes());
            head.extend(flags.to_le_bytes());
            for word in [at, at, at, size, size, 8] {
                head.extend(u64::to_le_bytes(word));
            }
        }
        out[..head.len()].copy_from_slice(&head);
        out
    }

    /// Writes and maps it.
    pub fn map(&self) -> Mapped {
        map(&self.bytes())
    }
}

/// Maps a file's code.
pub fn map(bytes: &[u8]) -> Mapped {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: a fresh mapping.
    let code = unsafe {
        let offset = CODE as libc::off_t;
        let (size, fd) = (SIZE as usize, file.as_file().as_raw_fd());
        libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_PRIVATE, fd, offset)
    };
    assert_ne!(code, libc::MAP_FAILED);
    Mapped { code: code as u64, file }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: made by us, and nobody runs it.
        unsafe { libc::munmap(self.code as *mut c_void, SIZE as usize) };
    }
}

/// Where made stacks begin.
pub const STACK: u64 = 0x7ffc_0000_1000;

/// A copy with a return address and these words behind it.
pub fn copy(rip: u64, rbp: u64, words: &[u64]) -> StackCopy {
    StackCopy {
        registers: Registers { rip, rsp: STACK, rbp, rbx: 3, r12: 12, r13: 13, r14: 14, r15: 15 },
        slots: Default::default(),
        exec_pages: 0,
        whole: true,
        missing: 0,
        bytes: words.iter().flat_map(|word| word.to_le_bytes()).collect(),
    }
}
