//! Shared memory that nobody uses: files in /dev/shm that no process has open or mapped, and
//! System V segments that nobody has attached and whose maker has ended.
//!
//! Looks through all processes, so it is done only where shared memory has grown and nobody
//! knows why. It can block where one of them hangs in a driver.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::rows::Rows;
use crate::expendable::Worker;
use crate::record::{Observation, UnusedShared};

const DIRECTORY: &str = "/dev/shm";
/// Files and segments looked at; whoever has more has them in one place.
const MAX_FILES: usize = 16_384;
/// Directories below /dev/shm are followed so deep.
const MAX_DEPTH: usize = 3;
/// Most bytes of one process' list of mappings.
const MAX_MAPS: u64 = 64 << 20;
/// Names told.
const TOLD: usize = 3;

/// What was there when memtrace was started. Shared, because a worker that hung is replaced.
pub(super) type Before = Arc<OnceLock<HashSet<Object>>>;

/// What one piece of shared memory is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Object {
    /// Device and inode.
    File(u64, u64),
    /// Id of a System V segment.
    Segment(u64),
}

/// Looks when asked; the first look only notes what is there.
pub(super) struct Shared {
    before: Before,
}

impl Shared {
    pub(super) const fn new(before: Before) -> Self {
        Self { before }
    }
}

impl Worker for Shared {
    type Job = ();
    type Out = Option<Observation>;

    fn work(&mut self, (): &()) -> Option<Observation> {
        let segments = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
        let mut all = files(Path::new(DIRECTORY));
        all.extend(unattached(&segments, |pid| Path::new(&format!("/proc/{pid}")).exists()));
        let Some(before) = self.before.get() else {
            // Ours or another's: both are of the start.
            let _ = self.before.set(all.iter().map(|piece| piece.object).collect());
            return None;
        };
        Some(Observation::UnusedShared(unused(all, before)))
    }
}

/// A file or a segment.
#[derive(Clone, Debug)]
struct Piece {
    object: Object,
    /// Path of a file; what to call a segment.
    name: String,
    bytes: u64,
}

fn unused(mut all: Vec<Piece>, before: &HashSet<Object>) -> UnusedShared {
    let mut unused = UnusedShared::default();
    let files = all.iter().any(|piece| matches!(piece.object, Object::File(..)));
    let mut used = Used::default();
    if files {
        used.look();
    }
    (unused.unseen, unused.unseen_bytes) = (used.unseen, used.unseen_bytes);
    all.retain(|piece| !used.has(piece));
    all.sort_by_key(|piece| std::cmp::Reverse(piece.bytes));
    for piece in &all {
        unused.bytes = unused.bytes.saturating_add(piece.bytes);
        unused.count += 1;
        if !before.contains(&piece.object) {
            unused.new_bytes = unused.new_bytes.saturating_add(piece.bytes);
            unused.new_count += 1;
            if unused.largest.len() < TOLD {
                unused.largest.push(piece.name.clone());
            }
        }
    }
    unused
}

/// Files below a directory that take memory.
fn files(directory: &Path) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut directories = vec![(directory.to_owned(), 0)];
    while let Some((directory, depth)) = directories.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten().take(MAX_FILES) {
            // Of the entry itself: a link is not followed.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() && depth < MAX_DEPTH {
                directories.push((entry.path(), depth + 1));
            } else if metadata.is_file() && metadata.st_blocks() > 0 && pieces.len() < MAX_FILES {
                pieces.push(Piece {
                    object: Object::File(metadata.st_dev(), metadata.st_ino()),
                    name: super::text::text(entry.path().as_os_str().as_encoded_bytes()),
                    bytes: metadata.st_blocks().saturating_mul(512),
                });
            }
        }
    }
    pieces
}

/// System V segments that nobody has attached and whose maker has ended.
fn unattached(table: &str, runs: impl Fn(u64) -> bool) -> Vec<Piece> {
    let mut lines = table.lines();
    let Some(head) = lines.next() else { return Vec::new() };
    let column = |name: &str| head.split_ascii_whitespace().position(|found| found == name);
    let piece = |line: &str| {
        let cells: Vec<&str> = line.split_ascii_whitespace().collect();
        let cell = |name: &str| cells.get(column(name)?)?.parse::<u64>().ok();
        let (id, maker) = (cell("shmid")?, cell("cpid")?);
        let bytes = cell("rss")?.saturating_add(cell("swap").unwrap_or(0));
        (cell("nattch")? == 0 && bytes > 0 && !runs(maker)).then(|| Piece {
            object: Object::Segment(id),
            name: format!("System V segment {id}, made by pid {maker}"),
            bytes,
        })
    };
    lines.take(MAX_FILES).filter_map(piece).collect()
}

