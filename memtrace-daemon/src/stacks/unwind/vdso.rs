//! The vDSO: every process has the same image, so ours is read.

use std::sync::OnceLock;

/// Larger than any kernel's, bytes.
const MAX_BYTES: usize = 64 << 10;
const HEADER: usize = 64;

/// The image; `None` where the kernel maps none.
pub fn image() -> Option<&'static [u8]> {
    static IMAGE: OnceLock<Option<&'static [u8]>> = OnceLock::new();
    *IMAGE.get_or_init(|| {
        // SAFETY: always allowed.
        let start = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as *const u8;
        if start.is_null() {
            return None;
        }
        // SAFETY: the kernel says that an ELF header is there; it is never unmapped or written.
        let header: &'static [u8] = unsafe { std::slice::from_raw_parts(start, HEADER) };
        let length = length(header).filter(|length| (HEADER..=MAX_BYTES).contains(length))?;
        // SAFETY: the kernel maps the whole file, whose section headers are its end.
        Some(unsafe { std::slice::from_raw_parts(start, length) })
    })
}

/// Where the section headers end.
fn length(header: &[u8]) -> Option<usize> {
    let word = header.get(0x28..)?.first_chunk::<8>()?;
    let half =
        |at: usize| header.get(at..)?.first_chunk::<2>().map(|half| u16::from_le_bytes(*half));
    let (size, count) = (usize::from(half(0x3a)?), usize::from(half(0x3c)?));
    let start = usize::try_from(u64::from_le_bytes(*word)).ok().filter(|start| *start != 0)?;
    start.checked_add(size.checked_mul(count)?)
}
