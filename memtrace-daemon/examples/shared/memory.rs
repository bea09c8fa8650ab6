//! How much memory an example takes. For what the examples print; never for the daemon.

use anyhow::Context;

/// Anonymous memory of this process, bytes.
pub fn anonymous() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next());
    let kibibytes: u64 = kibibytes.context("no RssAnon in /proc/self/status")?.parse()?;
    Ok(kibibytes << 10)
}

/// Bytes in MiB.
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
