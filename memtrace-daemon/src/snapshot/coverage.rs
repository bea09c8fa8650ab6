//! Coverage: which files and processes are probed, and which are not, and why.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};

/// One of a few words. By this name serde does not take it for text to be borrowed.
pub type Word = &'static str;

/// Whether one library file or one process is probed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverageRow {
    /// `library` or `process`.
    #[serde(deserialize_with = "kind")]
    pub kind: Word,
    /// Catalog name of the library, such as `libcudart`.
    pub library: Option<String>,
    /// Path as the process that mapped it has it.
    pub path: Option<String>,
    /// Build id, hex.
    pub build_id: Option<String>,
    /// Device and inode, `major:minor:inode`.
    pub file: Option<String>,
    /// The process that it was found in, if by a process.
    pub pid: Option<u32>,
    /// Whether probes are on it.
    pub attached: bool,
    /// Since when.
    pub attached_at: Option<Timestamp>,
    /// How: `uprobe_multi` or `perf_event`.
    #[serde(deserialize_with = "by")]
    pub by: Option<Word>,
    /// Functions probed.
    pub functions: Vec<String>,
    /// Catalog functions that the library does not export.
    pub missing: Vec<String>,
    /// Which layers its functions are of: `runtime`, `static` (the runtime, within an
    /// executable or another library), `driver`, `hip`, `declared`; of a process, by which its calls are seen.
    #[serde(default)]
    pub layers: Vec<String>,
    /// Why not, or what a reader should know.
    pub reason: Option<String>,
}

impl CoverageRow {
    /// The row of a process of which nothing but this is known.
    #[must_use]
    pub fn of_process(pid: u32, reason: String) -> Self {
        Self {
            kind: "process",
            library: None,
            path: None,
            build_id: None,
            file: None,
            pid: Some(pid),
            attached: false,
            attached_at: None,
            by: None,
            functions: Vec::new(),
            missing: Vec::new(),
            layers: Vec::new(),
            reason: Some(reason),
        }
    }

    /// In one word: `probed`, `partly` where its reason says what is missing, or `not`.
    #[must_use]
    pub const fn state(&self) -> &'static str {
        match (self.attached, &self.reason) {
            (true, None) => "probed",
            (true, Some(_)) => "partly",
            (false, _) => "not",
        }
    }
}

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
    one_of(&["library", "process"], &String::deserialize(deserializer)?)
}

fn by<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Word>, D::Error> {
    let word = Option::<String>::deserialize(deserializer)?;
    word.map(|word| one_of(&["uprobe_multi", "perf_event"], &word)).transpose()
}

fn one_of<E: serde::de::Error>(words: &'static [Word], word: &str) -> Result<Word, E> {
    let known = words.iter().find(|known| **known == word);
    known.copied().ok_or_else(|| E::unknown_variant(word, words))
}
