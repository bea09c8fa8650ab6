//! Recordings of real programs, with labels beside them: `NAME.mtrec` and `NAME.toml`.
//!
//! A recording is replayed second by second by the engine that it was made for. What is labelled
//! must be said in the end, and nothing that has no label, or another, may ever be called a leak.
//! Must never know what a program is otherwise than by its label.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use memtrace_daemon::cli::replay::watch_file;
use memtrace_daemon::snapshot::{Frame, Site, Snapshot, Verdict};
use serde::Deserialize;

/// What is right to say about the things in a recording.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Labels {
    /// Each thing.
    pub label: Vec<Label>,
    /// Functions of the kernel whose memory grows because of what the programs do and is labelled
    /// elsewhere: that they are called leaks is neither right nor wrong.
    #[serde(default)]
    pub either: Vec<String>,
}

/// What is right to say about one thing.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Label {
    /// The program.
    pub comm: String,
    /// The kind of memory.
    pub domain: String,
    /// The function at whose site it is, or the beginning of `FILE+OFFSET`; without it, it is a
    /// process or service as a whole.
    pub function: Option<String>,
    /// Any of these verdicts is right in the end.
    pub is: Vec<String>,
}

impl Label {
    /// In words.
    #[must_use]
    pub fn title(&self) -> String {
        let Self { comm, domain, function, .. } = self;
        match function {
            Some(function) => format!("{comm} {domain} {function}"),
            None => format!("{comm} {domain}"),
        }
    }

    fn leaks(&self) -> bool {
        self.is.iter().any(|one| one == Verdict::Leak.name())
    }

    fn names(&self, title: &str) -> bool {
        let rest = self.function.as_deref().and_then(|function| title.strip_prefix(function));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('+'))
    }

    /// What is said of it; of several the worst, since one of them is what is meant.
    fn said(&self, snapshot: &Snapshot) -> Option<Verdict> {
        if self.function.is_none() {
            let mut findings = snapshot.findings.iter().filter(|finding| {
                finding.level != "site"
                    && finding.domain == self.domain
                    && self.is_of(snapshot, &finding.comm, &finding.processes)
            });
            return findings.next().map(|finding| finding.verdict);
        }
        let sites = rows(snapshot).filter(|(comm, site)| {
            *comm == self.comm
                && site.domain == self.domain
                && title(site).is_some_and(|title| self.names(&title))
        });
        let worst = sites.max_by_key(|(_, site)| (site.verdict == Verdict::Leak, site.live_bytes));
        worst.map(|(_, site)| site.verdict)
    }

    fn is_of(&self, snapshot: &Snapshot, comm: &str, pids: &[u32]) -> bool {
        comm == self.comm
            || snapshot.processes.iter().any(|one| one.comm == self.comm && pids.contains(&one.pid))
    }
}

/// What came of a recording.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Its name.
    pub name: String,
    /// Labels.
    pub labels: usize,
    /// Labels of which the right thing was said.
    pub right: usize,
    /// What was not right, a line each.
    pub wrong: Vec<String>,
}

impl Recorded {
    /// Share of the labels of which the right thing was said; none where something that is no
    /// leak was called one.
    #[must_use]
    pub fn right_share(&self) -> f64 {
        let complaints = self.wrong.len().min(self.labels);
        (self.labels - complaints) as f64 / self.labels.max(1) as f64
    }
}

/// Where the recordings are.
#[must_use]
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../recordings")
}

/// Replays all recordings of a directory, in the order of their names.
///
/// # Errors
/// Where one cannot be replayed or has no labels.
pub fn replay_all(directory: &Path) -> anyhow::Result<Vec<Recorded>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "mtrec") {
            files.push(path);
        }
    }
    ensure!(!files.is_empty(), "there are no recordings in {}", directory.display());
    files.sort();
    files.iter().map(|file| replay(file)).collect()
}

/// Replays one, and holds it against its labels.
///
/// # Errors
/// Where it cannot be replayed or has no labels, or a label has no verdict that there is.
pub fn replay(file: &Path) -> anyhow::Result<Recorded> {
    let labels = labels(&file.with_extension("toml"))?;
    let mut leaks = BTreeSet::new();
    let last = watch_file(file, &mut |snapshot| {
        for (comm, site) in rows(snapshot).filter(|(_, site)| site.verdict == Verdict::Leak) {
            let title = title(site).unwrap_or_else(|| "(unnamed)".to_owned());
            leaks.insert((comm.to_owned(), site.domain, title));
        }
    })?;
    let mut wrong = Vec::new();
    for label in &labels.label {
        let said = label.said(&last.snapshot);
        let name = said.map_or("nothing", Verdict::name);
        if !label.is.iter().any(|one| one == name) {
            wrong.push(format!("{}: {name}, not {}", label.title(), label.is.join(" or ")));
        }
    }
    let right = labels.label.len() - wrong.len();
    for (comm, domain, title) in leaks {
        let known = labels.label.iter().any(|label| {
            label.leaks() && label.comm == comm && label.domain == domain && label.names(&title)
        });
        if !known && !labels.either.contains(&title) {
            wrong.push(format!("{comm} {domain} {title}: wrongly called a leak"));
        }
    }
    let name = file.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into());
    Ok(Recorded { name, labels: labels.label.len(), right, wrong })
}

fn labels(path: &Path) -> anyhow::Result<Labels> {
    let what = || format!("{}: what each thing in the recording is", path.display());
    let text = fs::read_to_string(path).with_context(what)?;
    let labels: Labels = toml::from_str(&text).with_context(what)?;
    ensure!(!labels.label.is_empty(), "{} has no label", path.display());
    Ok(labels)
}

/// All rows, each with its program.
fn rows(snapshot: &Snapshot) -> impl Iterator<Item = (&str, &Site)> {
    let processes = snapshot.processes.iter();
    processes.flat_map(|process| process.sites.iter().map(|site| (process.comm.as_str(), site)))
}

/// What a person would call a site.
fn title(site: &Site) -> Option<String> {
    site.frames.get(site.frames.own()).and_then(Frame::title)
}
