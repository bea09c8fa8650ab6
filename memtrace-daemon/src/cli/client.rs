//! Asks the daemon over its unix socket.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper::http::request::Builder;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

/// A daemon answers within the time that its engine needs for a flush; see `serve/state.rs`.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Why there is no answer. One line: what, why, what to do.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no such socket.
    #[error(
        "no memtrace daemon at {0}: there is no such socket; \
         start it with `systemctl start memtrace`, or name its socket with --socket"
    )]
    Absent(PathBuf),
    /// The socket is a dead daemon's.
    #[error(
        "no memtrace daemon at {0}: nobody listens at that socket; \
         start it with `systemctl start memtrace`"
    )]
    Dead(PathBuf),
    /// The socket is for root and for a group.
    #[error(
        "not allowed to ask the memtrace daemon at {0}; \
         be root or in the group that the socket has (`ls -l` shows it)"
    )]
    Denied(PathBuf),
    /// The connection failed.
    #[error("cannot ask the memtrace daemon at {path}: {reason}")]
    Failed {
        /// Which socket.
        path: PathBuf,
        /// What came back.
        reason: String,
    },
    /// The daemon answered that it cannot.
    #[error("the memtrace daemon at {path} says: {answer}")]
    Refused {
        /// Which socket.
        path: PathBuf,
        /// Its words.
        answer: String,
    },
    /// What the daemon sent could not be passed on.
    #[error(transparent)]
    Write(io::Error),
}

/// Asks for `target` (path and query) and writes the answer's body to `out` as it comes.
///
/// # Errors
///
/// [`ClientError`].
pub async fn get(
    socket: &Path,
    target: &str,
    out: &mut (dyn Write + Send),
) -> Result<(), ClientError> {
    exchange(socket, Request::get(target), out).await
}

/// Tells the daemon to do what `target` stands for, and writes its words to `out`.
///
/// # Errors
///
/// [`ClientError`].
pub async fn post(
    socket: &Path,
    target: &str,
    out: &mut (dyn Write + Send),
) -> Result<(), ClientError> {
    exchange(socket, Request::post(target), out).await
}

async fn exchange(
    socket: &Path,
    request: Builder,
    out: &mut (dyn Write + Send),
) -> Result<(), ClientError> {
    let failed = |reason: String| ClientError::Failed { path: socket.to_owned(), reason };
    let stream = UnixStream::connect(socket).await.map_err(|error| connecting(socket, &error))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(error.to_string()))?;
    // Ends by itself when the sender is dropped or the daemon hangs up.
    let connection = tokio::spawn(connection);
    let request = request
        .header(hyper::header::HOST, "localhost")
        .body(Empty::<Bytes>::new())
        .map_err(|error| failed(error.to_string()))?;
    let answer = tokio::time::timeout(ANSWER_WITHIN, sender.send_request(request)).await;
    let answer = match answer {
        Ok(answer) => answer.map_err(|error| failed(error.to_string()))?,
        Err(_) => return Err(failed(format!("no answer within {} s", ANSWER_WITHIN.as_secs()))),
    };
    let status = answer.status();
    let mut body = answer.into_body();
    let mut refusal = vec![];
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| failed("the answer broke off, it is not whole".into()))?;
        let Ok(data) = frame.into_data() else { continue };
        if status == StatusCode::OK {
            out.write_all(&data).map_err(ClientError::Write)?;
        } else if refusal.len() < 1024 {
            refusal.extend_from_slice(&data);
        }
    }
    connection.abort();
    if status == StatusCode::OK {
        return out.flush().map_err(ClientError::Write);
    }
    let answer = String::from_utf8_lossy(&refusal);
    let answer = crate::report::escape::escape(answer.trim()).into_owned();
    Err(ClientError::Refused { path: socket.to_owned(), answer })
}

fn connecting(socket: &Path, error: &io::Error) -> ClientError {
    let path = socket.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => ClientError::Absent(path),
        io::ErrorKind::ConnectionRefused => ClientError::Dead(path),
        io::ErrorKind::PermissionDenied => ClientError::Denied(path),
        _ => ClientError::Failed { path, reason: error.to_string() },
    }
}

/// A query string from keys and values; what is not a letter or digit is escaped.
#[must_use]
pub fn query(path: &str, pairs: &[(&str, Option<String>)]) -> String {
    let mut target = path.to_owned();
    let given = pairs.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
    for (index, (key, value)) in given.enumerate() {
        target.push(if index == 0 { '?' } else { '&' });
        target.push_str(key);
        target.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                target.push(char::from(byte));
            } else {
                target.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    target
}
