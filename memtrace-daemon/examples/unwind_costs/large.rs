//! A library as large as those of inference hosts, sparse on disk: 1 GiB of code that is not
//! there, and the unwind information of its 200,000 functions, which is.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;

use anyhow::{Context, ensure};
use tempfile::NamedTempFile;

/// Functions in it.
pub const FUNCTIONS: u64 = 200_000;
/// Bytes that each of them spans.
const FUNCTION: u64 = 5_120;
/// Where the code begins, in the file and in memory.
const CODE: u64 = 16 << 20;
/// Bytes of the file.
const SIZE: u64 = CODE + FUNCTIONS * FUNCTION;
/// Bytes of each function's frame, with its return address.
pub const FRAME: usize = 48;
/// Where `.eh_frame_hdr` and `.eh_frame` begin.
const HEADER: u64 = 4_096;
const FRAMES: u64 = 4 << 20;
/// The section headers, and the names that they point to.
const SECTIONS: u64 = 64 + 3 * 56;
const NAMES: &[u8] = b"\0.eh_frame\0.shstrtab\0";

/// A library that is mapped. Its file has a name until this is dropped.
#[derive(Debug)]
pub struct Library {
    /// Address of its first function. The outermost function of all stacks is the last one.
    pub first: u64,
    _file: NamedTempFile,
}

/// Writes one, and maps it as a process that runs it would.
pub fn map() -> anyhow::Result<Library> {
    let mut file = NamedTempFile::new().context("making a file")?;
    write(file.as_file_mut())?;
    let flags = libc::MAP_PRIVATE;
    let length = usize::try_from(SIZE)?;
    // SAFETY: a fresh mapping, which is never read or run.
    let start = unsafe {
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        libc::mmap(std::ptr::null_mut(), length, protection, flags, file.as_raw_fd(), 0)
    };
    ensure!(start != libc::MAP_FAILED, "mapping it: {}", std::io::Error::last_os_error());
    Ok(Library { first: start as u64 + CODE, _file: file })
}

/// Where a call in a function returns to.
pub fn return_address(first: u64, function: u64) -> u64 {
    first + function * FUNCTION + 100
}

fn write(file: &mut File) -> anyhow::Result<()> {
    file.set_len(SIZE)?;
    let mut out = BufWriter::new(file);
    out.write_all(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0")?;
    // A shared object for x86-64; its program headers are behind this header.
    out.write_all(&[3, 0, 62, 0, 1, 0, 0, 0])?;
    for word in [0, 64, SECTIONS] {
        out.write_all(&u64::to_le_bytes(word))?;
    }
    out.write_all(&[0, 0, 0, 0, 64, 0, 56, 0, 3, 0, 64, 0, 3, 0, 2, 0])?;
    // Kind and flags, where it is in the file, where in memory (twice), its bytes (twice).
    let frames = frames()?;
    let table = 12 + FUNCTIONS * 8;
    let code = (1_u32, 5_u32, CODE, FUNCTIONS * FUNCTION);
    let data = (1, 4, 0, CODE);
    for (kind, flags, at, size) in [data, code, (0x6474_e550, 4, HEADER, table)] {
        out.write_all(&kind.to_le_bytes())?;
        out.write_all(&flags.to_le_bytes())?;
        for word in [at, at, at, size, size, 8] {
            out.write_all(&word.to_le_bytes())?;
        }
    }
    // Name and kind, flags, where in memory, where in the file, bytes.
    let length = u64::try_from(frames.len())?;
    let names = SECTIONS + 3 * 64;
    for (name, kind, at, size) in
        [(0_u32, 0_u32, 0, 0), (1, 1, FRAMES, length), (11, 3, names, NAMES.len() as u64)]
    {
        out.write_all(&name.to_le_bytes())?;
        out.write_all(&kind.to_le_bytes())?;
        for word in [2, at, at, size, 0, 1, 0] {
            out.write_all(&u64::to_le_bytes(word))?;
        }
    }
    out.write_all(NAMES)?;
    out.seek(SeekFrom::Start(HEADER))?;
    out.write_all(&[1, 0x1b, 0x03, 0x3b])?;
    out.write_all(&i32::try_from(FRAMES - HEADER - 4)?.to_le_bytes())?;
    out.write_all(&u32::try_from(FUNCTIONS)?.to_le_bytes())?;
    for function in 0..FUNCTIONS {
        let (start, description) = (CODE + function * FUNCTION, FRAMES + offset(function));
        out.write_all(&i32::try_from(start - HEADER)?.to_le_bytes())?;
        out.write_all(&i32::try_from(description - HEADER)?.to_le_bytes())?;
    }
    out.seek(SeekFrom::Start(FRAMES))?;
    out.write_all(&frames)?;
    Ok(out.flush()?)
}

/// Bytes of what all descriptions have in common, and of a description.
const COMMON: u64 = 24;
const DESCRIPTION: u64 = 32;

fn offset(function: u64) -> u64 {
    COMMON + function * DESCRIPTION
}

fn frames() -> anyhow::Result<Vec<u8>> {
    // Version 1, "zR", factors 1 and -8, return address 16, pcrel sdata4; the CFA is rsp+8,
    // the return address is below it.
    let mut out = vec![20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b];
    out.extend([0x0c, 7, 8, 0x90, 1, 0, 0]);
    for function in 0..FUNCTIONS {
        let at = offset(function);
        out.extend(u32::try_from(DESCRIPTION - 4)?.to_le_bytes());
        out.extend(u32::try_from(at + 4)?.to_le_bytes());
        let start = i64::try_from(CODE + function * FUNCTION)? - i64::try_from(FRAMES + at + 8)?;
        out.extend(i32::try_from(start)?.to_le_bytes());
        out.extend(u32::try_from(FUNCTION)?.to_le_bytes());
        if function == FUNCTIONS - 1 {
            // The return address is undefined.
            out.extend([0, 7, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        } else {
            // push %rbp; push %rbx; sub $24,%rsp, one after the other.
            out.extend([0, 0x41, 0x0e, 16, 0x86, 2, 0x41, 0x0e, 24, 0x83, 3, 0x44, 0x0e, 48, 0, 0]);
        }
    }
    Ok(out)
}
