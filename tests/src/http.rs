//! The smallest HTTP client that the suites need: one GET a connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Header lines, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: String,
}

impl Answer {
    /// A header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

/// More than any answer takes.
const LIMIT: Duration = Duration::from_secs(30);

/// Asks over a unix socket.
///
/// # Errors
///
/// When nobody listens or the answer is not HTTP.
pub fn get_unix(socket: &Path, path: &str, headers: &[(&str, &str)]) -> anyhow::Result<Answer> {
    let stream = UnixStream::connect(socket)
        .with_context(|| format!("connecting to {}", socket.display()))?;
    stream.set_read_timeout(Some(LIMIT))?;
    exchange(stream, path, "localhost", headers)
}

/// Asks over TCP, with the address as Host unless `headers` has another.
///
/// # Errors
///
/// When nobody listens or the answer is not HTTP.
pub fn get_tcp(address: &str, path: &str, headers: &[(&str, &str)]) -> anyhow::Result<Answer> {
    let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    stream.set_read_timeout(Some(LIMIT))?;
    exchange(stream, path, address, headers)
}

fn exchange(
    mut stream: impl Read + Write,
    path: &str,
    host: &str,
    headers: &[(&str, &str)],
) -> anyhow::Result<Answer> {
    let mut request = format!("GET {path} HTTP/1.0\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request.push_str(&format!("Host: {host}\r\n"));
    }
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).context("sending the request")?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).with_context(|| format!("reading the answer to {path}"))?;
    parse(&String::from_utf8_lossy(&bytes))
}

fn parse(text: &str) -> anyhow::Result<Answer> {
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        bail!("not an HTTP answer: {text:?}");
    };
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("no status line")?;
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Ok(Answer { status: status.parse().context("status code")?, headers, body: body.to_owned() })
}
