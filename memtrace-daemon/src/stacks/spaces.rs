//! What is mapped where, in every process that stacks come from: read from /proc at first
//! sight, told by the kernel's mapping events, or inherited from the parent by a fork.
//! Bounded, and without I/O: who holds its lock must not open anything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use memtrace_common::ProcessEntry;
use rustc_hash::{FxHashMap, FxHashSet};

use super::maps::{MAX_ROWS, Row};

/// Most address spaces (and as many processes' event tables) remembered.
const MAX_SPACES: usize = 1_024;
/// Most processes remembered.
const MAX_PROCESSES: usize = 16_384;
/// Most different paths kept.
const MAX_PATHS: usize = 16_384;
/// Stacks of code without frame pointers hold addresses that are nowhere, and each asks for
/// the mappings again: so many times at once, and then once in this time.
const AT_ONCE: u32 = 16;
const AGAIN: Duration = Duration::from_millis(500);

/// A new executable mapping, as the kernel's mapping event (perf MMAP2) has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Thread group, in the initial pid namespace.
    pub tgid: u32,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// Offset in the file, bytes.
    pub page_offset: u64,
    /// Device: major, minor.
    pub device: (u32, u32),
    /// Inode.
    pub inode: u64,
    /// Path as the event has it.
    pub path: Vec<u8>,
}

/// Whether /proc may be asked about a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Yes: the process runs, as far as is known, and is in this space.
    Read {
        /// What its start must be, ns since boot, if known: another process may have its id.
        start_ns: Option<u64>,
    },
    /// No: it was read after the stack was asked for, or too often.
    NotAgain,
    /// The process has ended, or executes another program by now.
    Gone,
}

/// The tables.
#[derive(Debug, Default)]
pub struct Spaces {
    processes: FxHashMap<u32, Known>,
    spaces: FxHashMap<u32, Table>,
    /// By thread group: mappings told by events.
    told: FxHashMap<u32, Table>,
    paths: FxHashSet<Arc<[u8]>>,
    clock: u64,
}

/// What records said of a process.
#[derive(Clone, Copy, Debug)]
struct Known {
    serial: u32,
    start_ns: u64,
    space: u32,
    ended: bool,
    /// What it is a copy of.
    forked: Option<Forked>,
}

/// A process at its fork.
#[derive(Clone, Copy, Debug)]
struct Forked {
    /// The space it was forked with.
    space: u32,
    /// The parent's, that it is a copy of.
    parent_space: u32,
    /// The parent.
    parent_tgid: u32,
}

#[derive(Debug, Default)]
struct Table {
    rows: Vec<Row>,
    read: Option<Instant>,
    /// Reads, less those that time has made good.
    reads: u32,
    /// When an event last added to it, ns since boot.
    told_ns: u64,
    /// An event has contradicted it: it is to be read again.
    outdated: bool,
    used: u64,
}

impl Table {
    /// Whether it may be read again.
    fn again(&self, asked: Instant) -> bool {
        let Some(read) = self.read else { return true };
        read <= asked && (self.reads < AT_ONCE || read.elapsed() >= AGAIN)
    }

    fn find(&self, address: u64) -> Option<&Row> {
        let behind = self.rows.partition_point(|row| row.start <= address);
        self.rows.get(behind.checked_sub(1)?).filter(|row| row.holds(address))
    }

    /// Whether a row takes the place of others, rather than being known or being in free space.
    fn is_contradicted_by(&self, new: &Row) -> bool {
        let behind = self.rows.partition_point(|row| row.end <= new.start);
        let overlapping = self.rows.iter().skip(behind).take_while(|row| row.start < new.end);
        overlapping.into_iter().any(|row| {
            row.inode != new.inode
                || row.offset.wrapping_sub(row.start) != new.offset.wrapping_sub(new.start)
        })
    }

