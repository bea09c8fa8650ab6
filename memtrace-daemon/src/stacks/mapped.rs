//! What is mapped in a process, and the files behind it: what is known, else asked of /proc.
//!
//! /proc of a stuck process and files on dead mounts can block: this is for threads that can be
//! given up, and says by [`At`] what it is at.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::doing::{At, Thing};
use super::files::{self, OpenFile};
use super::maps::{self, Row};
use super::spaces::{Source, Spaces};
use super::told::Told;
use crate::expendable::lock;
use crate::host::process;

/// Mappings and files, for one thread.
pub struct Mapped {
    /// What is known of all processes.
    pub spaces: Arc<Mutex<Spaces>>,
    told: Arc<Told>,
    /// What this thread is at.
    pub at: At,
    /// By device and inode as mappings show them. Weak: whoever uses them keeps them open.
    open: FxHashMap<(u64, u64), Weak<OpenFile>>,
}

impl Mapped {
    /// Makes one.
    #[must_use]
    pub fn new(spaces: Arc<Mutex<Spaces>>, told: Arc<Told>, at: At) -> Self {
        Self { spaces, told, at, open: FxHashMap::default() }
    }

    /// Whether somebody tells of new mappings.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.told.is_told()
    }

    /// An address of a space was not found: reads what is mapped, or waits for the events that
    /// told of it. Returns why it could not be read.
    pub fn look_again(&self, tgid: u32, space: u32, asked: Instant) -> Option<String> {
        let source = lock(&self.spaces).source(tgid, space, asked);
        let unread = match source {
            Source::NotAgain => None,
            Source::Gone => Some("process ended before its mappings could be read".into()),
            Source::Read { start_ns } => self.read(tgid, space, asked, start_ns).err(),
        };
        // What was read may be another program's by now: an exec is heard of later than its calls.
        self.told.wait_for(asked);
        unread
    }

    /// Reads what is mapped now, unless /proc shows another process or program by now.
    fn read(
        &self,
        tgid: u32,
        space: u32,
        asked: Instant,
        start_ns: Option<u64>,
    ) -> Result<(), String> {
        let ended = "process ended before its mappings could be read";
        let (result, same) = self.at.during(Thing::Maps(space), || {
            let result = File::open(format!("/proc/{tgid}/maps")).and_then(maps::read);
            // Asked after reading: the id cannot have been given away before.
            (result, start_ns.is_none_or(|start_ns| process::started_at(tgid, start_ns)))
        })?;
        let rows = match result {
            Ok(rows) => rows,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Err(ended.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ended.into()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err("its mappings may not be read: CAP_SYS_PTRACE is missing".into());
            }
            Err(error) => return Err(format!("its mappings could not be read: {error}")),
        };
        let mut spaces = lock(&self.spaces);
        if !same || rows.is_empty() || spaces.source(tgid, space, asked) == Source::Gone {
            return Err(ended.into());
        }
        spaces.read(space, rows);
        Ok(())
    }

    pub fn file(&mut self, tgid: u32, row: &Row) -> Result<Arc<OpenFile>, String> {
        if row.inode == 0 {
            return Err("not in a file".into());
        }
        let id = (row.device, row.inode);
        let known = self.open.get(&id).and_then(Weak::upgrade);
        let file = self.at.during(Thing::Open(row.device, row.inode), || {
            match known.filter(|file| file.unchanged()) {
                Some(file) => Ok(file),
                None => files::open(tgid, row).map(Arc::new),
            }
        })??;
        if self.open.len() >= 1_024 {
            self.open.retain(|_, file| file.strong_count() > 0);
        }
        if file.as_mapped {
            self.open.insert(id, Arc::downgrade(&file));
        }
        Ok(file)
    }
}
