//! A call's copied stack to its return addresses: the unwinder is handed the process' mappings
//! and files, and what it learned is told to the kernel side.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::doing::Thing;
use super::files::OpenFile;
use super::learned::{From, Learned};
use super::mapped::Mapped;
use super::unwind::{AddressSpace, Code, Unwinder};
use crate::expendable::{Worker, lock};
use crate::intake::INNER;
use crate::record::{CopiedCall, Record};
use crate::snapshot::{Taken, TakenBy};

/// What a call under way takes beside its copy, bytes.
const BESIDE: usize = 1_024;

/// A copied call that is under way: while it is, its bytes count.
#[derive(Debug)]
pub struct UnderWay {
    /// The call.
    pub copied: Box<CopiedCall>,
    bytes: Arc<AtomicUsize>,
}

impl UnderWay {
    /// Counts a call's bytes; gives it back where there would be more than `limit` then.
    ///
    /// # Errors
    /// The call.
    pub fn within(
        limit: usize,
        copied: Box<CopiedCall>,
        bytes: &Arc<AtomicUsize>,
    ) -> Result<Self, Box<CopiedCall>> {
        let own = copied.copy.bytes.len() + BESIDE;
        if bytes.fetch_add(own, Relaxed) + own <= limit {
            return Ok(Self { copied, bytes: Arc::clone(bytes) });
        }
        bytes.fetch_sub(own, Relaxed);
        Err(copied)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.copied.copy.bytes.len() + BESIDE, Relaxed);
    }
}

/// A copied call, and when its stack was asked for.
#[derive(Clone, Debug)]
pub struct Job {
    /// The call.
    pub under_way: Arc<UnderWay>,
    /// When: mappings read later show what was mapped then, or it is gone.
    pub at: Instant,
}

/// Unwinds copies.
pub struct Unwinding {
    mapped: Mapped,
    unwinder: Unwinder,
    learned: Arc<Mutex<Learned>>,
}

impl Unwinding {
    /// Makes one, for this thread.
    #[must_use]
    pub fn new(mapped: Mapped, learned: Arc<Mutex<Learned>>) -> Self {
        Self { mapped, unwinder: Unwinder::new(), learned }
    }
}

impl Worker for Unwinding {
    type Job = Job;
    type Out = Record;

    fn work(&mut self, job: &Job) -> Record {
        let copied = &*job.under_way.copied;
        let CopiedCall { call, inner, copy, .. } = copied;
        let mut code = Process {
            mapped: &mut self.mapped,
            tgid: call.tgid,
            space: call.space,
            asked: job.at,
            looked_again: false,
            files: FxHashMap::default(),
        };
        code.bring_up_to_date();
        let unwound = self.unwinder.unwind(copy, &mut code);
        let mut learned = lock(&self.learned);
        let from =
            From { tgid: call.tgid, space: call.space, exec_pages: copy.exec_pages, asked: job.at };
        // Where nobody tells of new mappings, nothing that is learned stays true.
        if self.mapped.is_told() {
            learned.learn(&from, &unwound.steps);
        }
        drop(learned);
        let stack = inner.iter().chain(&unwound.addresses).copied().collect();
        let mut reasons: Vec<String> = unwound.incomplete.into_iter().collect();
        reasons.extend(unwound.folded);
        reasons.extend(inner.map(|_| INNER.to_owned()));
        let incomplete = (!reasons.is_empty()).then(|| Arc::from(reasons.join("; ")));
        copied.with(stack, Taken { by: TakenBy::Copy, incomplete })
    }

    fn idle(&mut self) {
        self.unwinder.idle();
    }
}

/// The code of one process, as one copy needs it.
struct Process<'a> {
    mapped: &'a mut Mapped,
    tgid: u32,
    space: u32,
    asked: Instant,
    looked_again: bool,
    /// A file is looked at once a stack, not once an address.
    files: FxHashMap<(u64, u64), Result<Arc<OpenFile>, String>>,
}

impl Process<'_> {
    /// Reads the mappings again where events say that they have changed.
    fn bring_up_to_date(&mut self) {
        if lock(&self.mapped.spaces).outdated(self.space) {
            self.looked_again = true;
            self.mapped.look_again(self.tgid, self.space, self.asked);
        }
    }
}

impl AddressSpace for Process<'_> {
    fn find(&mut self, address: u64) -> Code {
        let (tgid, space) = (self.tgid, self.space);
        let row = |mapped: &Mapped| lock(&mapped.spaces).find(tgid, space, address);
        let mut found = row(self.mapped);
        if found.is_none() && !self.looked_again {
            self.looked_again = true;
            self.mapped.look_again(tgid, space, self.asked);
            found = row(self.mapped);
        }
        let Some(row) = found else { return Code::Nowhere };
        let offset = row.file_offset(address);
        if let Some(code) = Code::special(&row, address) {
            return code;
        }
        let mapped = &mut *self.mapped;
        let file =
            self.files.entry((row.device, row.inode)).or_insert_with(|| mapped.file(tgid, &row));
        match file {
            Ok(file) => Code::File { file: Arc::clone(file), offset },
            // Compilers at run time keep code in files that are no programs.
            Err(_) if row.path.starts_with(b"/memfd:") => Code::Anonymous,
            Err(why) => Code::Unreadable { module: super::files::shown(&row), why: why.clone() },
        }
    }

    fn bytes(&mut self, address: u64, into: &mut [u8]) -> usize {
        // Code that is made at run time is nowhere else. The process may be gone, or its id
        // another's by now: what is read is code to be recognised, and is checked as such.
        let read = || {
            File::open(format!("/proc/{}/mem", self.tgid))
                .and_then(|memory| memory.read_at(into, address))
                .unwrap_or(0)
        };
        self.mapped.at.during(Thing::Memory(self.space), read).unwrap_or(0)
    }

    fn begin_reading(&mut self, file: Option<&OpenFile>) -> Result<(), String> {
        match file {
            Some(file) => self.mapped.at.begin(Thing::Unwind(file.key)),
            None => Ok(()),
        }
    }

    fn end_reading(&mut self) {
        self.mapped.at.end();
    }
}
