//! What `top` reads of the daemon's dump: a few fields of schema 1, in types of its own. What a
//! newer daemon adds is passed over; nothing here is needed but the socket's answer.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use crate::cli::client::{self, ClientError};
use crate::snapshot;

/// The schema that this version reads.
const SCHEMA: u32 = 1;
/// A dump beyond this would take the memory that somebody is looking for. 10,000 sites with 30
/// frames each are some 80 MB.
const LARGEST_BYTES: usize = 512 << 20;

/// A dump.
#[derive(Clone, Debug, Deserialize)]
pub struct Dump {
    schema: u32,
    pub generated_at: Timestamp,
    pub attached_at: Timestamp,
    pub host: Host,
    #[serde(default)]
    pub domains: BTreeMap<String, Terms>,
    #[serde(default)]
    pub loss: BTreeMap<String, Loss>,
    pub processes: Vec<Process>,
    pub findings: Vec<Finding>,
}

/// The host.
#[derive(Clone, Debug, Deserialize)]
pub struct Host {
    pub name: String,
}

/// What is live in a domain.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Terms {
    pub live: Amount,
}

/// Bytes.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Amount {
    pub bytes: u64,
}

/// Events lost to one cause.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Loss {
    pub count: u64,
}

/// A process.
#[derive(Clone, Debug, Deserialize)]
pub struct Process {
    pub pid: u32,
    pub start_ns: u64,
    pub comm: String,
    pub cmdline: Option<String>,
    pub ended: bool,
    #[serde(default)]
    pub domains: BTreeMap<String, Terms>,
    pub sites: Vec<Site>,
}

/// A row of a process' books.
#[derive(Clone, Debug, Deserialize)]
pub struct Site {
    pub id: Option<String>,
    pub domain: String,
    pub api: String,
    pub context: String,
    pub live_bytes: u64,
    pub live_count: u64,
    pub allocations: u64,
    pub growth_bytes_per_second: Option<f64>,
    pub oldest_age_seconds: Option<f64>,
    pub verdict: String,
    pub confidence: Option<f64>,
    pub stack: Option<Taken>,
    pub frames: Vec<Frame>,
    /// The heaviest of them; there is no room for more.
    #[serde(rename = "samples", default, deserialize_with = "first")]
    pub sample: Option<Sample>,
    pub note: Option<String>,
}

/// Whether a stack is all of it.
#[derive(Clone, Debug, Deserialize)]
pub struct Taken {
    pub reason: Option<String>,
}

/// An example of who called, at a kernel site.
#[derive(Clone, Debug, Deserialize)]
pub struct Sample {
    pub user_frames: Vec<Frame>,
}

/// A frame.
#[derive(Clone, Debug, Deserialize)]
pub struct Frame {
    pub kind: Kind,
    pub symbol: Option<Box<str>>,
    pub module: Option<Box<str>>,
    pub offset: Option<u64>,
    pub file: Option<Box<str>>,
    pub line: Option<u32>,
    pub inlined: bool,
    pub allocator: bool,
    pub reason: Option<Box<str>>,
}

/// Which kind of code a frame is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Kernel,
    Python,
    #[default]
    #[serde(other)]
    Native,
}

/// A finding.
#[derive(Clone, Debug, Deserialize)]
pub struct Finding {
    pub level: String,
    pub domain: String,
    pub processes: Vec<u32>,
    #[serde(default)]
    pub comm: String,
    pub site: Option<String>,
    pub function: Option<String>,
    pub verdict: String,
    pub confidence: Option<f64>,
    pub since: Timestamp,
    pub exhaustion: Option<Exhaustion>,
    #[serde(default)]
    pub evidence: Evidence,
    #[serde(default)]
    pub decided_by: Vec<String>,
}

/// When memory will be gone, and which.
#[derive(Clone, Debug, Deserialize)]
pub struct Exhaustion {
    pub seconds: f64,
    pub of: String,
}

/// How the floor rose.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Evidence {
    pub floor_first_bytes: Option<u64>,
    pub floor_last_bytes: Option<u64>,
    pub windows: u32,
    pub window_seconds: f64,
    pub rising_windows: u32,
}

impl Frame {
    /// The frame as reports know it, for their words.
    pub fn shown(&self) -> snapshot::Frame {
        let text = |text: &Option<Box<str>>| text.as_deref().map(Into::into);
        snapshot::Frame {
            kind: match self.kind {
                Kind::Kernel => snapshot::FrameKind::Kernel,
                Kind::Native => snapshot::FrameKind::Native,
                Kind::Python => snapshot::FrameKind::Python,
            },
            symbol: text(&self.symbol),
            module: text(&self.module),
            build_id: None,
            offset: self.offset,
            file: text(&self.file),
            line: self.line,
            inlined: self.inlined,
            allocator: self.allocator,
            reason: text(&self.reason),
        }
    }
}

