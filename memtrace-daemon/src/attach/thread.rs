//! The thread that the watcher lives on, and the way to speak to it: a file on a dead mount
//! may hold it up for seconds, the engine never.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    ceiling::{Ceiling, Over},
    libraries::LibraryError,
    mappings::News,
    probing::Probers,
    rest::Rest,
    tracer::Paces,
    watch::{TICK, Watcher},
};
use crate::{host::clock, record::Observation};

/// How often it is looked who makes probes fire how often.
const PACE_EVERY: Duration = Duration::from_secs(1);

/// What the thread is asked to do.
enum Command {
    /// Attach to a file that a person named.
    Name(PathBuf, Sender<Result<u32, LibraryError>>),
    /// Attach to those of these files that are libraries of the catalog.
    Preattach(Vec<PathBuf>, Sender<()>),
    /// Look through /proc now.
    Rescan(Sender<()>),
    /// Two attachments fire for one call.
    Duplicate(u32, u32),
    /// A process is to be probed where that waits to be asked for, or not any more.
    Demand(u32, bool),
    /// Detach from everything and attach to nothing, or go on.
    Stop(bool),
}

/// Speaks to the thread; dropping it ends the thread, which detaches everything.
#[derive(Debug)]
pub struct AttachThread {
    commands: Option<Sender<Command>>,
    thread: Option<thread::JoinHandle<()>>,
    rests: Arc<AtomicU64>,
}

/// Who makes probes fire how often.
#[derive(Debug)]
pub struct Pace {
    paces: Paces,
    ceiling: Ceiling,
    looked: Instant,
}

impl Pace {
    /// Looks at these totals.
    #[must_use]
    pub fn new(paces: Paces, ceiling: Ceiling) -> Self {
        Self { paces, ceiling, looked: Instant::now() }
    }

    /// What is to be taken away now. Without a ceiling nothing is, and no totals are read.
    fn look(&mut self) -> Vec<Rest> {
        let mut spaces = HashSet::new();
        let Self { paces, ceiling, .. } = self;
        if !ceiling.is_on() {
            return Vec::new();
        }
        paces.totals(|key, totals| {
            spaces.insert(key.space);
            ceiling.observe(key, totals);
        });
        let over = ceiling.look(clock::monotonic_ns(), |space| spaces.contains(&space));
        let rest = |over: Over| {
            let Over { space, class, firings } = over;
            let pid = paces.process_of(space)?;
            Some(Rest { pid, class, firings, pause: ceiling.pause() })
        };
        over.into_iter().filter_map(rest).collect()
    }
}

/// The thread has ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the thread that attaches to libraries has ended; this is a fault of memtrace")]
pub struct ThreadGone;

