//! What a running memtrace says of itself, read from its unix socket: whether it is ready, how
//! much it has seen, whether its ring buffer was full. A benchmark of a tracer that saw nothing
//! looks good, so this is asked after every start.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};

const DEADLINE: Duration = Duration::from_secs(5);

/// Whether the start-up attachment is done.
pub fn is_ready(socket: &Path) -> bool {
    get(socket, "/readyz").is_ok()
}

/// Its metrics, as text.
pub fn metrics(socket: &Path) -> anyhow::Result<String> {
    get(socket, "/metrics")
}

/// Bytes of a domain in a state of the conservation equation.
pub fn bytes(metrics: &str, domain: &str, state: &str) -> Option<f64> {
    let labels = [format!("domain=\"{domain}\""), format!("state=\"{state}\"")];
    value(metrics, "memtrace_bytes_total", &labels)
}

/// Losses of a cause.
pub fn lost(metrics: &str, cause: &str) -> Option<f64> {
    value(metrics, "memtrace_lost_total", &[format!("cause=\"{cause}\"")])
}

fn value(metrics: &str, name: &str, labels: &[String]) -> Option<f64> {
    metrics.lines().find_map(|line| {
        let (series, value) = line.strip_prefix(name)?.strip_prefix('{')?.split_once("} ")?;
        let named = labels.iter().all(|label| series.split(',').any(|own| own == label));
        if named { value.split(' ').next()?.parse().ok() } else { None }
    })
}

/// The body of a route, by HTTP/1.0: the answer ends where the connection does.
fn get(socket: &Path, route: &str) -> anyhow::Result<String> {
    let what = || format!("asking {} for {route}", socket.display());
    let mut stream = UnixStream::connect(socket).with_context(what)?;
    stream.set_read_timeout(Some(DEADLINE)).with_context(what)?;
    write!(stream, "GET {route} HTTP/1.0\r\nHost: localhost\r\n\r\n").with_context(what)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).with_context(what)?;
    let answer = String::from_utf8(answer).with_context(what)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no end of headers")?;
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.split(' ').nth(1) == Some("200"), "{}: {status}", what());
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "\
# TYPE memtrace_bytes_total gauge
memtrace_bytes_total{state=\"live\",domain=\"cuda\"} 1
memtrace_bytes_total{state=\"seen\",domain=\"cuda\"} 4096
memtrace_bytes_total{domain=\"kernel\",state=\"seen\"} 1.5e3
memtrace_lost_total{cause=\"ring_full\"} 7
";

    #[test]
    fn a_series_is_found_by_its_labels_in_any_order() {
        assert_eq!(bytes(METRICS, "cuda", "seen"), Some(4_096.0));
        assert_eq!(bytes(METRICS, "kernel", "seen"), Some(1_500.0));
        assert_eq!(bytes(METRICS, "kernel", "live"), None);
        assert_eq!(lost(METRICS, "ring_full"), Some(7.0));
    }
}