/// The frames from the user's own outwards; all, if all are the allocator's.
pub fn from_the_users(frames: &[Frame]) -> &[Frame] {
    let own = frames.iter().position(|frame| !frame.allocator).unwrap_or(0);
    frames.get(own..).unwrap_or_default()
}

fn first<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Sample>, D::Error> {
    struct First;
    impl<'de> serde::de::Visitor<'de> for First {
        type Value = Option<Sample>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of samples")
        }

        fn visit_seq<A: serde::de::SeqAccess<'de>>(
            self,
            mut list: A,
        ) -> Result<Self::Value, A::Error> {
            let first = list.next_element()?;
            while list.next_element::<serde::de::IgnoredAny>()?.is_some() {}
            Ok(first)
        }
    }
    deserializer.deserialize_seq(First)
}

/// Asks the daemon for a dump.
///
/// # Errors
///
/// One line: what was asked, what came back, what to do.
pub async fn ask(socket: &Path) -> anyhow::Result<Dump> {
    let mut body = Body(Vec::new());
    match client::get(socket, "/api/v1/dump?format=json", &mut body).await {
        // The reason is ours, and begins with what was tried.
        Err(ClientError::Write(error)) => anyhow::bail!("{error}"),
        other => other?,
    }
    // Seconds of work for a large host, and not for a thread that others wait for.
    let read = tokio::task::spawn_blocking(move || parse(&body.0)).await;
    read.map_err(|_| anyhow::anyhow!("the reader of dumps failed; this is a fault of memtrace"))?
}

/// Reads a dump.
///
/// # Errors
///
/// One line: it is of another schema, or not a dump.
pub fn parse(text: &[u8]) -> anyhow::Result<Dump> {
    #[derive(Deserialize)]
    struct Version {
        schema: u32,
    }
    let other = |schema| {
        anyhow::anyhow!(
            "the daemon's dump has schema {schema}, this memtrace reads {SCHEMA}; \
             use the memtrace that the daemon is from"
        )
    };
    match serde_json::from_slice::<Dump>(text) {
        Ok(dump) if dump.schema == SCHEMA => Ok(dump),
        Ok(dump) => Err(other(dump.schema)),
        Err(error) => match serde_json::from_slice::<Version>(text) {
            Ok(Version { schema }) if schema != SCHEMA => Err(other(schema)),
            _ => Err(anyhow::anyhow!(
                "cannot read the daemon's dump: {error}; \
                 see that memtrace and its daemon are of one version"
            )),
        },
    }
}

/// An answer, up to a size.
struct Body(Vec<u8>);

impl Write for Body {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len().saturating_add(bytes.len()) > LARGEST_BYTES {
            return Err(io::Error::other(format!(
                "the daemon's dump has more than {} MiB; \
                 look at a part of it with `memtrace dump --pid N`",
                LARGEST_BYTES >> 20
            )));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A snapshot as the socket sends it.
#[cfg(test)]
pub fn sent(snapshot: &snapshot::Snapshot) -> Vec<u8> {
    use crate::report::{Filter, Format, render};
    let mut text = vec![];
    // A vector takes everything.
    drop(render(snapshot, Format::Json, &Filter::default(), None, &mut text));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn what_the_daemon_writes_can_be_read() {
        let dump = parse(&sent(&fixture::busy())).unwrap();
        assert_eq!(dump.host.name, "gpu-17");
        assert_eq!(dump.findings.len(), 2);
        let site = &dump.processes[1].sites[0];
        assert_eq!(site.id.as_deref(), Some("0000000000000123"));
        assert_eq!(from_the_users(&site.frames)[0].symbol.as_deref(), Some("load_msg"));
        assert_eq!(site.sample.as_ref().unwrap().user_frames.len(), 2);
    }

    #[test]
    fn another_schema_and_no_dump_are_one_line() {
        for (text, expected) in [
            (r#"{"schema": 2}"#, "the daemon's dump has schema 2, this memtrace reads 1"),
            (r#"{"schema": 1}"#, "cannot read the daemon's dump: missing field"),
            ("<html>", "cannot read the daemon's dump: expected value"),
            ("", "cannot read the daemon's dump: EOF"),
        ] {
            let said = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(said.starts_with(expected), "{text} gave: {said}");
            assert_eq!(said.lines().count(), 1);
        }
    }
}
