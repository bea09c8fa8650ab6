//! `memtrace record`: write what the engine is told into a file, of a command or of the host.

use std::{fs, path::Path, time::Duration};

use anyhow::Context;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::spawn_blocking,
    time::sleep,
};

use super::{
    args::RecordArgs,
    command::{Ended, Following, Wanted},
    line::{one_line, progress},
    recording::{Destination, cannot_write},
    session::{Plan, Session},
    traced::{self, PATIENCE},
};
use crate::{human, intake::recording::Writing};

/// How long kernel books may settle after the command's end.
const SETTLE: Duration = Duration::from_millis(500);

/// Records; the exit status.
///
/// # Errors
/// One line: the file cannot be written, there is no such command, or memtrace failed.
pub async fn record(arguments: RecordArgs) -> anyhow::Result<u8> {
    let RecordArgs { output, trace, duration, user, command } = arguments;
    let destination = Destination::open(&output)?;
    if destination.replaces() {
        progress(&format!("{} is replaced", output.display()));
    }
    let longest = duration.unwrap_or(Duration::MAX);
    if command.is_empty() {
        let mut plan = traced::plan_of_all(&trace)?;
        plan.recording = Some(destination);
        return record_host(plan, longest, &output).await;
    }
    let wanted = Wanted::find(command, user.as_deref())?;
    let mut plan = traced::plan(&trace)?;
    plan.recording = Some(destination);
    record_command(wanted, plan, longest, &output).await
}

async fn record_host(plan: Plan, longest: Duration, path: &Path) -> anyhow::Result<u8> {
    traced::mention_daemon();
    // From here on a signal means a whole recording, also while probes are still being attached.
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot take signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot take signals")?;
    let mut session = Session::start(plan).await?;
    let mut writing = session.take_writing().context(NO_RECORDER)?;
    progress("recording the whole host; Ctrl-C ends it");
    let failed = tokio::select! {
        // There is nothing else to trace for.
        () = writing.failed() => true,
        () = sleep(longest) => false,
        _ = interrupt.recv() => false,
        _ = terminate.recv() => false,
    };
    finish(session, writing, path, !failed).await?;
    Ok(0)
}

async fn record_command(
    wanted: Wanted,
    plan: Plan,
    longest: Duration,
    path: &Path,
) -> anyhow::Result<u8> {
    let (mut session, mut following) = wanted.start(plan).await?;
    let mut writing = session.take_writing().context(NO_RECORDER)?;
    let ended = tokio::select! {
        ended = following.wait(longest, SETTLE) => Some(ended?),
        () = writing.failed() => None,
    };
    let Some(ended) = ended else {
        // The command is not disturbed; memtrace says at once what the matter is.
        let error = finish(session, writing, path, false).await.err();
        let error = error.context("a recording that failed has a reason")?;
        eprintln!("memtrace: {}; the command goes on untraced", one_line(&error.to_string()));
        let ended = following.wait(Duration::MAX, Duration::ZERO).await?;
        following.status(ended).await?;
        return Ok(1);
    };
    finish(session, writing, path, ended != Ended::Impatience).await?;
    wait_for(following, ended).await?;
    Ok(0)
}

/// The recording is done; the command may not be.
async fn wait_for(following: Following, ended: Ended) -> anyhow::Result<()> {
    if ended == Ended::Duration {
        progress("memtrace only waits for the command now");
    }
    following.status(ended).await?;
    Ok(())
}

/// Has stacks named that have no name yet, ends everything, and says what was recorded.
async fn finish(
    session: Session,
    writing: Writing,
    path: &Path,
    names: bool,
) -> anyhow::Result<()> {
    if names {
        session.snapshot(PATIENCE).await?;
    }
    let last = session.end().await?;
    let written = spawn_blocking(move || writing.wait()).await?;
    if let Some(source) = written.failed {
        return Err(cannot_write(path, source).into());
    }
    if let Some(report) = std::env::var_os(REPORT_FOR_TESTS) {
        fs::write(report, serde_json::to_vec_pretty(&*last)?).context(REPORT_FOR_TESTS)?;
    }
    progress(&format!(
        "recorded {} in {}, {}",
        human::counted(written.records, "record"),
        path.display(),
        human::bytes(written.bytes)
    ));
    if written.missing > 0 {
        eprintln!(
            "memtrace: {} could not be written in time and are missing, at {}; record to a faster \
             disk",
            human::counted(written.missing, "record"),
            human::counted(written.gaps, "place")
        );
    }
    Ok(())
}

/// Tests compare the last picture with what a replay makes of the recording.
const REPORT_FOR_TESTS: &str = "MEMTRACE_TUNE_RECORD_REPORT";

const NO_RECORDER: &str = "nobody records; this is a fault of memtrace";
