//! `memtrace stop` and `memtrace resume`: the switch of a daemon that is suspected of what goes
//! wrong on a host.

use super::args::SocketArgs;
use super::client::{self, ClientError};
use super::output::Output;
use crate::report::Format;

/// Has the daemon stop tracing at once.
///
/// # Errors
///
/// One line: the daemon cannot be told, or what could not be done.
pub async fn stop(arguments: &SocketArgs) -> anyhow::Result<()> {
    control(arguments, "/api/v1/control/stop").await
}

/// Has it go on.
///
/// # Errors
///
/// As [`stop`].
pub async fn resume(arguments: &SocketArgs) -> anyhow::Result<()> {
    control(arguments, "/api/v1/control/resume").await
}

async fn control(arguments: &SocketArgs, target: &str) -> anyhow::Result<()> {
    let mut out = Output::open(None, Format::Text)?;
    match client::post(&arguments.socket, target, &mut out).await {
        Err(ClientError::Write(error)) => Ok(out.finished(Err(error))?),
        other => Ok(other?),
    }
}
