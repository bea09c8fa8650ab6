//! A command that is traced: found, started once it is followed, waited for, and given the first
//! signal.

use std::{
    ffi::OsString,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, ExitStatus},
    time::Duration,
};

use anyhow::{Context, anyhow};
use rustix::process::{Pid, Signal, getpgrp, kill_process};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::{JoinHandle, spawn_blocking},
    time::sleep,
};

use super::{
    launch::{self, CannotExecute, Launched, STATUS_NOT_FOUND},
    line::progress,
    session::{Plan, Session},
    traced,
    user::Account,
};
use crate::attach::preattach::{Environment, preattach_candidates};

/// There is no such command, or none that can be executed.
#[derive(Debug, thiserror::Error)]
pub enum NoCommand {
    /// It is not there.
    #[error("{0} is not found")]
    NotFound(String),
    /// It is there.
    #[error(transparent)]
    CannotExecute(#[from] CannotExecute),
}

impl NoCommand {
    /// The exit status of `run`.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            Self::NotFound(_) => STATUS_NOT_FOUND,
            Self::CannotExecute(error) => error.status(),
        }
    }
}

/// What ended the wait for the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The command has ended.
    Command(ExitStatus),
    /// The time is over; the command goes on.
    Duration,
    /// The user wants the end at once.
    Impatience,
}

/// A command that was found and is not started yet.
#[derive(Debug)]
pub struct Wanted {
    words: Vec<OsString>,
    program: OsString,
    path: PathBuf,
    account: Option<Account>,
    environment: Environment,
}

impl Wanted {
    /// Finds the command's program and the user that it is to run as.
    ///
    /// # Errors
    /// [`NoCommand`], or one line about the user.
    pub fn find(words: Vec<OsString>, user: Option<&str>) -> anyhow::Result<Self> {
        let program = words.first().context("no command")?.clone();
        let environment = Environment::own();
        let Some(path) = environment.find_program(&program) else {
            let name = program.to_string_lossy();
            let name = if name.is_empty() { "a command without a name" } else { &name };
            return Err(NoCommand::NotFound(name.to_owned()).into());
        };
        let account = match user.filter(|user| !user.is_empty()) {
            Some(user) => Some(Account::find(user).map_err(|sentence| anyhow!("{sentence}"))?),
            None => None,
        };
        Ok(Self { words, program, path, account, environment })
    }

    /// Starts a session, and the command once it is followed.
    ///
    /// # Errors
    /// [`NoCommand`], or one line: memtrace itself failed.
    pub async fn start(self, mut plan: Plan) -> anyhow::Result<(Session, Following)> {
        let Self { words, program, path, account, environment } = self;
        plan.expected = preattach_candidates(&path, &environment);
        traced::mention_daemon();
        let launched =
            launch::prepare(&words, account.as_ref()).context("cannot make a process")?;
        let pid = launched.child.id();
        let session = match Session::start(plan).await {
            Ok(session) => session,
            Err(error) => {
                abandon(launched);
                return Err(error);
            }
        };
        session.trace(pid).await?;
        let signals = Signals::listen(pid)?;
        let child = match spawn_blocking(move || launched.go(&program)).await? {
            Ok(child) => child,
            Err(error) => {
                session.end().await?;
                return Err(NoCommand::from(error).into());
            }
        };
        progress(&format!("following {} (pid {pid}) and its children", path.display()));
        let command = spawn_blocking(move || wait(child));
        Ok((session, Following { command, signals }))
    }
}

/// A command that runs and is followed.
#[derive(Debug)]
pub struct Following {
    command: JoinHandle<std::io::Result<ExitStatus>>,
    signals: Signals,
}

impl Following {
    /// Waits until the command has ended and its kernel memory has settled, for no longer than
    /// `longest`, or until the user is impatient.
    ///
    /// # Errors
    /// The system's.
    pub async fn wait(&mut self, longest: Duration, settle: Duration) -> anyhow::Result<Ended> {
        let ended = tokio::select! {
            status = &mut self.command => Ended::Command(status?.context(CANNOT_WAIT)?),
            () = sleep(longest) => Ended::Duration,
            Some(()) = self.signals.impatience.recv() => Ended::Impatience,
        };
        if let Ended::Command(_) = ended {
            // Descriptors are closed after the end of the last thread.
            tokio::select! {
                () = sleep(settle) => {}
                Some(()) = self.signals.impatience.recv() => {}
            }
        }
        Ok(ended)
    }

    /// The command's own status, after [`Following::wait`]: waits for its end where that has not
    /// come; `None` where the user is impatient.
    ///
    /// # Errors
    /// The system's.
    pub async fn status(self, ended: Ended) -> anyhow::Result<Option<ExitStatus>> {
        match ended {
            Ended::Command(status) => Ok(Some(status)),
            Ended::Duration => Ok(Some(self.command.await?.context(CANNOT_WAIT)?)),
            Ended::Impatience => Ok(None),
        }
    }
}

const CANNOT_WAIT: &str = "cannot wait for the command";

fn wait(mut child: Child) -> std::io::Result<ExitStatus> {
    child.wait()
}

/// Lets a process that waits to become the command end instead.
fn abandon(launched: Launched) {
    let Launched { mut child, go, failed } = launched;
    drop((go, failed));
    // It reads the end of its pipe and ends; this only takes its status away.
    let _ = child.wait();
}

/// A status as a shell has it; 128 + n for a signal.
#[must_use]
pub fn exit_status(status: ExitStatus) -> u8 {
    let number = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// Signals while the command runs: the first goes to the command, the second wants the end.
#[derive(Debug)]
struct Signals {
    impatience: mpsc::Receiver<()>,
}

impl Signals {
    fn listen(pid: u32) -> anyhow::Result<Self> {
        let (impatient, impatience) = mpsc::channel(1);
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot take signals")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot take signals")?;
        let command = i32::try_from(pid).ok().and_then(Pid::from_raw).context("pid 0")?;
        tokio::spawn(async move {
            let mut passed_on = false;
            loop {
                let which = tokio::select! {
                    _ = interrupt.recv() => Signal::INT,
                    _ = terminate.recv() => Signal::TERM,
                };
                if passed_on {
                    if impatient.send(()).await.is_err() {
                        return;
                    }
                    continue;
                }
                passed_on = true;
                // A terminal's Ctrl-C has reached the command already.
                if which == Signal::TERM || !in_foreground() {
                    // If it has ended, the wait for it says so.
                    let _ = kill_process(command, which);
                }
            }
        });
        Ok(Self { impatience })
    }
}

/// Whether the terminal sends its signals to our process group.
fn in_foreground() -> bool {
    std::fs::File::open("/dev/tty")
        .is_ok_and(|tty| rustix::termios::tcgetpgrp(tty).is_ok_and(|group| group == getpgrp()))
}
