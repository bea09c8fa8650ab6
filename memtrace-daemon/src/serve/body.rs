//! A body that a thread writes while the client reads: a dump of 10,000 sites is tens of
//! megabytes, and is never in memory as a whole.

use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use hyper::body::Frame;
use tokio::sync::mpsc;

/// Bytes of one piece.
const PIECE: usize = 64 << 10;
/// Pieces that wait for the reader.
const WAITING: usize = 4;

/// The reading side.
struct Pieces(mpsc::Receiver<io::Result<Bytes>>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|bytes| bytes.map(Frame::data)))
    }
}

/// The writing side; blocks while the reader is behind, fails when it is gone.
struct Pipe {
    sender: mpsc::Sender<io::Result<Bytes>>,
    piece: BytesMut,
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = self.piece.split().freeze();
        self.sender.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// A body of what `write` writes, on a thread of its own. An error ends the body early, so
/// that the client sees that it is not whole.
pub(super) fn written(
    write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
) -> Body {
    let (sender, receiver) = mpsc::channel(WAITING);
    tokio::task::spawn_blocking(move || {
        let mut pipe = Pipe { sender, piece: BytesMut::new() };
        let result = write(&mut pipe).and_then(|()| pipe.flush());
        if let Err(error) = result {
            // A reader that is gone needs no error.
            drop(pipe.sender.blocking_send(Err(error)));
        }
    });
    Body::new(Pieces(receiver))
}
