//! Reads /etc/ld.so.cache: which library names the system's loader finds, and where.
//!
//! The format is glibc's (`elf/cache.c`, `dl-cache.h`). Must never fail for want of a cache:
//! no cache is an empty one.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use bytes::Buf as _;

/// Where glibc keeps it.
pub(super) const LD_SO_CACHE: &str = "/etc/ld.so.cache";

/// Bytes read of the cache; real ones have 20 KB to 500 KB.
const MAX_BYTES: u64 = 16 << 20;
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0\0";
/// Bytes of the old format's header and of one of its entries.
const OLD_HEADER: usize = 16;
const OLD_ENTRY: usize = 12;
/// Bytes of the header and of an entry.
const HEADER: usize = 48;
const ENTRY: usize = 24;
/// Entries of an x86-64 ELF library.
const FLAG_X86_64_ELF: u32 = 0x0303;
/// The part of the flags that says what kind of library it is.
const FLAG_KIND: u32 = 0xffff;

/// Names and paths of the x86-64 libraries in the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LdCache {
    entries: Vec<(Vec<u8>, PathBuf)>,
}

impl LdCache {
    pub(super) fn read(path: &Path) -> Self {
        let mut bytes = Vec::new();
        let read =
            std::fs::File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
        if read.is_ok() { Self::parse(&bytes).unwrap_or_default() } else { Self::default() }
    }

    /// Where the loader finds a name.
    pub(super) fn find<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a PathBuf> + 'a {
        self.entries.iter().filter(move |(known, _)| known == name).map(|(_, path)| path)
    }

    /// All names and paths.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &PathBuf)> {
        self.entries.iter().map(|(name, path)| (name.as_slice(), path))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut cache = bytes;
        if cache.starts_with(OLD_MAGIC) {
            // The old format comes first, the new one behind it, aligned.
            let count = cache.get(OLD_MAGIC.len()..)?.try_get_u32_le().ok()? as usize;
            let end = count.checked_mul(OLD_ENTRY)?.checked_add(OLD_HEADER)?;
            cache = cache.get(end.checked_next_multiple_of(8)?..)?;
        }
        let mut header = cache.get(..HEADER)?.strip_prefix(MAGIC)?;
        let count = header.try_get_u32_le().ok()? as usize;
        let entries = cache.get(HEADER..)?.chunks_exact(ENTRY).take(count);
        // Strings are found from the beginning of this format's header.
        let string = |offset: u32| {
            let rest = cache.get(offset as usize..)?;
            rest.split(|byte| *byte == 0).next().map(<[u8]>::to_vec)
        };
        let entries = entries
            .filter_map(|mut entry| {
                let flags = entry.try_get_u32_le().ok()?;
                let name = entry.try_get_u32_le().ok()?;
                let path = entry.try_get_u32_le().ok()?;
                if flags & FLAG_KIND != FLAG_X86_64_ELF {
                    return None;
                }
                Some((string(name)?, PathBuf::from(OsString::from_vec(string(path)?))))
            })
            .collect();
        Some(Self { entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(flags: u32) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&1u32.to_le_bytes());
        bytes.resize(HEADER, 0);
        let strings = (HEADER + ENTRY) as u32;
        for word in [flags, strings, strings + 10, 0, 0, 0] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(b"libx.so.1\0/opt/libx.so.1\0");
        bytes
    }

    #[test]
    fn entries_of_this_machine_are_found() {
        let cache = LdCache::parse(&cache(0x0303)).unwrap();
        let found: Vec<_> = cache.find(b"libx.so.1").collect();
        assert_eq!(found, [Path::new("/opt/libx.so.1")]);
        assert_eq!(cache.find(b"libx.so").count(), 0);
    }

    #[test]
    fn entries_of_other_machines_are_not() {
        assert_eq!(LdCache::parse(&cache(0x0003)).unwrap(), LdCache::default());
    }

    #[test]
    fn the_old_format_before_it_is_skipped() {
        let mut bytes = OLD_MAGIC.to_vec();
        bytes.extend_from_slice(&1u32.to_le_bytes());
        bytes.resize(OLD_HEADER + OLD_ENTRY, 0);
        bytes.resize((OLD_HEADER + OLD_ENTRY).next_multiple_of(8), 0);
        bytes.extend_from_slice(&cache(0x0303));
        assert_eq!(LdCache::parse(&bytes).unwrap().iter().count(), 1);
    }

    #[test]
    fn a_broken_cache_is_an_empty_one() {
        let whole = cache(0x0303);
        for length in 0..whole.len() {
            let _ = LdCache::parse(&whole[..length]);
        }
        assert_eq!(LdCache::parse(b"nonsense"), None);
        assert_eq!(LdCache::read(Path::new("/nowhere")), LdCache::default());
    }

    #[test]
    fn this_machines_cache_knows_libc() {
        let cache = LdCache::read(Path::new(LD_SO_CACHE));
        assert!(cache.find(b"libc.so.6").any(|path| path.exists()));
    }
}