impl AttachThread {
    /// Starts the thread. `told` hears of every new executable mapping; `deliver` gets coverage
    /// whenever it has changed, and what is not seen because probes fired too often; neither
    /// may block.
    ///
    /// # Errors
    /// The system's, when there can be no more threads.
    pub fn start(
        watcher: Watcher<Probers>,
        pace: Pace,
        told: impl Fn(News<'_>) + Send + 'static,
        deliver: impl Fn(Observation) + Send + 'static,
    ) -> std::io::Result<Self> {
        if let Some(why) = watcher.deaf() {
            tracing::warn!("{why}");
        }
        let (commands, receiver) = channel();
        let rests = Arc::new(AtomicU64::new(0));
        let work = Work { watcher, pace, told, deliver, rests: Arc::clone(&rests), stopped: false };
        let thread = thread::Builder::new()
            .name("mt-attach".to_owned())
            .spawn(move || work.run(&receiver))?;
        Ok(Self { commands: Some(commands), thread: Some(thread), rests })
    }

    /// Attaches to a file that a person named.
    ///
    /// # Errors
    /// That the thread has ended; inside, why the file cannot be attached to.
    pub fn name(&self, path: PathBuf) -> Result<Result<u32, LibraryError>, ThreadGone> {
        self.ask(|reply| Command::Name(path, reply))
    }

    /// Attaches to those of these files that are libraries of the catalog.
    ///
    /// # Errors
    /// That the thread has ended.
    pub fn preattach(&self, paths: Vec<PathBuf>) -> Result<(), ThreadGone> {
        self.ask(|reply| Command::Preattach(paths, reply))
    }

    /// Looks through the maps of all processes now, and attaches to what is there.
    ///
    /// # Errors
    /// That the thread has ended.
    pub fn rescan(&self) -> Result<(), ThreadGone> {
        self.ask(Command::Rescan)
    }

    /// Tells that two attachments fire for one call.
    pub fn duplicate(&self, first: u32, second: u32) {
        if let Some(commands) = &self.commands {
            // If the thread has ended nothing is attached any more.
            let _ = commands.send(Command::Duplicate(first, second));
        }
    }

    /// Has static probes that wait for it attached to one process, by its thread group id, or
    /// taken away again.
    pub fn demand(&self, process: u32, wanted: bool) {
        if let Some(commands) = &self.commands {
            // As above.
            let _ = commands.send(Command::Demand(process, wanted));
        }
    }

    /// Detaches from everything and attaches to nothing, or goes on. Does not wait for it: what
    /// became of it is in the coverage.
    pub fn stop(&self, stop: bool) {
        if let Some(commands) = &self.commands {
            // As above.
            let _ = commands.send(Command::Stop(stop));
        }
    }

    /// How often probes were taken away because they fired too often.
    #[must_use]
    pub fn rests(&self) -> u64 {
        self.rests.load(Relaxed)
    }

    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T, ThreadGone> {
        let (reply, answer) = channel();
        let commands = self.commands.as_ref().ok_or(ThreadGone)?;
        commands.send(command(reply)).map_err(|_| ThreadGone)?;
        answer.recv().map_err(|_| ThreadGone)
    }
}

impl Drop for AttachThread {
    fn drop(&mut self) {
        drop(self.commands.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; its probes went with it.
            let _ = thread.join();
        }
    }
}

struct Work<T, D> {
    watcher: Watcher<Probers>,
    pace: Pace,
    told: T,
    deliver: D,
    rests: Arc<AtomicU64>,
    stopped: bool,
}

impl<T: Fn(News<'_>), D: Fn(Observation)> Work<T, D> {
    fn covered(&self) {
        (self.deliver)(Observation::Coverage(self.watcher.coverage()));
    }

    /// Takes probes away that fire too often. Whether there were any.
    fn look_for_pace(&mut self, now: Instant) -> bool {
        if self.stopped || now.duration_since(self.pace.looked) < PACE_EVERY {
            return false;
        }
        self.pace.looked = now;
        let mut any = false;
        for rest in self.pace.look() {
            let Rest { pid, class, firings, pause } = rest;
            let seconds = pause.as_secs();
            tracing::warn!(
                "process {pid} makes probes fire {firings} times a second: they are away for \
                 {seconds} s"
            );
            if !self.watcher.rest(rest, now) {
                continue;
            }
            self.rests.fetch_add(1, Relaxed);
            any = true;
            // Kept on the books, what it frees meanwhile would look as if it stayed. Others that
            // run its files call by far less often: nobody can have their books emptied.
            if let Err(error) = self.pace.paces.forget(pid, class) {
                tracing::warn!("cannot close what nobody sees the end of: {error}");
            }
        }
        any
    }

    fn run(mut self, commands: &Receiver<Command>) {
        loop {
            let mut changed = match commands.recv_timeout(TICK) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match self.watcher.tick(Instant::now(), &self.told) {
                Ok(tick) => changed |= tick,
                Err(error) => tracing::warn!("cannot look through /proc for libraries: {error}"),
            }
            changed |= self.look_for_pace(Instant::now());
            if changed {
                self.covered();
            }
        }
        self.watcher.detach_all();
    }

    /// Whether coverage has changed and was not published yet. An answer comes after what it
    /// stands for has been published; whoever asked may have gone.
    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Name(path, reply) => {
                let answer = self.watcher.add_named(&path);
                self.covered();
                let _ = reply.send(answer);
                false
            }
            Command::Preattach(paths, reply) => {
                if self.watcher.preattach(&paths) {
                    self.covered();
                }
                let _ = reply.send(());
                false
            }
            Command::Rescan(reply) => {
                match self.watcher.rescan(Instant::now()) {
                    Ok(_) => self.covered(),
                    Err(error) => {
                        tracing::warn!("cannot look through /proc for libraries: {error}");
                    }
                }
                let _ = reply.send(());
                false
            }
            Command::Duplicate(first, second) => self.watcher.duplicate(first, second),
            Command::Demand(process, wanted) => self.watcher.demand(process, wanted),
            Command::Stop(stop) => {
                self.stopped = stop;
                self.watcher.stop(stop);
                true
            }
        }
    }
}
