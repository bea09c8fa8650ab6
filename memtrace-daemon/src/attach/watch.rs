//! Keeps probes on every library of the catalog that any process runs: hears of new mappings,
//! looks through /proc now and then, and hands each new file to `libraries.rs`.
//!
//! Blocks for as long as a file takes to be looked at, up to a deadline: runs on a thread of
//! its own, never on the engine's.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::coverage;
use super::deadline::{self, FILE_DEADLINE};
use super::discover::{self, CodeMapping, FileKey};
use super::elf::{self, ElfError};
use super::inspect::{Inspection, inspect, inspect_within};
use super::libraries::{Found, Libraries, LibraryError, NotInspected};
use super::looked::Looked;
use super::mappings::{Mappings, MappingsError, News};
use super::probing::Prober;
use super::rest::Rest;
use super::users::{Noted, Users};
use crate::snapshot::CoverageRow;

/// How often [`Watcher::tick`] should be called: a file that is mapped for the first time is
/// probed within this and some ms.
pub const TICK: Duration = Duration::from_millis(20);

/// Between looks through /proc where the kernel tells of new mappings: a net for what it could
/// not tell, and the time after which it is noticed that nobody maps a file any more.
const SLOW_RESCAN: Duration = Duration::from_secs(30);
/// The same where the kernel does not tell, and the shortest time between two looks at all.
const FAST_RESCAN: Duration = Duration::from_secs(1);
/// A process that was stuck is left alone for so long.
const STUCK_FOR: Duration = Duration::from_secs(300);

/// Finds libraries and keeps probes on them.
pub struct Watcher<P: Prober> {
    libraries: Libraries<P>,
    mappings: Option<Mappings>,
    /// Why the kernel does not tell of new mappings.
    deaf: Option<MappingsError>,
    stuck: Vec<(u32, Instant)>,
    looked: Looked,
    denied: Vec<u32>,
    scanned: Option<Instant>,
    /// When descriptors were last looked through for GPUs.
    devices: Option<Instant>,
    /// Mappings were lost since the last look through /proc.
    lost: bool,
    users: Users,
    /// What the kernel tells now was mapped after this moment.
    told: Timestamp,
    /// When it was last looked who has ended.
    aged: Option<Instant>,
    /// Something about who runs what has changed, and was not told yet.
    moved: bool,
    /// Files that a person named.
    named: Vec<PathBuf>,
    /// Nothing is attached.
    stopped: bool,
}

impl<P: Prober> Watcher<P> {
    /// Hears of mappings from now on. Nothing is attached until [`Watcher::rescan`] or
    /// [`Watcher::tick`].
    pub fn new(libraries: Libraries<P>) -> Self {
        match Mappings::open() {
            Ok(mappings) => Self { mappings: Some(mappings), ..Self::deafened(libraries) },
            Err(error) => Self { deaf: Some(error), ..Self::deafened(libraries) },
        }
    }

    /// Hears of nothing: knows what a look through /proc shows.
    pub(super) fn deafened(libraries: Libraries<P>) -> Self {
        Self {
            libraries,
            mappings: None,
            deaf: None,
            stuck: Vec::new(),
            looked: Looked::default(),
            denied: Vec::new(),
            scanned: None,
            devices: None,
            lost: false,
            users: Users::default(),
            told: Timestamp::now(),
            aged: None,
            moved: false,
            named: Vec::new(),
            stopped: false,
        }
    }

    /// Why new libraries are found late, if so.
    #[must_use]
    pub const fn deaf(&self) -> Option<&MappingsError> {
        self.deaf.as_ref()
    }

    /// Attaches to a file that a person named.
    ///
    /// # Errors
    /// That it cannot be read, has none of the functions, or cannot be probed.
    pub fn add_named(&mut self, path: &Path) -> Result<u32, LibraryError> {
        let added = self.libraries.add_named(path);
        if added.is_ok() && !self.named.iter().any(|known| known == path) {
            self.named.push(path.to_owned());
        }
        added
    }

