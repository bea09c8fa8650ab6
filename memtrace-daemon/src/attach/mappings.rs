//! New executable mappings, told by the kernel: one perf event a CPU, whose rings the caller
//! drains every 20 ms or so.
//!
//! Nobody is woken by a mapping (waking the reader costs the mapping process 10 µs). Rings
//! overflow under load and CPUs come late: this only makes discovery fast, the caller's slow
//! rescan makes it complete. Must never be the only way to find a library.

use std::io;
use std::time::Instant;

use aya_obj::generated::{perf_event_attr, perf_event_type, perf_sw_ids, perf_type_id};
use bytes::Buf as _;
use thiserror::Error;

use super::ring::{RawRecord, Ring};
use super::sys;

/// Data pages of a ring. 16 pages hold some 400 mappings, more than one CPU makes in 20 ms.
const RING_PAGES: usize = 16;
/// Longest path that a record may carry.
const MAX_PATH: usize = 4_096;

/// Why the kernel does not tell.
#[derive(Debug, Error)]
#[error(
    "the kernel does not tell of new mappings (perf_event_open on CPU {cpu}: {source}; it needs CAP_PERFMON); looking through /proc every second instead"
)]
pub struct MappingsError {
    /// The CPU whose event failed.
    cpu: u32,
    /// What came back.
    source: io::Error,
}

/// Executable bytes of a file that a process has just mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Process, in the pid namespace of the tracer.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Address.
    pub address: u64,
    /// Length, bytes.
    pub length: u64,
    /// Offset in the file, bytes.
    pub page_offset: u64,
    /// Device of the file.
    pub major: u32,
    /// Device of the file.
    pub minor: u32,
    /// Inode of the file; 0 where there is no file.
    pub inode: u64,
    /// `PROT_…` bits.
    pub protection: u32,
    /// Path as the process' root has it: bytes in no particular encoding.
    pub path: Vec<u8>,
}

/// What who listens hears.
#[derive(Clone, Copy, Debug)]
pub enum News<'a> {
    /// A new mapping.
    Mapped(&'a Mapping),
    /// Nothing from before this moment is still to come, but for what was lost.
    Until(Instant),
    /// Some were lost.
    Lost,
}

/// The open events and their rings.
#[derive(Debug)]
pub struct Mappings {
    rings: Vec<Ring>,
    lost: u64,
}

