//! `memtrace dump`: what the daemon has on its books now.

use super::args::DumpArgs;
use super::client::{self, ClientError};
use super::output::Output;

/// Prints a dump.
///
/// # Errors
///
/// One line: the daemon cannot be asked, or the file cannot be written.
pub async fn dump(arguments: &DumpArgs) -> anyhow::Result<()> {
    let DumpArgs { socket, pid, comm, domain, site, output } = arguments;
    let mut out = Output::open(output.output.as_deref(), output.format)?;
    let target = client::query(
        "/api/v1/dump",
        &[
            ("format", Some(output.format.name().to_owned())),
            ("pid", pid.map(|pid| pid.to_string())),
            ("comm", comm.clone()),
            ("domain", domain.map(|domain| domain.name().to_owned())),
            ("site", site.map(|site| format!("{site:016x}"))),
            ("width", out.width().map(|width| width.to_string())),
        ],
    );
    match client::get(&socket.socket, &target, &mut out).await {
        Err(ClientError::Write(error)) => Ok(out.finished(Err(error))?),
        other => Ok(other?),
    }
}
