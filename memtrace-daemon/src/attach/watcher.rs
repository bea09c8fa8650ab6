//! The thread that finds files and attaches to them: it hears of new executable mappings from
//! the kernel, looks through /proc now and then as a net, and says what is covered.
//!
//! Must never touch the books; what it learns goes out through two callbacks.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use super::{
    coverage, deadline,
    discover::{self, CodeMapping, FileKey},
    inspect::inspect,
    libraries::{Found, Libraries, LibraryError, NotInspected},
    mappings::{Mapping, Mappings},
    probing::Probing,
};
use crate::snapshot::CoverageRow;

/// How often the kernel's rings are drained: a new library is probed that much later.
const DRAIN_EVERY: Duration = Duration::from_millis(20);
/// How often /proc is looked through where the kernel tells of mappings.
const RESCAN_EVERY: Duration = Duration::from_secs(30);
/// The same where it does not, or has just lost some.
const RESCAN_SOON: Duration = Duration::from_secs(1);
/// A file that cannot be read within this time is on a dead mount.
const FILE_DEADLINE: Duration = Duration::from_secs(2);

/// What the thread is asked to do.
enum Command {
    /// Attach to a file that a person named.
    Name(PathBuf, Sender<Result<u32, LibraryError>>),
    /// Attach to a file if it is a library of the catalog.
    Consider(PathBuf, Sender<()>),
    /// Two attachments fire for one call.
    Duplicate(u32, u32),
    /// Look through /proc now.
    Rescan(Sender<()>),
}

/// Speaks to the thread; dropping it ends the thread, which detaches everything.
#[derive(Debug)]
pub struct Watcher {
    commands: Option<Sender<Command>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// The thread has ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the thread that attaches to libraries has ended; this is a fault of memtrace")]
pub struct WatcherGone;

impl Watcher {
    /// Starts the thread. `told` hears of every executable mapping, `covered` of coverage
    /// whenever it has changed; neither may block.
    ///
    /// # Errors
    /// The system's, when there can be no more threads.
    pub fn start(
        libraries: Libraries<Probing>,
        told: impl Fn(&Mapping) + Send + 'static,
        covered: impl Fn(Vec<CoverageRow>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let mappings = Mappings::open().map_err(|error| tracing::warn!("{error}")).ok();
        let (commands, receiver) = channel();
        let thread = thread::Builder::new().name("mt-attach".to_owned()).spawn(move || {
            let work = Work {
                libraries,
                mappings,
                told,
                covered,
                coverage: None,
                stuck: Vec::new(),
                next_scan: Instant::now(),
            };
            work.run(&receiver);
        })?;
        Ok(Self { commands: Some(commands), thread: Some(thread) })
    }

    /// Attaches to a file that a person named.
    ///
    /// # Errors
    /// Why the file cannot be attached to.
    pub fn name(&self, path: PathBuf) -> Result<Result<u32, LibraryError>, WatcherGone> {
        self.ask(|reply| Command::Name(path, reply))
    }

    /// Attaches to a file if it is a library of the catalog.
    ///
    /// # Errors
    /// That the thread has ended.
    pub fn consider(&self, path: PathBuf) -> Result<(), WatcherGone> {
        self.ask(|reply| Command::Consider(path, reply))
    }

    /// Looks through the maps of all processes now, and attaches to what is there.
    ///
    /// # Errors
    /// That the thread has ended.
    pub fn rescan(&self) -> Result<(), WatcherGone> {
        self.ask(Command::Rescan)
    }

    /// Tells that two attachments fire for one call.
    pub fn duplicate(&self, first: u32, second: u32) {
        if let Some(commands) = &self.commands {
            // If the thread has ended nothing is attached any more.
            let _ = commands.send(Command::Duplicate(first, second));
        }
    }

    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T, WatcherGone> {
        let (reply, answer) = channel();
        let commands = self.commands.as_ref().ok_or(WatcherGone)?;
        commands.send(command(reply)).map_err(|_| WatcherGone)?;
        answer.recv().map_err(|_| WatcherGone)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.commands.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; there is nothing left to detach by hand.
            let _ = thread.join();
        }
    }
}

struct Work<T, C> {
    libraries: Libraries<Probing>,
    mappings: Option<Mappings>,
    told: T,
    covered: C,
    coverage: Option<Vec<CoverageRow>>,
    /// Processes that could not be looked into.
    stuck: Vec<CoverageRow>,
    next_scan: Instant,
}

impl<T: Fn(&Mapping), C: Fn(Vec<CoverageRow>)> Work<T, C> {
    fn run(mut self, commands: &Receiver<Command>) {
        loop {
            match commands.recv_timeout(DRAIN_EVERY) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.drain();
            if Instant::now() >= self.next_scan {
                self.scan();
            }
            self.publish();
        }
        self.libraries.detach_all();
    }

