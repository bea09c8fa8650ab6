//! `memtrace attach`: follow a running process and its children, then report.

use std::{collections::BTreeSet, os::fd::OwnedFd, time::Duration};

use anyhow::{Context, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::spawn_blocking,
    time::sleep,
};

use super::{
    args::AttachArgs,
    session::Session,
    traced::{self, STATUS_CONDITION},
};

const NOT_AT_ALL: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Follows the process; the exit status.
///
/// # Errors
/// One line: there is no such process, or memtrace failed.
pub async fn attach(arguments: AttachArgs) -> anyhow::Result<u8> {
    let AttachArgs { pid, trace, report } = arguments;
    if pid == std::process::id() {
        bail!("{pid} is memtrace itself, which never books itself; give another --pid");
    }
    let process = open(pid)?;
    let out = traced::open_output(&report)?;
    let plan = traced::plan(&trace)?;
    traced::mention_daemon();
    // From here on a signal means a report, also while probes are still being attached.
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot take signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot take signals")?;
    let session = Session::start(plan).await?;
    session.trace(pid).await?;
    // Whoever ends after this was traced.
    if wait_for_end(&process, Some(&NOT_AT_ALL)).context("cannot wait for the process")? {
        session.end().await?;
        bail!("process {pid} has ended while memtrace was attaching; nothing was traced");
    }
    follow_children(&session, pid).await?;
    tracing::info!(pid, "attached");
    let longest = report.duration.unwrap_or(Duration::MAX);
    tokio::select! {
        ended = spawn_blocking(move || wait_for_end(&process, None)) => {
            ended?.context("cannot wait for the process")?;
            sleep(report.settle).await;
        }
        () = sleep(longest) => {}
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    let snapshot = traced::finish(session, &report, out).await?;
    Ok(if traced::condition_holds(&snapshot, &report) { STATUS_CONDITION } else { 0 })
}

/// A descriptor of the process that becomes readable at its end.
fn open(pid: u32) -> anyhow::Result<OwnedFd> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    match number.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(fd)) => Ok(fd),
        None | Some(Err(Errno::SRCH)) => {
            bail!("there is no process {pid}; `ps -e` lists those there are")
        }
        // A thread's id.
        Some(Err(Errno::INVAL | Errno::NOENT)) => {
            bail!("{pid} is a thread, not a process; give the process' --pid")
        }
        Some(Err(error)) => bail!("cannot open process {pid}: {error}"),
    }
}

/// Waits for the end of the process; with a time, no longer than that. Whether it has ended.
fn wait_for_end(process: &OwnedFd, longest: Option<&Timespec>) -> rustix::io::Result<bool> {
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    loop {
        match poll(&mut polled, longest) {
            Err(Errno::INTR) => {}
            other => return other.map(|ready| ready > 0),
        }
    }
}

/// Follows all descendants of a process that is followed: a child that it makes meanwhile is
/// followed by its birth.
async fn follow_children(session: &Session, pid: u32) -> anyhow::Result<()> {
    let mut followed = BTreeSet::from([pid]);
    loop {
        let parents = parents();
        let new: Vec<u32> = parents
            .iter()
            .filter(|(child, parent)| followed.contains(parent) && !followed.contains(child))
            .map(|(child, _)| *child)
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        for child in new {
            session.trace(child).await?;
            followed.insert(child);
        }
    }
}

/// (process, parent) of all processes. One that ends meanwhile is left out.
fn parents() -> Vec<(u32, u32)> {
    let Ok(processes) = procfs::process::all_processes() else { return Vec::new() };
    processes
        .filter_map(|process| {
            let stat = process.ok()?.stat().ok()?;
            Some((u32::try_from(stat.pid).ok()?, u32::try_from(stat.ppid).ok()?))
        })
        .collect()
}
