//! The thread that the watcher lives on, and the way to speak to it: a file on a dead mount
//! may hold it up for seconds, the engine never.

use std::{
    path::PathBuf,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Instant,
};

use super::{
    libraries::LibraryError,
    mappings::News,
    probing::Probers,
    watch::{TICK, Watcher},
};
use crate::snapshot::CoverageRow;

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
}

/// Speaks to the thread; dropping it ends the thread, which detaches everything.
#[derive(Debug)]
pub struct AttachThread {
    commands: Option<Sender<Command>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// The thread has ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the thread that attaches to libraries has ended; this is a fault of memtrace")]
pub struct ThreadGone;

impl AttachThread {
    /// Starts the thread. `told` hears of every new executable mapping, `covered` of coverage
    /// whenever it has changed; neither may block.
    ///
    /// # Errors
    /// The system's, when there can be no more threads.
    pub fn start(
        watcher: Watcher<Probers>,
        told: impl Fn(News<'_>) + Send + 'static,
        covered: impl Fn(Vec<CoverageRow>) + Send + 'static,
    ) -> std::io::Result<Self> {
        if let Some(why) = watcher.deaf() {
            tracing::warn!("{why}");
        }
        let (commands, receiver) = channel();
        let thread = thread::Builder::new()
            .name("mt-attach".to_owned())
            .spawn(move || Work { watcher, told, covered }.run(&receiver))?;
        Ok(Self { commands: Some(commands), thread: Some(thread) })
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

struct Work<T, C> {
    watcher: Watcher<Probers>,
    told: T,
    covered: C,
}

impl<T: Fn(News<'_>), C: Fn(Vec<CoverageRow>)> Work<T, C> {
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
            if changed {
                (self.covered)(self.watcher.coverage());
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
                (self.covered)(self.watcher.coverage());
                let _ = reply.send(answer);
                false
            }
            Command::Preattach(paths, reply) => {
                if self.watcher.preattach(&paths) {
                    (self.covered)(self.watcher.coverage());
                }
                let _ = reply.send(());
                false
            }
            Command::Rescan(reply) => {
                match self.watcher.rescan(Instant::now()) {
                    Ok(_) => (self.covered)(self.watcher.coverage()),
                    Err(error) => {
                        tracing::warn!("cannot look through /proc for libraries: {error}");
                    }
                }
                let _ = reply.send(());
                false
            }
            Command::Duplicate(first, second) => self.watcher.duplicate(first, second),
            Command::Demand(process, wanted) => self.watcher.demand(process, wanted),
        }
    }
}
