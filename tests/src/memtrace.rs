//! Runs the binary under test: `run` with a fixture, and any other subcommand.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use crate::dump::{Dump, Process};
use crate::process::{self, Running, Said};
use crate::scratch::Scratch;
use crate::truth::Truth;
use crate::{ipc, paths};

/// More than any run of the suites needs on a slow machine.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The binary with arguments.
///
/// # Errors
///
/// When it has not been built.
pub fn command<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> anyhow::Result<Command> {
    let mut command = Command::new(paths::memtrace()?);
    command.args(arguments);
    Ok(command)
}

/// Starts `memtrace attach` and waits until it follows the process and its children.
///
/// # Errors
///
/// When it does not get that far.
pub fn attach<S: AsRef<OsStr>>(
    pid: u32,
    arguments: impl IntoIterator<Item = S>,
) -> anyhow::Result<Running> {
    let mut command = command(["attach", "--pid", &pid.to_string()])?;
    command.args(arguments).env("MEMTRACE_LOG", "info");
    let tracer = Running::start(&mut command)?;
    tracer.wait_for("attached", LIMIT)?;
    Ok(tracer)
}

/// Runs the binary to its end.
///
/// # Errors
///
/// When it cannot be started or does not end.
pub fn call<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> anyhow::Result<Said> {
    process::run(&mut command(arguments)?, LIMIT)
}

/// `memtrace run` about to be started.
#[derive(Debug, Default)]
pub struct Run {
    options: Vec<OsString>,
    environment: Vec<(&'static str, String)>,
}

/// What came of `memtrace run`: the dump, and what the traced program said.
#[derive(Debug)]
pub struct Traced {
    /// What the command and memtrace said.
    pub said: Said,
    /// The report.
    pub dump: Dump,
    /// The report as text.
    pub json: String,
    /// Message queues that the kernel fixture left, removed when this goes.
    _left: ipc::Left,
}

impl Run {
    /// With these domains.
    #[must_use]
    pub fn new(domains: &str) -> Self {
        Self::default().option("--domains").option(domains)
    }

    /// With one more argument before the command.
    #[must_use]
    pub fn option(mut self, option: impl Into<OsString>) -> Self {
        self.options.push(option.into());
        self
    }

    /// With a hidden switch, such as a tiny map.
    #[must_use]
    pub fn switch(mut self, name: &'static str, value: impl ToString) -> Self {
        self.environment.push((name, value.to_string()));
        self
    }

    /// Runs a program under memtrace to its end; both must succeed.
    ///
    /// # Errors
    ///
    /// When either fails, or the report cannot be read.
    pub fn trace<S: AsRef<OsStr>>(
        &self,
        program: impl AsRef<Path>,
        arguments: impl IntoIterator<Item = S>,
    ) -> anyhow::Result<Traced> {
        let scratch = Scratch::new()?;
        let report = scratch.join("report.json");
        let mut command = command(["run", "--format", "json", "-o"])?;
        command.arg(&report).args(&self.options).arg("--").arg(program.as_ref()).args(arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let said = process::run(&mut command, LIMIT)?;
        // First of all, so that they go whatever comes next.
        let left = said.last_json().and_then(|line| ipc::Left::parse(&line)).unwrap_or_default();
        let said = said.expect_status(0)?;
        let json = std::fs::read_to_string(&report)
            .with_context(|| format!("no report in {}: {said:?}", report.display()))?;
        let dump = Dump::parse(&json)?;
        Ok(Traced { said, dump, json, _left: left })
    }
}

impl Traced {
    /// The last line of the client: what is true.
    ///
    /// # Errors
    ///
    /// When it said nothing of the kind.
    pub fn truth(&self) -> anyhow::Result<Truth> {
        Truth::parse(self.said.last_json()?)
    }

    /// The books of the process that said the last line.
    ///
    /// # Errors
    ///
    /// When it is not on the books.
    pub fn process(&self) -> anyhow::Result<&Process> {
        let line = self.said.last_json()?;
        let pid = line.get("pid").and_then(serde_json::Value::as_u64);
        self.dump.process(u32::try_from(pid.context("a line without pid")?)?)
    }
}
