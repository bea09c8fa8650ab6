//! The Rust files of the workspace, and which of them are tests.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::tokens::{self, Facts};

const MEMBERS: [&str; 5] =
    ["memtrace-common", "memtrace-daemon", "memtrace-ebpf", "tests", "xtask"];

/// One file.
pub struct Source {
    /// Its path from the root, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
    /// What its tokens say; of a test file too.
    pub facts: Facts,
    /// Whether it is compiled for tests only.
    pub test: bool,
}

impl Source {
    /// Reads a text as the file at a path.
    pub fn new(path: &str, text: &str) -> Self {
        let facts = tokens::read(text).unwrap_or_else(|error| panic!("{path}: {error}"));
        // Below a crate's `tests` or `benches`; the crate `tests` itself is a harness.
        let test = path.split('/').skip(1).any(|part| ["tests", "benches"].contains(&part));
        Self { path: path.to_owned(), text: text.to_owned(), facts, test }
    }

    /// Path of the module that this file is, such as `["ledger", "accounts"]`.
    pub fn module(&self) -> Vec<String> {
        let inside = self.path.split_once("/src/").map_or("", |(_, inside)| inside);
        let mut module: Vec<String> =
            inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
            module.pop();
        }
        module
    }
}

/// All files of the workspace's members.
pub fn all() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut paths = Vec::new();
    for member in MEMBERS {
        collect(&root.join(member), &mut paths);
    }
    paths.sort();
    let mut sources: Vec<Source> = paths
        .iter()
        .map(|path| {
            let text = fs::read_to_string(path).unwrap();
            Source::new(path.strip_prefix(root).unwrap().to_str().unwrap(), &text)
        })
        .collect();
    mark_test_modules(&mut sources);
    sources
}

fn collect(directory: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("target") {
                collect(&path, paths);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

/// Marks the files of modules that are declared under `#[cfg(test)]`.
fn mark_test_modules(sources: &mut [Source]) {
    let mut stems = Vec::new();
    for source in sources.iter() {
        let stem = source.path.trim_end_matches(".rs");
        let (parent, name) = stem.rsplit_once('/').unwrap_or(("", stem));
        let directory = if ["mod", "lib", "main"].contains(&name) { parent } else { stem };
        stems.extend(source.facts.test_modules.iter().map(|name| format!("{directory}/{name}")));
    }
    for source in sources {
        let below = |stem: &String| {
            source
                .path
                .strip_prefix(stem)
                .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        source.test |= stems.iter().any(below);
    }
}
