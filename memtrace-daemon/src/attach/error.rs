//! Why the kernel side could not be loaded or attached, in words for a person.

use std::io;

use aya::{EbpfError, maps::MapError, programs::ProgramError};
use thiserror::Error;

use super::{btf::LayoutError, multi::MultiError, perf::PerfError};

/// What went wrong between memtrace and the kernel.
#[derive(Debug, Error)]
pub enum TracerError {
    /// The kernel's own description of itself is missing or lacks something.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The object or one of its maps was refused.
    #[error("cannot load memtrace's BPF object: {}; `memtrace doctor` says what is missing", chain(.0))]
    Object(#[source] EbpfError),
    /// A program was refused.
    #[error("cannot load or attach the BPF program {name}: {}; `memtrace doctor` says what is missing", chain(.source))]
    Program {
        /// Its name.
        name: &'static str,
        /// What the kernel said.
        source: ProgramError,
    },
    /// A program for `uprobe_multi` was refused.
    #[error("cannot load the uprobe programs: {0}; `memtrace doctor` says what is missing")]
    Multi(#[from] MultiError),
    /// A program for perf-event uprobes was refused.
    #[error("cannot use perf-event uprobes: {0}; `memtrace doctor` says what is missing")]
    Perf(#[from] PerfError),
    /// A map could not be read or written.
    #[error("cannot use the BPF map {name}: {}", chain(.source))]
    Map {
        /// Its name.
        name: &'static str,
        /// What the kernel said.
        source: MapError,
    },
    /// A program or map is not in the object.
    #[error("memtrace's BPF object has no {0}: the build is broken")]
    Absent(&'static str),
    /// A program could not be run.
    #[error("cannot run the BPF program {name}: {source}")]
    Run {
        /// Its name.
        name: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// An error and what it came from, without a verifier's log: its first lines are enough.
fn chain(error: &dyn std::error::Error) -> String {
    const LONGEST: usize = 400;
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    let mut line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() > LONGEST {
        let tail: Vec<char> = line.chars().rev().take(LONGEST / 2).collect();
        let head: String = line.chars().take(LONGEST / 2).collect();
        line = format!("{head} … {}", tail.into_iter().rev().collect::<String>());
    }
    line
}