/// Files in /dev/shm that somebody uses.
#[derive(Default)]
struct Used {
    names: HashSet<PathBuf>,
    unseen: u64,
    unseen_bytes: u64,
}

impl Used {
    fn has(&self, piece: &Piece) -> bool {
        matches!(piece.object, Object::File(..)) && self.names.contains(Path::new(&piece.name))
    }

    fn look(&mut self) {
        for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = process.file_name();
            if !name.as_encoded_bytes().iter().all(u8::is_ascii_digit) {
                continue;
            }
            let path = process.path();
            let looked = [self.opened(&path), self.mapped(&path)];
            // Who has ended meanwhile uses nothing.
            if looked.into_iter().any(|looked| looked.is_err_and(|error| !ended(&error))) {
                self.unseen += 1;
                let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
                let bytes = Rows::new(&status).or_zero("RssShmem");
                self.unseen_bytes = self.unseen_bytes.saturating_add(bytes);
            }
        }
    }

    fn opened(&mut self, process: &Path) -> std::io::Result<()> {
        for entry in std::fs::read_dir(process.join("fd"))?.flatten() {
            let target = match std::fs::read_link(entry.path()) {
                Ok(target) => target,
                // Closed meanwhile.
                Err(error) if ended(&error) => continue,
                Err(error) => return Err(error),
            };
            if target.starts_with(DIRECTORY) {
                self.names.insert(target);
            }
        }
        Ok(())
    }

    fn mapped(&mut self, process: &Path) -> std::io::Result<()> {
        let maps = std::fs::File::open(process.join("maps"))?.take(MAX_MAPS);
        for line in BufReader::new(maps).split(b'\n') {
            let line = line?;
            let path = line.iter().position(|byte| *byte == b'/').and_then(|at| line.get(at..));
            if let Some(path) = path
                && path.starts_with(DIRECTORY.as_bytes())
            {
                self.names.insert(PathBuf::from(super::text::text(path)));
            }
        }
        Ok(())
    }
}

/// Whether what was to be read is not there any more.
fn ended(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in /dev/shm, removed on drop.
    struct File(PathBuf);

    impl File {
        fn new(name: &str, bytes: usize) -> Self {
            let name = format!("mt-test-{}-{name}", std::process::id());
            let path = Path::new(DIRECTORY).join(name);
            std::fs::write(&path, vec![1_u8; bytes]).unwrap();
            Self(path)
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).unwrap();
        }
    }

    #[test]
    fn a_file_that_nobody_has_open_is_unused_and_one_that_is_open_is_not() {
        let before = Before::default();
        let mut shared = Shared::new(Arc::clone(&before));
        assert!(shared.work(&()).is_none(), "the first look notes what is there");
        let (left, open) = (File::new("left", 3 << 20), File::new("open", 1 << 20));
        let held = std::fs::File::open(&open.0).unwrap();
        let look = |shared: &mut Shared| match shared.work(&()) {
            Some(Observation::UnusedShared(unused)) => unused,
            other => panic!("{other:?}"),
        };
        let is = |file: &File, unused: &UnusedShared| {
            unused.largest.iter().any(|name| Path::new(name) == file.0)
        };
        let first = look(&mut shared);
        assert!(is(&left, &first) && !is(&open, &first), "{first:?}");
        assert!(first.new_bytes >= 3 << 20 && first.new_bytes <= first.bytes);
        drop(held);
        let second = look(&mut shared);
        assert!(is(&open, &second), "{second:?}");
        assert!(second.new_bytes >= first.new_bytes + (1 << 20));
    }

    #[test]
    fn segments_of_those_who_ended_are_told_from_the_table() {
        let table = "       key      shmid perms                  size  cpid  lpid nattch   uid   \
                     gid  cuid  cgid      atime      dtime      ctime                   rss      \
                     swap\n\
                     0 3 600 1048576 77 77 0 0 0 0 0 1 1 1 1048576 4096\n\
                     0 4 600 1048576 77 77 1 0 0 0 0 1 1 1 1048576 0\n\
                     0 5 600 1048576 88 88 0 0 0 0 0 1 1 1 1048576 0\n\
                     0 6 600 1048576 77 77 0 0 0 0 0 1 1 1 0 0\n";
        let found = unattached(table, |pid| pid == 88);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].object, found[0].bytes), (Object::Segment(3), 1_052_672));
        assert_eq!(found[0].name, "System V segment 3, made by pid 77");
        assert!(unattached("", |_| false).is_empty());
    }
}
