//! The processes that run a GPU library or have a GPU open, and whether their calls are seen:
//! a row of coverage for each.
//!
//! Only remembers who maps what; which file is probed is decided elsewhere, and asked for when
//! the rows are made.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jiff::Timestamp;

use super::coverage::{self, Reach};
use super::discover::{FileKey, Scan};
use crate::host::{clock, process};
use crate::snapshot::CoverageRow;

/// Processes that have a row; others are one row together.
const MAX_ROWS: usize = 512;
/// How long a process that has ended keeps its row, seconds: a report comes after the end.
const KEPT_SECONDS: i64 = 60;

/// How a process that maps a file was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// The kernel has told of the mapping, which was made after this moment.
    Told { after: Timestamp },
    /// By its maps: it may have mapped the file at any time of its life.
    Scanned,
}

/// One file in one process.
#[derive(Clone, Copy, Debug)]
struct Use {
    /// From here on at the latest it had the file mapped.
    noted: Timestamp,
    /// Before this moment it had not, as far as that is known.
    after: Timestamp,
}

/// One process.
#[derive(Debug)]
struct User {
    start_ns: u64,
    started: Timestamp,
    files: BTreeMap<FileKey, Use>,
    /// A GPU that it has open.
    device: Option<String>,
    /// It runs the driver's library, and its files were looked through for a runtime.
    examined: bool,
    ended: Option<Timestamp>,
}

/// What is known of a mapped file.
pub(super) struct Known<'a> {
    /// Its row.
    pub(super) row: &'a CoverageRow,
    /// Whether it is the driver's library.
    pub(super) driver: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Users {
    all: BTreeMap<u32, User>,
}

impl Users {
    /// Notes that a process maps a file of the catalog. Whether that is news.
    pub(super) fn maps(&mut self, pid: u32, key: FileKey, noted: Noted) -> bool {
        let Some(user) = self.user(pid) else { return false };
        if user.files.contains_key(&key) {
            return false;
        }
        let after = match noted {
            Noted::Told { after } => after.max(user.started),
            Noted::Scanned => user.started,
        };
        user.files.insert(key, Use { noted: Timestamp::now(), after });
        true
    }

    /// The process, asked after anew where its id is used again; `None` where it has ended.
    fn user(&mut self, pid: u32) -> Option<&mut User> {
        let start_ns = process::start_ns(pid)?;
        let age_ns = clock::boot_ns().saturating_sub(start_ns);
        let age = jiff::SignedDuration::from_nanos(i64::try_from(age_ns).unwrap_or(i64::MAX));
        let new = || User {
            start_ns,
            started: Timestamp::now().checked_sub(age).unwrap_or(Timestamp::UNIX_EPOCH),
            files: BTreeMap::new(),
            device: None,
            examined: false,
            ended: None,
        };
        let user = self.all.entry(pid).or_insert_with(new);
        if user.start_ns != start_ns {
            *user = new();
        }
        Some(user)
    }

    /// Takes in a complete look at all processes. `is_known` says of which files there is
    /// something to say.
    pub(super) fn scanned(&mut self, scan: &Scan, is_known: impl Fn(FileKey) -> bool) {
        for (key, users) in scan.users.iter().filter(|(key, _)| is_known(**key)) {
            for pid in users {
                self.maps(*pid, *key, Noted::Scanned);
            }
        }
        for (pid, device) in scan.devices.iter().flatten() {
            if let Some(user) = self.user(*pid) {
                user.device = Some(device.clone());
            }
        }
        // What a process has let go of, by an exec for one.
        for (pid, user) in self.all.iter_mut().filter(|(_, user)| user.ended.is_none()) {
            if scan.looked.contains(pid) {
                user.files
                    .retain(|key, _| scan.users.get(key).is_some_and(|users| users.contains(pid)));
                if let Some(devices) = &scan.devices {
                    user.device = devices.get(pid).cloned();
                }
            }
        }
        self.all.retain(|_, user| !user.files.is_empty() || user.device.is_some());
    }

