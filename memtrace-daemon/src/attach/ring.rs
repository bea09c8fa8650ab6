//! One perf event's ring of records, mapped into this process.
//!
//! All of the `unsafe` of reading it is here; records come out as owned bytes. Must never
//! trust a length in the ring further than the ring is long.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use aya_obj::generated::perf_event_mmap_page;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of a record's header: type, flags, size.
const HEADER_BYTES: usize = 8;

/// A mapped ring: one page of bookkeeping, then a power of two of data pages.
#[derive(Debug)]
pub(super) struct Ring {
    base: NonNull<u8>,
    page: usize,
    data: usize,
    _event: OwnedFd,
}

// SAFETY: the mapping belongs to this value alone and is not bound to a thread; the kernel's
// side of it is read through an atomic.
unsafe impl Send for Ring {}

/// One record as the kernel wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RawRecord {
    /// `PERF_RECORD_…`.
    pub(super) kind: u32,
    /// What follows the header.
    pub(super) body: Vec<u8>,
}

impl Ring {
    /// Maps the ring of an event, with `pages` data pages (a power of two).
    pub(super) fn map(event: OwnedFd, pages: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let data = pages * page;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                page + data,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                event.as_fd(),
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { base, page, data, _event: event })
    }

    /// Takes out all records that are there now. Those that come meanwhile stay for the next
    /// call, so that this ends whatever the load.
    pub(super) fn drain(&mut self, mut take: impl FnMut(RawRecord)) {
        let (head, tail) = self.positions();
        let end = head.load(Ordering::Acquire);
        let mut at = tail.load(Ordering::Relaxed);
        // A reader that has fallen out of step starts again at the head.
        if end.wrapping_sub(at) > self.data as u64 {
            at = end;
        }
        while end.wrapping_sub(at) >= HEADER_BYTES as u64 {
            let header = self.copy(at, HEADER_BYTES);
            let [k0, k1, k2, k3, _, _, s0, s1] = header.as_slice() else { break };
            let size = usize::from(u16::from_le_bytes([*s0, *s1]));
            if size < HEADER_BYTES || size as u64 > end.wrapping_sub(at) {
                at = end;
                break;
            }
            take(RawRecord {
                kind: u32::from_le_bytes([*k0, *k1, *k2, *k3]),
                body: self.copy(at.wrapping_add(HEADER_BYTES as u64), size - HEADER_BYTES),
            });
            at = at.wrapping_add(size as u64);
        }
        let (_, tail) = self.positions();
        tail.store(at, Ordering::Release);
    }

    /// `data_head`, which the kernel writes, and `data_tail`, which the reader writes.
    fn positions(&self) -> (&AtomicU64, &AtomicU64) {
        let page = self.base.as_ptr().cast::<perf_event_mmap_page>();
        // SAFETY: the first page of the mapping is this structure, aligned to a page, and lives
        // as long as `self`. Both sides use these fields as atomics.
        unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*page).data_head),
                AtomicU64::from_ptr(&raw mut (*page).data_tail),
            )
        }
    }

    /// Copies `length` bytes from position `at`, round the end of the ring.
    fn copy(&self, at: u64, length: usize) -> Vec<u8> {
        let length = length.min(self.data);
        let start = usize::try_from(at % self.data as u64).unwrap_or(0);
        let first = length.min(self.data - start);
        let mut bytes = Vec::with_capacity(length);
        for (offset, count) in [(start, first), (0, length - first)] {
            // SAFETY: `offset + count` is within the data pages, which follow the first page,
            // and the kernel does not write there before `data_tail` has passed.
            let part = unsafe {
                std::slice::from_raw_parts(self.base.as_ptr().add(self.page + offset), count)
            };
            bytes.extend_from_slice(part);
        }
        bytes
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: this mapping was made in `map`, and no reference into it outlives `self`.
        // A failure leaves it mapped, which harms nobody.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.page + self.data) };
    }
}