impl Mappings {
    /// Opens an event on each CPU that is there.
    ///
    /// # Errors
    /// The first CPU that failed, and how.
    pub fn open() -> Result<Self, MappingsError> {
        let cpus =
            aya::util::online_cpus().map_err(|(_, source)| MappingsError { cpu: 0, source })?;
        let rings = cpus
            .into_iter()
            .map(|cpu| {
                sys::perf_event_open(&mut description(), cpu)
                    .and_then(|event| Ring::map(event, RING_PAGES))
                    .map_err(|source| MappingsError { cpu, source })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { rings, lost: 0 })
    }

    /// Hands over all mappings told since the last call. The result is how many the kernel
    /// could not tell for want of room: if not 0, look through /proc.
    pub fn drain(&mut self, mut found: impl FnMut(Mapping)) -> u64 {
        let before = self.lost;
        for ring in &mut self.rings {
            ring.drain(|record| match parse(&record) {
                Some(Told::Mapping(mapping)) => found(mapping),
                Some(Told::Lost(count)) => self.lost = self.lost.saturating_add(count),
                None => {}
            });
        }
        self.lost - before
    }

    /// Mappings not told since start.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }
}

fn description() -> perf_event_attr {
    let mut attr = sys::zeroed_event();
    attr.type_ = perf_type_id::PERF_TYPE_SOFTWARE as u32;
    attr.config = perf_sw_ids::PERF_COUNT_SW_DUMMY as u64;
    // Executable mappings only, with device and inode.
    attr.set_mmap(1);
    attr.set_mmap2(1);
    attr.set_watermark(1);
    // Nobody waits for it; all the ring may fill.
    attr.__bindgen_anon_2.wakeup_watermark = u32::MAX;
    attr
}

enum Told {
    Mapping(Mapping),
    Lost(u64),
}

fn parse(record: &RawRecord) -> Option<Told> {
    let mut body = record.body.as_slice();
    if record.kind == perf_event_type::PERF_RECORD_LOST as u32 {
        let _event = body.try_get_u64_le().ok()?;
        return Some(Told::Lost(body.try_get_u64_le().ok()?));
    }
    if record.kind != perf_event_type::PERF_RECORD_MMAP2 as u32 {
        return None;
    }
    let pid = body.try_get_u32_le().ok()?;
    let tid = body.try_get_u32_le().ok()?;
    let address = body.try_get_u64_le().ok()?;
    let length = body.try_get_u64_le().ok()?;
    let page_offset = body.try_get_u64_le().ok()?;
    let major = body.try_get_u32_le().ok()?;
    let minor = body.try_get_u32_le().ok()?;
    let inode = body.try_get_u64_le().ok()?;
    let _generation = body.try_get_u64_le().ok()?;
    let protection = body.try_get_u32_le().ok()?;
    let _flags = body.try_get_u32_le().ok()?;
    let path = body.split(|byte| *byte == 0).next().unwrap_or_default();
    Some(Told::Mapping(Mapping {
        pid,
        tid,
        address,
        length,
        page_offset,
        major,
        minor,
        inode,
        protection,
        path: path.get(..path.len().min(MAX_PATH)).unwrap_or_default().to_vec(),
    }))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn record(kind: u32, fields: &[&[u8]]) -> RawRecord {
        RawRecord { kind, body: fields.concat() }
    }

    #[test]
    fn a_record_is_read_field_by_field() {
        let whole = record(
            10,
            &[
                &7u32.to_le_bytes(),
                &8u32.to_le_bytes(),
                &0x1000u64.to_le_bytes(),
                &0x2000u64.to_le_bytes(),
                &0x3000u64.to_le_bytes(),
                &253u32.to_le_bytes(),
                &1u32.to_le_bytes(),
                &99u64.to_le_bytes(),
                &0u64.to_le_bytes(),
                &5u32.to_le_bytes(),
                &2u32.to_le_bytes(),
                b"/a b\n\xff\0\0\0",
            ],
        );
        let Some(Told::Mapping(mapping)) = parse(&whole) else { panic!("not a mapping") };
        assert_eq!((mapping.pid, mapping.tid, mapping.inode), (7, 8, 99));
        assert_eq!((mapping.major, mapping.minor, mapping.protection), (253, 1, 5));
        assert_eq!(
            (mapping.address, mapping.length, mapping.page_offset),
            (0x1000, 0x2000, 0x3000)
        );
        assert_eq!(mapping.path, b"/a b\n\xff");
        for length in 0..64 {
            assert!(parse(&record(10, &[&whole.body[..length]])).is_none(), "{length}");
        }
        assert!(matches!(
            parse(&record(2, &[&1u64.to_le_bytes(), &42u64.to_le_bytes()])),
            Some(Told::Lost(42))
        ));
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn an_executable_mapping_is_told_and_a_plain_one_is_not() {
        let mut mappings = Mappings::open().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("code");
        std::fs::write(&path, vec![0x90; 8_192]).unwrap();
        let file = File::open(&path).unwrap();
        let inode = file.metadata().unwrap().ino();
        let map = |protection| {
            // SAFETY: a fresh private mapping at an address of the kernel's choice.
            unsafe {
                rustix::mm::mmap(
                    std::ptr::null_mut(),
                    4_096,
                    protection,
                    rustix::mm::MapFlags::PRIVATE,
                    file.as_fd(),
                    4_096,
                )
            }
            .unwrap()
        };
        let plain = map(rustix::mm::ProtFlags::READ);
        let code = map(rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::EXEC);
        let mut found = Vec::new();
        mappings.drain(|mapping| {
            if mapping.inode == inode {
                found.push(mapping);
            }
        });
        assert_eq!(found.len(), 1, "{found:?}");
        let mapping = found.remove(0);
        assert_eq!(mapping.pid, std::process::id());
        assert_eq!(mapping.address, code as u64);
        assert_eq!(mapping.page_offset, 4_096);
        assert!(mapping.path.ends_with(b"/code"));
        for address in [plain, code] {
            // SAFETY: mapped above, with nothing pointing into it.
            unsafe { rustix::mm::munmap(address, 4_096) }.unwrap();
        }
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_full_ring_is_counted_and_heals() {
        // There is a ring a CPU, and each tells of its own loss.
        let mut here = rustix::thread::CpuSet::new();
        here.set(rustix::thread::sched_getcpu());
        rustix::thread::sched_setaffinity(None, &here).unwrap();
        let mut mappings = Mappings::open().unwrap();
        let file = File::open("/proc/self/exe").unwrap();
        let burst = |times| {
            for _ in 0..times {
                // SAFETY: a fresh private mapping that nothing points into.
                unsafe {
                    let at = rustix::mm::mmap(
                        std::ptr::null_mut(),
                        4_096,
                        rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::EXEC,
                        rustix::mm::MapFlags::PRIVATE,
                        file.as_fd(),
                        0,
                    )
                    .unwrap();
                    rustix::mm::munmap(at, 4_096).unwrap();
                }
            }
        };
        let own = |mapping: &Mapping| mapping.pid == std::process::id();
        burst(5_000);
        let mut seen = 0u64;
        // Where somebody else maps meanwhile, some of the loss is told already.
        let told = mappings.drain(|mapping| seen += u64::from(own(&mapping)));
        assert!(seen > 100 && seen < 5_000, "{seen}");
        // The kernel tells what it lost when it next finds room.
        burst(1);
        let mut again = 0u64;
        let lost = told + mappings.drain(|mapping| again += u64::from(own(&mapping)));
        assert!(lost >= 5_000 - seen, "lost {lost}, seen {seen}");
        assert!(again >= 1);
        assert_eq!(mappings.drain(|_| {}), 0);
    }
}
