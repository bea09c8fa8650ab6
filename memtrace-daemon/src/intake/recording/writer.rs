//! Writing a recording: the engine puts records into batches, a thread of its own writes them.
//!
//! The engine never waits. What the thread has not written yet is bounded; beyond that records are
//! dropped, and the file says how many and where.

use std::fs::File;
use std::io::{self, Write};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use bytes::BufMut;
use postcard::ser_flavors::Flavor;
use tokio::sync::oneshot;

use super::format::{self, BATCH, Kind, LONGEST, MAGIC, VERSION};
use crate::record::{Anchor, Record};

/// Most bytes of records that wait to be written.
const WAITING: usize = 16 << 20;

/// The engine's end.
#[derive(Debug)]
pub struct Recorder {
    batch: Vec<u8>,
    /// Records in the batch.
    records: u64,
    /// Records dropped that the file does not tell of yet.
    missing: u64,
    /// Whether records were dropped since somebody asked.
    dropped: bool,
    queue: Sender<Piece>,
    /// Bytes in the queue.
    waiting: Arc<AtomicUsize>,
    most_waiting: usize,
    /// Nobody writes any more.
    ended: bool,
}

/// What the thread is given to write.
#[derive(Debug)]
enum Piece {
    Records { bytes: Vec<u8>, records: u64 },
    Gap(u64),
    End(Anchor),
}

/// The other end: what becomes of the file.
#[derive(Debug)]
pub struct Writing {
    thread: JoinHandle<Written>,
    failed: oneshot::Receiver<()>,
}

/// What was written.
#[derive(Debug, Default)]
pub struct Written {
    /// Records.
    pub records: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Places where records are missing.
    pub gaps: u64,
    /// Records that are missing.
    pub missing: u64,
    /// Why no more could be written.
    pub failed: Option<io::Error>,
}

impl Recorder {
    /// Begins a recording in an empty file, with what whoever replays it needs to know first.
    ///
    /// # Errors
    /// The system's.
    pub fn start(file: File, header: &[u8]) -> io::Result<(Self, Writing)> {
        Self::with_room(file, header, WAITING)
    }

    pub(super) fn with_room(
        mut file: File,
        header: &[u8],
        most_waiting: usize,
    ) -> io::Result<(Self, Writing)> {
        let mut start = MAGIC.to_vec();
        start.put_u32_le(VERSION);
        format::write(Kind::Header, header, &mut start);
        file.write_all(&start)?;
        let written = Written { bytes: start.len() as u64, ..Written::default() };
        let (queue, pieces) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let (fail, failed) = oneshot::channel();
        let thread = {
            let waiting = Arc::clone(&waiting);
            let work = move || Writer { file, waiting, written }.run(&pieces, fail);
            std::thread::Builder::new().name("mt-recorder".into()).spawn(work)?
        };
        let recorder = Self {
            batch: Vec::new(),
            records: 0,
            missing: 0,
            dropped: false,
            queue,
            waiting,
            most_waiting,
            ended: false,
        };
        Ok((recorder, Writing { thread, failed }))
    }

    /// Takes a record that the engine takes in. Never blocks.
    pub fn record(&mut self, record: &Record) {
        if self.ended {
            return;
        }
        let before = self.batch.len();
        if postcard::serialize_with_flavor(record, Batch(&mut self.batch)).is_err() {
            // Longer than any frame: it is missing after those before it.
            self.batch.truncate(before);
            self.hand_over(false);
            self.missing += 1;
            self.dropped = true;
            return;
        }
        self.records += 1;
        if self.batch.len() >= BATCH {
            self.hand_over(false);
        }
    }

    /// Hands on what there is, so that no more than what comes from now on is lost in a crash.
    pub fn flush(&mut self) {
        self.hand_over(false);
    }

    /// Whether records were dropped since this was last asked.
    pub fn dropped(&mut self) -> bool {
        mem::take(&mut self.dropped)
    }

    /// Ends the recording: the last picture was made by these clocks.
    pub fn end(mut self, anchor: Anchor) {
        self.hand_over(true);
        self.send(Piece::End(anchor));
    }

    fn hand_over(&mut self, anyway: bool) {
        let waiting = self.waiting.load(Ordering::Relaxed);
        if !anyway && waiting.saturating_add(self.batch.len()) > self.most_waiting {
            self.batch.clear();
            let records = mem::take(&mut self.records);
            self.missing += records;
            self.dropped |= records > 0;
            return;
        }
        if self.missing > 0 {
            let missing = mem::take(&mut self.missing);
            self.send(Piece::Gap(missing));
        }
        if self.records > 0 {
            let records = mem::take(&mut self.records);
            // A batch ends with the record that makes it full.
            let next = Vec::with_capacity(BATCH + BATCH / 16);
            let bytes = mem::replace(&mut self.batch, next);
            self.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
            self.send(Piece::Records { bytes, records });
        }
    }

    fn send(&mut self, piece: Piece) {
        // The thread has ended, and has said why.
        self.ended |= self.queue.send(piece).is_err();
    }
}

/// Where records are serialised to.
struct Batch<'a>(&'a mut Vec<u8>);

impl Flavor for Batch<'_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        if self.0.len() >= LONGEST {
            return Err(postcard::Error::SerializeBufferFull);
        }
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if self.0.len().saturating_add(bytes.len()) > LONGEST {
            return Err(postcard::Error::SerializeBufferFull);
        }
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

impl Writing {
    /// Returns when the file cannot be written any more; never, where it always can.
    pub async fn failed(&mut self) {
        if (&mut self.failed).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until everything is written that was handed over. Blocks.
    #[must_use]
    pub fn wait(self) -> Written {
        self.thread.join().unwrap_or_else(|_| Written {
            failed: Some(io::Error::other("the thread that writes has panicked")),
            ..Written::default()
        })
    }
}

/// The thread.
struct Writer {
    file: File,
    waiting: Arc<AtomicUsize>,
    written: Written,
}

impl Writer {
    fn run(mut self, pieces: &Receiver<Piece>, fail: oneshot::Sender<()>) -> Written {
        let mut frame = Vec::new();
        for piece in pieces {
            if let Err(error) = self.write(&piece, &mut frame) {
                // What was begun is taken away again: the file ends with a whole frame. What is
                // no regular file cannot do that.
                let _ = self.file.set_len(self.written.bytes);
                self.written.failed = Some(error);
                // Whoever started this may have gone.
                let _ = fail.send(());
                break;
            }
        }
        self.written
    }

    fn write(&mut self, piece: &Piece, frame: &mut Vec<u8>) -> io::Result<()> {
        frame.clear();
        match piece {
            Piece::Records { bytes, records: _ } => format::write(Kind::Records, bytes, frame),
            Piece::Gap(missing) => format::write(Kind::Gap, &missing.to_le_bytes(), frame),
            Piece::End(anchor) => {
                format::write(Kind::End, &serde_json::to_vec(anchor)?, frame);
            }
        }
        self.file.write_all(frame)?;
        self.written.bytes += frame.len() as u64;
        match piece {
            Piece::Records { bytes, records } => {
                self.written.records += records;
                self.waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
            }
            Piece::Gap(missing) => {
                self.written.gaps += 1;
                self.written.missing += missing;
            }
            // From here on a crash of the host loses nothing. A pipe has nothing to keep.
            Piece::End(_) => drop(self.file.sync_data()),
        }
        Ok(())
    }
}