    /// The files that a process maps.
    pub(super) fn files(&self, pid: u32) -> impl Iterator<Item = FileKey> {
        self.all.get(&pid).into_iter().flat_map(|user| user.files.keys().copied())
    }

    /// Notes who has ended, and forgets who has for long. Whether anybody has been forgotten.
    pub(super) fn age(&mut self) -> bool {
        let now = Timestamp::now();
        let before = self.all.len();
        self.all.retain(|pid, user| {
            if user.ended.is_none() && !process::started_at(*pid, user.start_ns) {
                user.ended = Some(now);
            }
            user.ended.is_none_or(|at| now.duration_since(at).as_secs() < KEPT_SECONDS)
        });
        self.all.len() != before
    }

    /// Has all files looked through once more: what was found in them is forgotten.
    pub(super) fn forget_examined(&mut self) {
        for user in self.all.values_mut() {
            user.examined = false;
        }
    }

    /// Processes that run the driver's library and whose files were not looked through yet.
    pub(super) fn unexamined<'a>(
        &mut self,
        known: impl Fn(FileKey) -> Option<Known<'a>>,
    ) -> Vec<u32> {
        let driver = |key: &FileKey| known(*key).is_some_and(|known| known.driver);
        let new = |user: &User| !user.examined && user.files.keys().any(driver);
        let all = self.all.iter_mut().filter(|(_, user)| new(user));
        all.map(|(pid, user)| {
            user.examined = true;
            *pid
        })
        .collect()
    }

    /// Whether the files of a process were looked through: what it maps from now on is as well.
    pub(super) fn is_examined(&self, pid: u32) -> bool {
        self.all.get(&pid).is_some_and(|user| user.examined && user.ended.is_none())
    }

    /// A row for each process. `known` says what became of a file.
    pub(super) fn coverage<'a>(
        &self,
        known: impl Fn(FileKey) -> Option<Known<'a>>,
    ) -> Vec<CoverageRow> {
        let mut rows = Vec::new();
        let mut hidden = 0_usize;
        for (pid, user) in &self.all {
            if rows.len() >= MAX_ROWS {
                hidden += 1;
                continue;
            }
            rows.push(user.row(*pid, &known));
        }
        if hidden > 0 {
            let reason = format!("{hidden} more processes run such libraries, without a row each");
            rows.push(CoverageRow { pid: None, ..coverage::process(0, reason) });
        }
        rows
    }
}

impl User {
    fn row<'a>(&self, pid: u32, known: &impl Fn(FileKey) -> Option<Known<'a>>) -> CoverageRow {
        let mut reach = Reach::default();
        let mut missed = BTreeSet::new();
        for (key, used) in &self.files {
            let Some(Known { row, .. }) = known(*key) else { continue };
            if let Some(at) = row.attached_at.filter(|_| row.attached) {
                let late = at > used.after;
                reach.add(row, if late { at } else { used.noted.max(at) });
                if late {
                    missed.insert(coverage::file_name(row));
                }
            } else {
                reach.without(row);
            }
        }
        let missed: Vec<String> = missed.into_iter().collect();
        if !missed.is_empty() {
            reach.say(format!(
                "calls before the probes were there are not on the books: it may have had {} \
                 mapped by then",
                missed.join(", ")
            ));
        }
        if self.examined && reach.has_driver_alone() {
            reach.say(
                "seen by the driver's library alone: it maps no runtime, and no file in which \
                 symbols of one were found"
                    .to_owned(),
            );
        }
        if let (true, Some(device)) = (reach.is_empty(), &self.device) {
            reach.say(format!(
                "it has {device} open and maps no library that memtrace knows: nothing of it is \
                 seen"
            ));
        }
        reach.row(pid)
    }
}

/// Where a process' executable is.
pub(super) fn executable(pid: u32) -> std::path::PathBuf {
    Path::new("/proc").join(pid.to_string()).join("exe")
}
