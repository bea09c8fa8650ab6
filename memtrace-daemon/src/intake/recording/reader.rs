//! Reading a recording back, a record at a time and never more than a frame in memory.

use std::io::{self, Read};

use bytes::Buf;

use super::format::{CHECKSUM, HEAD, Head, Kind, LONGEST, MAGIC, VERSION};
use crate::record::{Anchor, Record};

/// Why a file cannot be replayed, to be said behind its name.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// There is nothing in it.
    #[error("it is empty: nothing was recorded")]
    Empty,
    /// It is something else.
    #[error("it is no recording of memtrace")]
    Foreign,
    /// It ends before anything was recorded.
    #[error("it was cut off before its first record: nothing was recorded")]
    NoHeader,
    /// It is of another version.
    #[error(
        "it is a recording of format {0}, and this memtrace reads format {VERSION}; replay it \
         with the memtrace that recorded it"
    )]
    Version(u32),
    /// It is not what was written.
    #[error("it is damaged at byte {at}: {what}")]
    Damaged {
        /// Where the frame begins.
        at: u64,
        /// What is wrong.
        what: String,
    },
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
}

/// What comes next in a recording.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would cost every record an allocation")]
pub enum Part {
    /// A record.
    Record(Record),
    /// So many records are missing here.
    Gap(u64),
    /// Recording was ended here; the last picture was made by these clocks.
    End(Anchor),
    /// The file ends here and recording was not ended: what comes after this byte, if anything, is
    /// no whole frame.
    CutOff(u64),
}

/// A recording that is being read.
#[derive(Debug)]
pub struct Recording<R> {
    from: R,
    /// Bytes read.
    at: u64,
    header: Vec<u8>,
    frame: Frame,
    /// Whether nothing comes any more.
    over: bool,
}

/// A frame in memory.
#[derive(Debug, Default)]
struct Frame {
    /// Where it begins in the file.
    start: u64,
    stored: Vec<u8>,
    content: Vec<u8>,
    /// Bytes of the content that were taken.
    taken: usize,
}

/// What a read for a frame came to.
enum Found {
    Frame(Kind),
    CutOff,
}

impl<R: Read> Recording<R> {
    /// Reads a recording's beginning.
    ///
    /// # Errors
    /// That it is none, or none that this version reads.
    pub fn open(from: R) -> Result<Self, RecordingError> {
        let mut recording =
            Self { from, at: 0, header: Vec::new(), frame: Frame::default(), over: false };
        let mut start = [0; MAGIC.len() + size_of::<u32>()];
        let read = recording.fill(&mut start)?;
        let (magic, mut version) = start.split_at(MAGIC.len());
        if read == 0 {
            return Err(RecordingError::Empty);
        }
        let known = read.min(MAGIC.len());
        if magic.get(..known) != MAGIC.get(..known) {
            return Err(RecordingError::Foreign);
        }
        if read < start.len() {
            return Err(RecordingError::NoHeader);
        }
        match version.get_u32_le() {
            VERSION => {}
            other => return Err(RecordingError::Version(other)),
        }
        match recording.read_frame()? {
            Found::Frame(Kind::Header) => {
                recording.header = std::mem::take(&mut recording.frame.content);
                recording.frame.taken = 0;
                Ok(recording)
            }
            Found::Frame(_) => Err(recording.damaged("the first frame is no header")),
            Found::CutOff => Err(RecordingError::NoHeader),
        }
    }

    /// What whoever recorded gave as its header.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// What comes next; `None` after the end.
    ///
    /// # Errors
    /// That the file is damaged or cannot be read. Nothing comes after that.
    pub fn next_part(&mut self) -> Result<Option<Part>, RecordingError> {
        if self.over {
            return Ok(None);
        }
        let part = self.part();
        self.over = !matches!(part, Ok(Part::Record(_) | Part::Gap(_)));
        part.map(Some)
    }

