//! Memory patterns from production against the verdict: one daemon, all scenarios side by side,
//! and what was said about each of them at every look.
//!
//! A window of the verdict is a second here instead of ten, and everything that counts in windows
//! is ten times as fast. It must never ask the engine how it decides: it knows the dump alone.

mod run;
mod sequence;

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde_json::Value;

use crate::dump::{Finding, Process, Site};

pub use sequence::Sequence;

/// The length of a window.
pub const WINDOW: Duration = Duration::from_secs(1);
/// Windows from the first start to the last look.
pub const WINDOWS: u32 = 125;

/// A scenario, and when it is started.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name: that of the program as well, so that each is a service of its own.
    pub name: &'static str,
    /// Windows after the others.
    pub from: u32,
}

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    started("a1", 0),
    started("a2-cap", 0),
    started("a2-beyond", 85),
    started("a3", 0),
    started("a4-unbounded", 0),
    started("a4-bounded", 0),
    started("a4-slow", 0),
    started("a6", 0),
    started("a9", 0),
    started("a10", 0),
    started("a15", 0),
    started("a17", 0),
    started("a18", 0),
    started("a18-once", 0),
    started("a19", 0),
    started("a21", 0),
    started("a21-handles", 0),
    started("a23", 0),
    started("a23-lost", 0),
    started("a24", 0),
    started("a25", 0),
    started("a26", 0),
    started("a29", 0),
    started("a35", 0),
    started("a36", 0),
    started("a37", 0),
    started("a38", 0),
    started("a40", 0),
    started("a41", 0),
    started("a42", 0),
    started("a43", 0),
];

const fn started(name: &'static str, from: u32) -> Scenario {
    Scenario { name, from }
}

/// One look at a scenario's processes.
#[derive(Clone, Debug)]
pub struct Look {
    /// Windows since its start.
    pub at: f64,
    /// The sites of all its processes, each with its process.
    pub sites: Vec<(u32, Site)>,
    /// The findings that name one of its processes, or it.
    pub findings: Vec<Finding>,
}

/// A scenario that has run.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// All looks, in order.
    pub looks: Vec<Look>,
    /// What it said first.
    pub start: Value,
    /// What it said last.
    pub end: Value,
    /// Its processes in the last dump.
    pub processes: Vec<Process>,
    /// Whether its books agreed with what it said, and the last difference where they did not.
    pub books: Result<(), String>,
}

impl Case {
    /// The findings at the last look.
    #[must_use]
    pub fn last_findings(&self) -> &[Finding] {
        self.looks.last().map(|look| look.findings.as_slice()).unwrap_or_default()
    }

    /// All findings that there ever were, with the windows of their first and last look.
    #[must_use]
    pub fn findings_text(&self) -> String {
        let mut times = BTreeMap::new();
        for look in &self.looks {
            for Finding { level, domain, processes, function, verdict, decided_by, .. } in
                &look.findings
            {
                let key = (level, domain, function, processes, verdict);
                times.entry(key).or_insert((look.at, look.at, decided_by)).1 = look.at;
            }
        }
        let line = |(key, (from, to, why))| format!("  {from:5.1} to {to:5.1}  {key:?} {why:?}\n");
        let lines: String = times.into_iter().map(line).collect();
        format!("{}: all findings, by windows since its start:\n{lines}", self.name)
    }
}

/// What came of one run of all scenarios.
#[derive(Debug)]
pub struct Outcome {
    cases: BTreeMap<&'static str, Case>,
}

impl Outcome {
    /// The one of this test program: the first who asks waits for it, the others read.
    ///
    /// # Errors
    ///
    /// When the run failed, each time.
    pub fn get() -> anyhow::Result<&'static Self> {
        static OUTCOME: OnceLock<Result<Outcome, String>> = OnceLock::new();
        let outcome = OUTCOME.get_or_init(|| run::run().map_err(|error| format!("{error:#}")));
        outcome.as_ref().map_err(|error| anyhow!("the run of all scenarios failed: {error}"))
    }

    /// All of them.
    pub fn cases(&self) -> impl Iterator<Item = &Case> {
        self.cases.values()
    }

    /// A scenario.
    ///
    /// # Errors
    ///
    /// When there is none of this name.
    pub fn case(&self, name: &str) -> anyhow::Result<&Case> {
        self.cases.get(name).with_context(|| format!("no scenario {name}"))
    }

    /// What was said about the site in this function.
    ///
    /// # Errors
    ///
    /// When the scenario never had such a site.
    pub fn site(&self, name: &str, domain: &str, function: &str) -> anyhow::Result<Sequence<'_>> {
        Sequence::new(self.case(name)?, domain, function)
    }
}

/// What a person would call a site: the first frame that hands nothing on.
#[must_use]
pub fn title(site: &Site) -> Option<String> {
    let frame = site.frames.iter().find(|frame| !frame.allocator)?;
    frame.symbol.clone().or_else(|| {
        let module = frame.module.as_deref()?;
        let file = module.rsplit('/').next().unwrap_or(module);
        Some(format!("{file}+{:#x}", frame.offset?))
    })
}
