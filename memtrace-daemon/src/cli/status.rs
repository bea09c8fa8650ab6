//! `memtrace status`: in a few lines, how the daemon fares.

use super::args::SocketArgs;
use super::client::{self, ClientError};
use super::output::Output;
use crate::report::Format;

/// Prints the status.
///
/// # Errors
///
/// One line: the daemon cannot be asked.
pub async fn status(arguments: &SocketArgs) -> anyhow::Result<()> {
    let mut out = Output::open(None, Format::Text)?;
    let target = client::query(
        "/api/v1/status",
        &[
            ("format", Some("text".to_owned())),
            ("width", out.width().map(|width| width.to_string())),
        ],
    );
    match client::get(&arguments.socket, &target, &mut out).await {
        Err(ClientError::Write(error)) => Ok(out.finished(Err(error))?),
        other => Ok(other?),
    }
}