    /// Detaches from everything and attaches to nothing, or attaches again to what is mapped
    /// and what was named.
    pub fn stop(&mut self, stop: bool) {
        if std::mem::replace(&mut self.stopped, stop) == stop {
            return;
        }
        self.libraries.detach_all();
        // Nobody listens meanwhile.
        self.looked = Looked::default();
        // With the next tick.
        (self.scanned, self.devices) = (None, None);
        if !stop {
            self.users.forget_examined();
            for path in self.named.clone() {
                if let Err(error) = self.libraries.add_named(&path) {
                    tracing::warn!("{error}");
                }
            }
        }
    }

    /// Attaches to files that a command is going to load, see `preattach.rs`. Whether coverage
    /// has changed.
    pub fn preattach(&mut self, candidates: &[PathBuf]) -> bool {
        let mut changed = false;
        for path in candidates {
            let found =
                Found { path: path.as_os_str().as_encoded_bytes().to_vec(), ..Found::default() };
            let path = path.clone();
            changed |= self.look(&found, move || elf::open(&path), false);
        }
        changed
    }

    /// Looks at what was mapped since the last call, of which `told` hears, and through /proc
    /// when it is time. Whether coverage has changed.
    ///
    /// # Errors
    /// That /proc cannot be listed.
    pub fn tick(&mut self, now: Instant, told: impl Fn(News<'_>)) -> io::Result<bool> {
        let mut new: Vec<CodeMapping> = Vec::new();
        let mut again: Vec<(u32, FileKey)> = Vec::new();
        let mut within: Vec<CodeMapping> = Vec::new();
        let draining = Timestamp::now();
        if let Some(mappings) = &mut self.mappings {
            let (libraries, users) = (&self.libraries, &self.users);
            let began = Instant::now();
            let lost = mappings.drain(|mapping| {
                told(News::Mapped(&mapping));
                if self.stopped {
                    return;
                }
                let mapping = CodeMapping::from(mapping);
                let known = new.iter().any(|other| other.key == mapping.key);
                if mapping.key.inode == 0 {
                    return;
                }
                let fresh = libraries.is_new(mapping.key);
                // Who runs the driver's library may come to a runtime within any other.
                if users.is_examined(mapping.pid) && (fresh || libraries.may_hide(mapping.key)) {
                    within.push(mapping.clone());
                }
                if known || libraries.known(mapping.key).is_some() {
                    again.push((mapping.pid, mapping.key));
                } else if fresh {
                    new.push(mapping);
                }
            });
            if lost > 0 {
                told(News::Lost);
            }
            told(News::Until(began));
            self.lost |= lost > 0;
        }
        let mut changed = false;
        for mapping in new {
            let noted = (mapping.pid, mapping.key);
            changed |= self.look_at(mapping, false);
            again.push(noted);
        }
        let noted = Noted::Told { after: std::mem::replace(&mut self.told, draining) };
        for (pid, key) in again {
            if self.libraries.known(key).is_some() {
                self.libraries.mapped_again(key);
                self.moved |= self.users.maps(pid, key, noted);
            }
        }
        changed |= self.examine();
        changed |= self.look_within(within);
        changed |= self.libraries.wake(now);
        if self.aged.is_none_or(|last| now.duration_since(last) >= FAST_RESCAN) {
            self.aged = Some(now);
            self.moved |= self.users.age();
            // At most once a second: processes come and go.
            changed |= std::mem::take(&mut self.moved);
        }
        let hurry = self.mappings.is_none() || self.lost;
        let interval = if hurry { FAST_RESCAN } else { SLOW_RESCAN };
        let due = self.scanned.is_none_or(|last| now.duration_since(last) >= interval);
        Ok(changed | (due && self.rescan(now)?))
    }

    /// Looks through the maps of all processes: attaches to what is new, lets go of what is
    /// gone. Whether coverage has changed.
    ///
    /// # Errors
    /// That /proc cannot be listed.
    pub fn rescan(&mut self, now: Instant) -> io::Result<bool> {
        if self.stopped {
            return Ok(false);
        }
        let before = self.coverage();
        self.scanned = Some(now);
        let told = self.mappings.is_some() && !self.lost;
        self.stuck.retain(|(pid, since)| {
            now.duration_since(*since) < STUCK_FOR && Path::new(&format!("/proc/{pid}")).exists()
        });
        let skip: Vec<u32> = self.stuck.iter().map(|(pid, _)| *pid).collect();
        let due = |last: Instant| now.duration_since(last) >= SLOW_RESCAN;
        let devices = self.devices.is_none_or(due);
        if devices {
            self.devices = Some(now);
        }
        let scan = discover::scan(&skip, devices)?;
        self.lost = false;
        self.stuck.extend(scan.stuck.iter().map(|pid| (*pid, now)));
        self.denied.clone_from(&scan.denied);
        let hanging: Vec<u32> = self.stuck.iter().map(|(pid, _)| *pid).collect();
        let known = self.looked.take(&scan.looked, &hanging, told);
        // A process of which nothing is known may map anything; who hangs, what it mapped before.
        if scan.complete && known {
            let held: HashSet<FileKey> =
                hanging.iter().flat_map(|pid| self.users.files(*pid)).collect();
            let is_mapped = |key: FileKey| scan.files.contains_key(&key) || held.contains(&key);
            self.libraries.sweep(now, scan.denied.is_empty(), is_mapped);
        }
        for mapping in scan.files.values() {
            if self.libraries.is_new(mapping.key) {
                self.look_at(mapping.clone(), false);
            }
        }
        self.look_within_untold(&scan);
        self.users.scanned(&scan, |key| self.libraries.known(key).is_some());
        self.examine();
        Ok(before != self.coverage())
    }

    /// Takes one of two attachments away that fire for the same call. Whether coverage has
    /// changed.
    pub fn duplicate(&mut self, first: u32, second: u32) -> bool {
        self.libraries.duplicate(first, second)
    }

    /// Attaches static probes that wait for it to one process, or takes them away again. Whether
    /// coverage has changed.
    pub fn demand(&mut self, process: u32, wanted: bool) -> bool {
        self.libraries.demand(process, wanted)
    }

    /// Takes probes away for a while: from the files that the process is known to run, or from
    /// all. Whether any were there.
    pub fn rest(&mut self, rest: Rest, now: Instant) -> bool {
        let mut ids: Vec<u32> =
            self.users.files(rest.pid).filter_map(|key| self.libraries.id_of(key)).collect();
        if ids.is_empty() {
            ids = self.libraries.ids();
        }
        ids.into_iter().fold(false, |any, id| any | self.libraries.rest(id, rest, now))
    }

    /// Files attached.
    #[must_use]
    pub fn attached(&self) -> usize {
        self.libraries.attached()
    }

    /// A row for each library of the catalog that was seen, one for each process that runs one
    /// or has a GPU open, one for each process that is stuck,
    /// and one for all processes that may not be looked into.
    #[must_use]
    pub fn coverage(&self) -> Vec<CoverageRow> {
        let mut rows = self.libraries.coverage();
        let mut users = self.users.coverage(|key| self.libraries.known(key));
        if self.stopped {
            for row in &mut users {
                row.reason = Some("tracing is stopped: `memtrace resume` goes on".to_owned());
            }
        }
        rows.extend(users);
        rows.extend(self.stuck.iter().map(|(pid, _)| {
            let reason = "its maps cannot be read: it is stuck in the kernel; libraries that \
                          only it runs are not probed";
            coverage::process(*pid, reason.to_owned())
        }));
        if let Some(first) = self.denied.first() {
            let reason = match self.denied.len() {
                1 => "its maps may not be read: libraries that only it runs are not probed \
                      (CAP_SYS_PTRACE lets a tracer read them)"
                    .to_owned(),
                all => format!(
                    "the maps of {all} processes, this one among them, may not be read: libraries \
                     that only they run are not probed (CAP_SYS_PTRACE lets a tracer read them)"
                ),
            };
            rows.push(coverage::process(*first, reason));
        }
        rows
    }

    /// Detaches from everything.
    pub fn detach_all(&mut self) {
        self.libraries.detach_all();
    }

    fn look_at(&mut self, mapping: CodeMapping, within: bool) -> bool {
        let found =
            Found { key: Some(mapping.key), path: mapping.path.clone(), pid: Some(mapping.pid) };
        self.look(&found, move || mapping.open(), within)
    }

    /// Looks at a file, or also `within` it for a runtime. Whether coverage has changed.
    fn look(
        &mut self,
        found: &Found,
        open: impl FnOnce() -> Result<std::fs::File, ElfError> + Send + 'static,
        within: bool,
    ) -> bool {
        let work = move || {
            let file = open()?;
            if within { inspect_within(file) } else { inspect(file, false) }
        };
        let inspected: Result<Inspection, NotInspected> = deadline::run(FILE_DEADLINE, work)
            .map_err(NotInspected::from)
            .and_then(|inspected| inspected.map_err(NotInspected::from));
        match inspected {
            Ok(inspection) => {
                // Of all files only libraries of the catalog have a row, and what has a runtime.
                let changed = inspection.library.is_some() || !inspection.points.points.is_empty();
                self.libraries.admit(found, inspection);
                changed
            }
            Err(why) => {
                self.libraries.not_inspected(found, &why);
                matches!(why, NotInspected::Late(_))
            }
        }
    }
}

mod within;

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::attach::policy::FilePolicy;
    use crate::attach::survey::Nothing;
    use crate::attach::test_files::Library;

