//! `memtrace run`: run a command, follow it and its children, report what they kept.

use std::time::Duration;

use super::{
    args::RunArgs,
    command::{Ended, NoCommand, Wanted, exit_status},
    line::{one_line, progress},
    traced::{self, STATUS_CONDITION},
};

/// Runs the command; the exit status.
///
/// # Errors
/// One line: memtrace itself failed.
pub async fn run(arguments: RunArgs) -> anyhow::Result<u8> {
    match follow(arguments).await {
        Err(error) => match error.downcast_ref::<NoCommand>() {
            Some(none) => {
                eprintln!("memtrace: {}", one_line(&none.to_string()));
                Ok(none.status())
            }
            None => Err(error),
        },
        ended => ended,
    }
}

async fn follow(arguments: RunArgs) -> anyhow::Result<u8> {
    let RunArgs { trace, report, user, command } = arguments;
    let out = traced::open_output(&report)?;
    let wanted = Wanted::find(command, user.as_deref())?;
    let (session, mut following) = wanted.start(traced::plan(&trace)?).await?;
    let longest = report.duration.unwrap_or(Duration::MAX);
    let ended = following.wait(longest, report.settle).await?;
    let snapshot = traced::finish(session, &report, out).await?;
    if ended == Ended::Duration {
        progress("the report is written; memtrace only waits for the command now");
    }
    // Whoever is impatient gets the status of an interrupt.
    let status = following.status(ended).await?.map_or(128 + 2, exit_status);
    if status == 0 && traced::condition_holds(&snapshot, &report) {
        return Ok(STATUS_CONDITION);
    }
    Ok(status)
}
