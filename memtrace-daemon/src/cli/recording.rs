//! What a recording says of itself before its first record, and where it is written to.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::bail;
use jiff::Timestamp;
use memtrace_common::Domain;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::output::OutputError;
use crate::{
    engine::{CoreConfig, Setting},
    intake::recording::{Recorder, Writing},
    ledger::LedgerConfig,
    record::Anchor,
    snapshot::HostInfo,
    verdict::VerdictConfig,
};

/// For its owner only: command lines are in it.
const MODE: u32 = 0o600;

/// What a replay needs to know beside the records.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Version of the memtrace that recorded.
    pub memtrace: String,
    /// How the clocks lay to each other when the probes were attached.
    pub anchor: Anchor,
    /// When the probes were attached.
    pub attached_at: Timestamp,
    /// The host.
    pub host: HostInfo,
    /// What the core was asked to do.
    #[serde(with = "CoreForm")]
    pub core: CoreConfig,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "CoreConfig")]
struct CoreForm {
    domains: Vec<Domain>,
    named_caches: bool,
    sees_rcu_frees: bool,
    ledger: LedgerConfig,
    #[serde(deserialize_with = "verdict")]
    verdict: VerdictConfig,
}

/// Reads the numbers of the verdict: those that this version does not know say nothing to it, and
/// those that the recording does not have are its own.
fn verdict<'de, D: Deserializer<'de>>(deserializer: D) -> Result<VerdictConfig, D::Error> {
    let mut given = BTreeMap::<String, Value>::deserialize(deserializer)?;
    let known = serde_json::to_value(VerdictConfig::default()).map_err(D::Error::custom)?;
    given.retain(|name, _| known.get(name).is_some());
    let given = Value::Object(given.into_iter().collect());
    VerdictConfig::deserialize(given).map_err(D::Error::custom)
}

impl Header {
    /// Of a session whose probes were attached at this moment.
    #[must_use]
    pub fn new(attached_at: Anchor, host: HostInfo, core: CoreConfig) -> Self {
        let memtrace = env!("CARGO_PKG_VERSION").to_owned();
        Self { memtrace, anchor: attached_at, attached_at: attached_at.wall, host, core }
    }

    /// What a picture says beside the books, by these clocks.
    #[must_use]
    pub fn setting(&self, anchor: Anchor) -> Setting {
        Setting { anchor, attached_at: self.attached_at, host: self.host.clone() }
    }
}

/// The open file of a recording that has not begun.
#[derive(Debug)]
pub struct Destination {
    file: File,
    path: PathBuf,
}

impl Destination {
    /// Opens a file before anything is traced. What is in it stays until the recording begins.
    ///
    /// # Errors
    /// One line: it cannot be written, or is a terminal.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(MODE);
        let file = options.open(path).map_err(|source| cannot_write(path, source))?;
        if file.is_terminal() {
            bail!("a terminal cannot show a recording; name a file with -o FILE");
        }
        Ok(Self { file, path: path.to_owned() })
    }

    /// Begins the recording.
    ///
    /// # Errors
    /// One line.
    pub fn start(self, header: &Header) -> anyhow::Result<(Recorder, Writing)> {
        let Self { file, path } = self;
        let started = || {
            // A pipe has neither a length nor rights of its own.
            if file.metadata()?.is_file() {
                file.set_permissions(Permissions::from_mode(MODE))?;
                file.set_len(0)?;
            }
            Recorder::start(file, &serde_json::to_vec(header)?)
        };
        Ok(started().map_err(|source| cannot_write(&path, source))?)
    }

    /// Whether something is in the file that the recording will replace.
    #[must_use]
    pub fn replaces(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0)
    }
}

/// One line: the file cannot be written.
#[must_use]
pub fn cannot_write(path: &Path, source: io::Error) -> OutputError {
    OutputError::Write { to: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let anchor = Anchor { monotonic_ns: 1, boot_ns: 2, wall: Timestamp::UNIX_EPOCH };
        let verdict = VerdictConfig { loss_share: 0.1 + 0.2, ..VerdictConfig::default() };
        let ledger = LedgerConfig { linger_ns: None, max_ended: usize::MAX, ..Default::default() };
        let core = CoreConfig {
            domains: vec![Domain::Kernel, Domain::CudaIpc],
            sees_rcu_frees: true,
            ledger,
            verdict,
            ..CoreConfig::default()
        };
        let host = HostInfo { name: "h".into(), kernel: "6".into(), arch: "x86_64".into() };
        Header::new(anchor, host, core)
    }

    #[test]
    fn a_header_comes_back_as_it_was() {
        let header = header();
        let back: Header = serde_json::from_slice(&serde_json::to_vec(&header).unwrap()).unwrap();
        assert_eq!(format!("{back:?}"), format!("{header:?}"));
    }

    #[test]
    fn numbers_that_another_version_does_not_know_are_its_own_or_nothing() {
        let mut json = serde_json::to_value(header()).unwrap();
        let verdict = json["core"]["verdict"].as_object_mut().unwrap();
        verdict.remove("leak_windows");
        verdict.insert("no_longer".to_owned(), 1.into());
        let back: Header = serde_json::from_value(json).unwrap();
        assert_eq!(back.core.verdict.leak_windows, VerdictConfig::default().leak_windows);
    }

    #[test]
    fn a_recording_is_its_owners_and_an_old_one_stays_until_it_begins() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("recording");
        std::fs::write(&path, "the old one").unwrap();
        let destination = Destination::open(&path).unwrap();
        assert!(destination.replaces());
        assert_eq!(std::fs::read(&path).unwrap(), b"the old one");
        let (recorder, writing) = destination.start(&header()).unwrap();
        drop(recorder);
        let written = writing.wait();
        assert!(written.failed.is_none());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), written.bytes);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!Destination::open(&directory.path().join("new")).unwrap().replaces());
    }

    #[test]
    fn an_unwritable_file_is_one_line() {
        let error = Destination::open(Path::new("/nonexistent/recording")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot write /nonexistent/recording: No such file or directory (os error 2); \
             name another file with -o"
        );
    }
}