    /// New rows replace what they overlap; older ones stay, for stacks taken before.
    fn add(&mut self, new: Vec<Row>) {
        if let [one] = &new[..] {
            self.rows.retain(|row| row.end <= one.start || one.end <= row.start);
        } else {
            let fresh = Self { rows: new.clone(), ..Self::default() };
            self.rows.retain(|row| {
                let behind = fresh.rows.partition_point(|new| new.end <= row.start);
                fresh.rows.get(behind).is_none_or(|next| row.end <= next.start)
            });
        }
        self.rows.extend(new);
        self.rows.sort_by_key(|row| row.start);
        self.rows.truncate(MAX_ROWS);
    }
}

impl Spaces {
    /// A process as a record has it now.
    pub fn process(&mut self, entry: &ProcessEntry) {
        let (tgid, serial) = (entry.key.tgid, entry.serial);
        let before = self.processes.get(&tgid).filter(|known| known.serial == serial).copied();
        let forked = match before {
            Some(known) => known.forked,
            None => {
                // Events of an earlier process with this id.
                let stale = |table: &Table| table.told_ns < entry.key.start_ns;
                if self.told.get(&tgid).is_some_and(stale) {
                    self.told.remove(&tgid);
                }
                let parent = self.processes.get(&entry.parent_tgid);
                parent.map(|parent| Forked {
                    space: entry.space,
                    parent_space: parent.space,
                    parent_tgid: entry.parent_tgid,
                })
            }
        };
        let known = Known {
            serial,
            start_ns: entry.key.start_ns,
            space: entry.space,
            ended: entry.ended(),
            forked,
        };
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&tgid) {
            self.processes.retain(|_, known| !known.ended);
        }
        if self.processes.len() < MAX_PROCESSES || before.is_some() {
            self.processes.insert(tgid, known);
        }
    }

    /// A new executable mapping, from an event that arrived at `now_ns` since boot.
    pub fn mapping(&mut self, mapping: &Mapping, now_ns: u64) {
        // Events have a name for what has none in /proc.
        let anonymous = mapping.inode == 0 && mapping.path == b"//anon";
        let path = self.intern(if anonymous { b"" } else { &mapping.path });
        let row = Row {
            start: mapping.start,
            end: mapping.start.saturating_add(mapping.length),
            offset: mapping.page_offset,
            device: rustix::fs::makedev(mapping.device.0, mapping.device.1),
            inode: mapping.inode,
            path,
        };
        let used = self.tick();
        make_room(&mut self.told);
        let table = self.told.entry(mapping.tgid).or_default();
        table.used = used;
        table.told_ns = now_ns;
        // What was read of the process' space is older than the event, or the event comes late:
        // /proc knows, if it can still be asked, and the event is believed if not.
        let space = self.processes.get(&mapping.tgid).map(|known| known.space);
        if let Some(read) = space.and_then(|space| self.spaces.get_mut(&space))
            && read.is_contradicted_by(&row)
        {
            read.rows.retain(|old| old.end <= row.start || row.end <= old.start);
            read.outdated = true;
        }
        table.add(vec![row]);
    }

    /// Whether what was read of a space is to be read again before it is relied on.
    #[must_use]
    pub fn outdated(&self, space: u32) -> bool {
        self.spaces.get(&space).is_some_and(|table| table.outdated)
    }

    /// Nobody will ask about this space again.
    pub fn forget(&mut self, space: u32) {
        self.spaces.remove(&space);
        let gone = self.processes.iter().find(|(_, known)| known.space == space && known.ended);
        if let Some(tgid) = gone.map(|(tgid, _)| *tgid) {
            self.processes.remove(&tgid);
            self.told.remove(&tgid);
        }
    }

    /// Whether /proc may be asked for the mappings of a space, for a stack that was asked for
    /// at `asked`.
    #[must_use]
    pub fn source(&self, tgid: u32, space: u32, asked: Instant) -> Source {
        let known = self.processes.get(&tgid);
        if known.is_some_and(|known| known.ended || known.space != space) {
            return Source::Gone;
        }
        if self.spaces.get(&space).is_some_and(|table| !table.again(asked)) {
            return Source::NotAgain;
        }
        Source::Read { start_ns: known.map(|known| known.start_ns) }
    }

    /// What /proc said of a space.
    pub fn read(&mut self, space: u32, mut rows: Vec<Row>) {
        for row in &mut rows {
            row.path = self.intern(&row.path);
        }
        let used = self.tick();
        make_room(&mut self.spaces);
        let table = self.spaces.entry(space).or_default();
        table.used = used;
        let rested = table.read.map_or(0, |read| read.elapsed().as_millis() / AGAIN.as_millis());
        table.reads = table.reads.saturating_sub(u32::try_from(rested).unwrap_or(u32::MAX)) + 1;
        table.read = Some(Instant::now());
        table.outdated = false;
        table.add(rows);
    }

    /// Whether anything is known of a space, from whatever source.
    #[must_use]
    pub fn knows(&self, tgid: u32, space: u32) -> bool {
        self.spaces.contains_key(&space)
            || self.told.contains_key(&tgid)
            || self.inherited(tgid, space).into_iter().flatten().next().is_some()
    }

    /// The mapping that holds an address: as read, as told by events, or as inherited.
    pub fn find(&mut self, tgid: u32, space: u32, address: u64) -> Option<Row> {
        let used = self.tick();
        let tables = [self.spaces.get_mut(&space), self.told.get_mut(&tgid)];
        for table in tables.into_iter().flatten() {
            table.used = used;
            if let Some(row) = table.find(address) {
                return Some(row.clone());
            }
        }
        self.inherited(tgid, space)
            .into_iter()
            .flatten()
            .find_map(|table| table.find(address))
            .cloned()
    }

    /// The process, and its space, that this one is a copy of.
    #[must_use]
    pub fn parent(&self, tgid: u32, space: u32) -> Option<(u32, u32)> {
        let forked = self.processes.get(&tgid).and_then(|known| known.forked)?;
        (forked.space == space).then_some((forked.parent_tgid, forked.parent_space))
    }

    /// Whether /proc of this id is, as far as is known, the process that has this space now,
    /// and when that must have started, ns since boot.
    #[must_use]
    pub fn alive(&self, tgid: u32, space: u32) -> (bool, Option<u64>) {
        let known = self.processes.get(&tgid);
        let alive = known.is_none_or(|known| !known.ended && known.space == space);
        (alive, known.map(|known| known.start_ns))
    }

    /// Tables kept: spaces, event tables, processes.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.spaces.len(), self.told.len(), self.processes.len())
    }

    /// What is known of the space that this one is a copy of: as read, and as told by events
    /// as long as the parent has executed nothing else.
    fn inherited(&self, tgid: u32, space: u32) -> [Option<&Table>; 2] {
        let forked = self.processes.get(&tgid).and_then(|known| known.forked);
        let Some(forked) = forked.filter(|forked| forked.space == space) else {
            return [None; 2];
        };
        let parent = self.processes.get(&forked.parent_tgid);
        let same = parent.is_some_and(|parent| parent.space == forked.parent_space);
        let told = self.told.get(&forked.parent_tgid).filter(|_| same);
        [self.spaces.get(&forked.parent_space), told]
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn intern(&mut self, path: &[u8]) -> Arc<[u8]> {
        if let Some(known) = self.paths.get(path) {
            return Arc::clone(known);
        }
        if self.paths.len() >= MAX_PATHS {
            self.paths.retain(|path| Arc::strong_count(path) > 1);
        }
        let path: Arc<[u8]> = path.into();
        if self.paths.len() < MAX_PATHS {
            self.paths.insert(Arc::clone(&path));
        }
        path
    }
}

/// Drops the quarter that was used longest ago, where there is no room for one more.
fn make_room(tables: &mut FxHashMap<u32, Table>) {
    if tables.len() < MAX_SPACES {
        return;
    }
    let mut used: Vec<u64> = tables.values().map(|table| table.used).collect();
    let (_, middle, _) = used.select_nth_unstable(MAX_SPACES / 4);
    let limit = *middle;
    tables.retain(|_, table| table.used > limit);
}

#[cfg(test)]
mod tests;