    pub(super) fn watcher() -> Watcher<Nothing> {
        Watcher::new(Libraries::new(Nothing, FilePolicy::default()))
    }

    /// Runs a program that has mapped `library` when this returns.
    pub(super) fn run_with(library: &Path) -> Child {
        use std::io::{Read as _, Write as _};
        let mut child = Command::new("/bin/cat")
            .env("LD_PRELOAD", library)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It has loaded everything once it answers.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    }

    pub(super) fn row<'a>(rows: &'a [CoverageRow], path: &Path) -> Option<&'a CoverageRow> {
        rows.iter().find(|row| row.path.as_deref() == path.to_str())
    }

    #[test]
    fn a_rescan_finds_what_runs_and_lets_go_of_what_is_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let path = Library { soname: Some("libcudart.so.12"), ..Library::default() }
            .build(directory.path(), "with a space");
        let link = directory.path().join("link");
        std::fs::hard_link(&path, &link).unwrap();
        let mut watcher = watcher();
        let mut child = run_with(&link);
        assert!(watcher.rescan(Instant::now()).unwrap());
        let before = watcher.coverage();
        let before = row(&before, &link).unwrap();
        assert!(before.attached);
        assert_eq!(before.pid, Some(child.id()));
        watcher.rescan(Instant::now()).unwrap();
        assert_eq!(row(&watcher.coverage(), &link), Some(before), "nothing is new");
        // Deleted, but running: it stays.
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&link).unwrap();
        watcher.rescan(Instant::now()).unwrap();
        assert_eq!(row(&watcher.coverage(), &link), Some(before));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(watcher.rescan(Instant::now()).unwrap());
        assert!(row(&watcher.coverage(), &link).is_none());
    }

    #[test]
    fn what_a_command_will_load_is_attached_before_it_runs() {
        let directory = tempfile::tempdir().unwrap();
        let path = Library { soname: Some("libcuda.so.1"), ..Library::default() }
            .build(directory.path(), "driver");
        let mut watcher = watcher();
        watcher.rescan(Instant::now()).unwrap();
        assert!(watcher.preattach(&[path.clone(), PathBuf::from("/nowhere")]));
        let rows = watcher.coverage();
        let before = row(&rows, &path).unwrap();
        assert_eq!((before.attached, before.pid), (true, None));
        assert!(before.functions.iter().any(|function| function == "cuMemAlloc_v2"));
        // When it is mapped, it is not attached again.
        let mut child = run_with(&path);
        watcher.rescan(Instant::now()).unwrap();
        let rows = watcher.coverage();
        assert_eq!(row(&rows, &path).unwrap().pid, Some(child.id()));
        assert_eq!(rows.iter().filter(|row| row.path.as_deref() == path.to_str()).count(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn the_kernel_tells_of_a_library_that_is_mapped_later() {
        let directory = tempfile::tempdir().unwrap();
        let path = Library { soname: Some("libcudart.so.12"), ..Library::default() }
            .build(directory.path(), "late");
        let mut watcher = watcher();
        assert!(watcher.deaf().is_none());
        watcher.rescan(Instant::now()).unwrap();
        assert!(row(&watcher.coverage(), &path).is_none());
        let mut child = run_with(&path);
        // No look through /proc is due: the kernel has told.
        assert!(watcher.tick(Instant::now(), |_| {}).unwrap());
        assert!(row(&watcher.coverage(), &path).is_some_and(|row| row.attached));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