    fn obey(&mut self, command: Command) {
        // Whoever asked may have gone.
        match command {
            Command::Name(path, reply) => {
                let answer = self.libraries.add_named(&path);
                self.publish();
                let _ = reply.send(answer);
            }
            Command::Consider(path, reply) => {
                self.consider(path);
                self.publish();
                let _ = reply.send(());
            }
            Command::Duplicate(first, second) => {
                self.libraries.duplicate(first, second);
            }
            Command::Rescan(reply) => {
                self.drain();
                self.scan();
                self.publish();
                let _ = reply.send(());
            }
        }
    }

    fn consider(&mut self, path: PathBuf) {
        let found =
            Found { path: path.as_os_str().as_encoded_bytes().to_vec(), ..Found::default() };
        let looked = deadline::run(FILE_DEADLINE, move || inspect(super::elf::open(&path)?, false));
        if let Ok(Ok(inspection)) = looked {
            self.libraries.admit(&found, inspection);
        }
    }

    /// Takes in what the kernel has told since the last time.
    fn drain(&mut self) {
        let Some(mappings) = &mut self.mappings else { return };
        let mut new = Vec::new();
        let told = &self.told;
        let lost = mappings.drain(|mapping| {
            told(&mapping);
            if mapping.inode != 0 {
                new.push(CodeMapping::from(mapping));
            }
        });
        new.into_iter().for_each(|mapping| self.look(mapping));
        if lost > 0 {
            self.next_scan = self.next_scan.min(Instant::now() + RESCAN_SOON);
        }
    }

    /// Looks at a mapped file unless it is known.
    fn look(&mut self, mapping: CodeMapping) {
        if !self.libraries.is_new(mapping.key) {
            return;
        }
        let found =
            Found { key: Some(mapping.key), path: mapping.path.clone(), pid: Some(mapping.pid) };
        let looked = deadline::run(FILE_DEADLINE, move || inspect(mapping.open()?, false));
        match looked.map_err(NotInspected::from).and_then(|looked| looked.map_err(NotInspected::from))
        {
            Ok(inspection) => {
                self.libraries.admit(&found, inspection);
            }
            Err(why) => self.libraries.not_inspected(&found, &why),
        }
    }

    fn scan(&mut self) {
        let pause = if self.mappings.is_some() { RESCAN_EVERY } else { RESCAN_SOON };
        self.next_scan = Instant::now() + pause;
        let scan = match discover::scan(&[std::process::id()]) {
            Ok(scan) => scan,
            Err(error) => {
                tracing::warn!("cannot look through /proc for libraries: {error}");
                return;
            }
        };
        let mapped: HashSet<FileKey> = scan.files.keys().copied().collect();
        for mapping in scan.files.into_values() {
            self.look(mapping);
        }
        let reason = "its mappings cannot be read: it hangs in the kernel";
        self.stuck =
            scan.stuck.iter().map(|pid| coverage::process(*pid, reason.to_owned())).collect();
        if scan.complete {
            self.libraries.sweep(|key| mapped.contains(&key));
        }
    }

    /// Says what is covered, if that has changed.
    fn publish(&mut self) {
        let mut coverage = self.libraries.coverage();
        coverage.extend(self.stuck.iter().cloned());
        if self.coverage.as_ref() != Some(&coverage) {
            (self.covered)(coverage.clone());
            self.coverage = Some(coverage);
        }
    }
}
