//! `memtrace run`: run a command, follow it and its children, report what they kept.

use std::{
    io::IsTerminal,
    os::unix::process::ExitStatusExt,
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
    args::RunArgs,
    launch::{self, CannotExecute, Launched, STATUS_NOT_FOUND},
    line::one_line,
    session::Session,
    traced::{self, STATUS_CONDITION},
    user::Account,
};
use crate::attach::preattach::{Environment, preattach_candidates};

/// What ended the wait for the command.
enum Ended {
    /// The command has ended.
    Command(ExitStatus),
    /// `--duration` is over; the command goes on.
    Duration,
    /// The user wants the report at once.
    Impatience,
}

/// Runs the command; the exit status.
///
/// # Errors
/// One line: memtrace itself failed.
pub async fn run(arguments: RunArgs) -> anyhow::Result<u8> {
    let RunArgs { trace, report, user, command } = arguments;
    let program = command.first().context("no command")?.clone();
    let out = traced::open_output(&report)?;
    let environment = Environment::own();
    let Some(path) = environment.find_program(&program) else {
        let name = program.to_string_lossy();
        let name = if name.is_empty() { "a command without a name" } else { &name };
        eprintln!("memtrace: {} is not found", one_line(name));
        return Ok(STATUS_NOT_FOUND);
    };
    let account = match user.as_deref().filter(|user| !user.is_empty()) {
        Some(user) => Some(Account::find(user).map_err(|sentence| anyhow!("{sentence}"))?),
        None => None,
    };
    let mut plan = traced::plan(&trace)?;
    plan.expected = preattach_candidates(&path, &environment);
    traced::mention_daemon();

    let launched = launch::prepare(&command, account.as_ref()).context("cannot make a process")?;
    let pid = launched.child.id();
    let session = match Session::start(plan).await {
        Ok(session) => session,
        Err(error) => {
            abandon(launched);
            return Err(error);
        }
    };
    session.trace(pid).await?;
    let mut signals = Signals::listen(pid)?;
    let child = match spawn_blocking(move || launched.go(&program)).await? {
        Ok(child) => child,
        Err(error) => {
            session.end().await?;
            return Ok(cannot_execute(&error));
        }
    };
    progress(&format!("following {} (pid {pid}) and its children", path.display()));

    let mut command: JoinHandle<std::io::Result<ExitStatus>> = spawn_blocking(move || wait(child));
    let longest = report.duration.unwrap_or(Duration::MAX);
    let ended = tokio::select! {
        status = &mut command => Ended::Command(status?.context("cannot wait for the command")?),
        () = sleep(longest) => Ended::Duration,
        Some(()) = signals.impatience.recv() => Ended::Impatience,
    };
    if let Ended::Command(_) = ended {
        // Descriptors are closed after the end of the last thread.
        tokio::select! {
            () = sleep(report.settle) => {}
            Some(()) = signals.impatience.recv() => {}
        }
    }
    let snapshot = traced::finish(session, &report, out).await?;
    let status = match ended {
        Ended::Command(status) => Some(status),
        Ended::Duration => {
            progress("the report is written; memtrace only waits for the command now");
            Some(command.await?.context("cannot wait for the command")?)
        }
        Ended::Impatience => None,
    };
    // Whoever is impatient gets the status of an interrupt.
    let status = status.map_or(128 + 2, exit_status);
    if status == 0 && traced::condition_holds(&snapshot, &report) {
        return Ok(STATUS_CONDITION);
    }
    Ok(status)
}

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

fn cannot_execute(error: &CannotExecute) -> u8 {
    eprintln!("memtrace: {}", one_line(&error.to_string()));
    error.status()
}

/// The command's own status; 128 + n for a signal.
fn exit_status(status: ExitStatus) -> u8 {
    let number = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(number).unwrap_or(u8::MAX)
}

fn progress(message: &str) {
    if std::io::stderr().is_terminal() {
        eprintln!("memtrace: {}", one_line(message));
    }
}

/// Signals while the command runs: the first goes to the command, the second wants the report.
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
