//! This process as an [`AddressSpace`]: for tests and measurements, which unwind themselves.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{AddressSpace, Code};
use crate::stacks::files::{self, OpenFile};
use crate::stacks::maps::{self, Row};

/// This process, as its mappings were when this was made.
#[derive(Clone, Debug)]
pub struct OwnSpace {
    rows: Vec<Row>,
    open: FxHashMap<(u64, u64), Result<Arc<OpenFile>, String>>,
}

impl OwnSpace {
    /// Reads the mappings.
    ///
    /// # Errors
    /// Those of /proc/self/maps.
    pub fn new() -> io::Result<Self> {
        let rows = maps::read(File::open("/proc/self/maps")?)?;
        Ok(Self { rows, open: FxHashMap::default() })
    }

    fn row(&self, address: u64) -> Option<&Row> {
        let behind = self.rows.partition_point(|row| row.start <= address);
        self.rows.get(behind.checked_sub(1)?).filter(|row| row.holds(address))
    }
}

impl AddressSpace for OwnSpace {
    fn find(&mut self, address: u64) -> Code {
        let Some(row) = self.row(address) else { return Code::Nowhere };
        if let Some(special) = Code::special(row, address) {
            return special;
        }
        let (id, offset) = ((row.device, row.inode), row.file_offset(address));
        let file = match self.open.get(&id) {
            Some(file) => file.clone(),
            None => {
                let file = files::open(std::process::id(), row).map(Arc::new);
                self.open.insert(id, file.clone());
                file
            }
        };
        match file {
            Ok(file) => Code::File { file, offset },
            Err(why) => Code::Unreadable { module: String::new(), why },
        }
    }

    fn bytes(&mut self, address: u64, into: &mut [u8]) -> usize {
        let Some(row) = self.row(address) else { return 0 };
        let length = usize::try_from(row.end - address).unwrap_or(0).min(into.len());
        let local = [local_iovec(into, length)];
        let remote = [libc::iovec { iov_base: address as *mut _, iov_len: length }];
        let own = std::process::id().cast_signed();
        // SAFETY: writes at most `length` bytes into `into`; a bad address is an error.
        let read = unsafe { libc::process_vm_readv(own, local.as_ptr(), 1, remote.as_ptr(), 1, 0) };
        usize::try_from(read).unwrap_or(0)
    }
}

fn local_iovec(into: &mut [u8], length: usize) -> libc::iovec {
    libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: length }
}
