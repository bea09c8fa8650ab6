//! The run that all tests of verdicts share.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::{Case, Look, Outcome, SCENARIOS, Scenario, WINDOW, WINDOWS};
use crate::daemon::{Daemon, Options};
use crate::dump::Dump;
use crate::fixture::{self, Fixtures, Variant};
use crate::ipc::Left;
use crate::process::Running;
use crate::scratch::Scratch;
use crate::truth::Truth;

/// How often everything is looked at.
const PAUSE: Duration = Duration::from_secs(2);
/// Counters arrive once a second; a busy machine gets more time.
const LATE: Duration = Duration::from_secs(20);
/// A window is a second, which is when the engine looks. A little less, so that a look that is
/// early by a hair still ends one.
const VERDICT: &str = "window_seconds = 0.9\nmin_age_seconds = 6.0\nmin_bytes = 1024";

/// What scenarios take.
const DOMAINS: [&str; 6] = ["kernel", "cuda", "managed", "pinned", "cuda_ipc", "handles"];

/// A scenario that runs.
struct Started {
    scenario: Scenario,
    program: Running,
    since: Instant,
    looks: Vec<Look>,
    start: Value,
    /// Queues that it makes, removed with it.
    _left: Left,
}

pub(super) fn run() -> anyhow::Result<Outcome> {
    let fixtures = fixture::build(Variant::Plain)?;
    let daemon = daemon(&fixtures)?;
    let scratch = Scratch::new()?;
    let begun = Instant::now();
    let mut waiting = SCENARIOS.to_vec();
    let mut started = Vec::new();
    while begun.elapsed() < WINDOW * WINDOWS {
        let due = |one: &Scenario| begun.elapsed() >= WINDOW * one.from;
        for scenario in waiting.extract_if(.., |one| due(one)) {
            std::os::unix::fs::symlink(fixtures.cases(), scratch.join(scenario.name))?;
            started.push(Started::new(&scratch, scenario)?);
        }
        let next = Instant::now() + PAUSE;
        look(&daemon.dump_by_socket()?, &mut started);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let mut ends = BTreeMap::new();
    for one in &mut started {
        ends.insert(one.scenario.name, one.end()?);
    }
    let dump = settled(&daemon, &ends)?;
    let mut cases = BTreeMap::new();
    for one in started {
        let name = one.scenario.name;
        let end = ends.remove(name).context("a scenario without an end")?;
        let case = one.case(end, &dump);
        cases.insert(name, case);
    }
    daemon.stop()?.expect_status(0)?;
    Ok(Outcome { cases })
}

/// A daemon with fast windows, that books the scenarios alone: what else the host does would
/// make each dump large, and says nothing here.
fn daemon(fixtures: &Fixtures) -> anyhow::Result<Daemon> {
    let names = SCENARIOS.iter().map(|one| one.name).collect::<Vec<_>>();
    let libraries = [fixtures.cudart(), fixtures.cuda(), fixtures.cudnn()];
    let configuration = Some(format!(
        "libraries = {libraries:?}\ndomains = {DOMAINS:?}\n[include]\ncomm = {names:?}\n"
    ));
    let environment = vec![("MEMTRACE_TUNE_VERDICT", VERDICT.to_owned())];
    Daemon::start_with(&Options { configuration, environment })
}

impl Started {
    fn new(scratch: &Scratch, scenario: Scenario) -> anyhow::Result<Self> {
        let mut command = Command::new(scratch.join(scenario.name));
        command.arg(scenario.name).arg(WINDOW.as_millis().to_string());
        command.arg((WINDOWS - scenario.from).to_string());
        let mut program = Running::start_talking(&mut command)?;
        let start = program.read_json()?;
        let left = Left::parse(&start).unwrap_or_default();
        let since = Instant::now();
        Ok(Self { scenario, program, since, looks: Vec::new(), start, _left: left })
    }

    /// Its last line. Its children speak on the same pipe.
    fn end(&mut self) -> anyhow::Result<Value> {
        loop {
            let line = self.program.read_line()?;
            if line.is_empty() {
                let said = self.program.finish(Duration::from_secs(1))?;
                bail!("{} ended before its time: {said:?}", self.scenario.name);
            }
            let line: Value = serde_json::from_str(&line)
                .with_context(|| format!("{} said {line:?}", self.scenario.name))?;
            if line.get("at").is_some_and(|at| at == "end") {
                return Ok(line);
            }
        }
    }

    fn case(self, end: Value, dump: &Dump) -> Case {
        let Self { scenario: Scenario { name, from: _ }, looks, start, .. } = self;
        let own = dump.processes.iter().filter(|one| one.comm == name).cloned();
        let books = agrees(&end, dump).map_err(|error| format!("{error:#}"));
        Case { name, looks, start, end, processes: own.collect(), books }
    }
}

/// Notes what a dump says about each scenario.
fn look(dump: &Dump, started: &mut [Started]) {
    for one in started {
        let name = one.scenario.name;
        let own = || dump.processes.iter().filter(|process| process.comm == name);
        let sites = own().flat_map(|own| own.sites.iter().map(|site| (own.pid, site.clone())));
        let concerns = |pids: &[u32]| own().any(|process| pids.contains(&process.pid));
        let findings = dump
            .findings
            .iter()
            .filter(|finding| finding.comm == name || concerns(&finding.processes));
        let at = one.since.elapsed().div_duration_f64(WINDOW);
        let findings = findings.cloned().collect();
        one.looks.push(Look { at, sites: sites.collect(), findings });
    }
}

/// The dump in which the books of all scenarios agree with what they said, or the last one.
fn settled(daemon: &Daemon, ends: &BTreeMap<&'static str, Value>) -> anyhow::Result<Dump> {
    let limit = Instant::now() + LATE;
    loop {
        let dump = daemon.dump_by_socket()?;
        dump.check_conservation()?;
        if ends.values().all(|end| agrees(end, &dump).is_ok()) || Instant::now() >= limit {
            return Ok(dump);
        }
        std::thread::sleep(WINDOW);
    }
}

fn agrees(end: &Value, dump: &Dump) -> anyhow::Result<()> {
    let truth = Truth::parse(end.clone())?;
    let process = dump.process(truth.pid)?;
    if let Some(sent) = end.get("sent") {
        let live = process.called_in("kernel", "load_msg").live.count;
        ensure!(process.ended && *sent == live, "{sent} messages were sent, {live} are live");
        return Ok(());
    }
    truth.check_running(process)
}