    fn part(&mut self) -> Result<Part, RecordingError> {
        loop {
            let rest = self.frame.content.get(self.frame.taken..).unwrap_or_default();
            if !rest.is_empty() {
                return match postcard::take_from_bytes(rest) {
                    Ok((record, rest)) => {
                        self.frame.taken = self.frame.content.len() - rest.len();
                        Ok(Part::Record(record))
                    }
                    Err(error) => Err(self.damaged(&format!(
                        "a record is not understood ({error}); another version of memtrace may \
                         have recorded it"
                    ))),
                };
            }
            match self.read_frame()? {
                Found::Frame(Kind::Records) => {}
                Found::Frame(kind) => {
                    let content = std::mem::take(&mut self.frame.content);
                    return self.no_records(kind, &content);
                }
                Found::CutOff => return Ok(Part::CutOff(self.frame.start)),
            }
        }
    }

    fn no_records(&mut self, kind: Kind, content: &[u8]) -> Result<Part, RecordingError> {
        match kind {
            Kind::Gap => match content.try_into() {
                Ok(missing) => Ok(Part::Gap(u64::from_le_bytes(missing))),
                Err(_) => Err(self.damaged("a gap does not say how large it is")),
            },
            Kind::End => {
                let Ok(anchor) = serde_json::from_slice(content) else {
                    return Err(self.damaged("the end does not say when it was"));
                };
                if self.fill(&mut [0])? > 0 {
                    return Err(self.damaged("something follows the end"));
                }
                Ok(Part::End(anchor))
            }
            Kind::Header | Kind::Records => Err(self.damaged("a second header")),
        }
    }

    /// Reads a frame into memory.
    fn read_frame(&mut self) -> Result<Found, RecordingError> {
        self.frame.start = self.at;
        self.frame.taken = 0;
        self.frame.content.clear();
        let mut head = [0; HEAD];
        if self.fill(&mut head)? < HEAD {
            return Ok(Found::CutOff);
        }
        // A host that goes down can leave a file longer than what was written to it.
        if head == [0; HEAD] && self.only_zeros_follow()? {
            return Ok(Found::CutOff);
        }
        let head = Head::read(head).map_err(|what| self.damaged(what))?;
        let mut stored = std::mem::take(&mut self.frame.stored);
        stored.resize(head.stored + CHECKSUM, 0);
        let read = self.fill(&mut stored)?;
        self.frame.stored = stored;
        if read < self.frame.stored.len() {
            return Ok(Found::CutOff);
        }
        let (stored, mut checksum) = self.frame.stored.split_at(head.stored);
        if crc32fast::hash(stored) != checksum.get_u32_le() {
            // The last one was not written as a whole.
            if self.fill(&mut [0])? == 0 {
                return Ok(Found::CutOff);
            }
            return Err(self.damaged("a frame does not have its checksum"));
        }
        if head.stored == head.bytes {
            self.frame.content.extend_from_slice(stored);
            return Ok(Found::Frame(head.kind));
        }
        self.frame.content.resize(head.bytes.min(LONGEST), 0);
        match lz4_flex::block::decompress_into(stored, &mut self.frame.content) {
            Ok(bytes) if bytes == head.bytes => Ok(Found::Frame(head.kind)),
            _ => Err(self.damaged("a frame cannot be unpacked")),
        }
    }

    fn only_zeros_follow(&mut self) -> io::Result<bool> {
        let mut some = [0; 4_096];
        loop {
            let read = self.fill(&mut some)?;
            if some.iter().take(read).any(|byte| *byte != 0) {
                return Ok(false);
            }
            if read < some.len() {
                return Ok(true);
            }
        }
    }

    /// Reads until this is full or the file ends; how many bytes.
    fn fill(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(rest) = to.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.from.read(rest) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.at += filled as u64;
        Ok(filled)
    }

    fn damaged(&self, what: &str) -> RecordingError {
        RecordingError::Damaged { at: self.frame.start, what: what.to_owned() }
    }
}
