//! What was said about one site, look by look, and what is asked of it.

use std::fmt;

use anyhow::{Context, bail, ensure};

use super::{Case, Look, title};
use crate::dump::{Finding, Site};

/// Windows of growth that a leak takes where nothing was freed, and at most.
const WITHOUT_FREES: (f64, f64) = (48.0, 72.0);
/// The same where the site frees as well.
const WITH_FREES: f64 = 30.0;
/// The verdict's windows, in those of the scenarios: at least so long.
const SHORTEST: f64 = 0.9;
/// How much later a thing may be seen than it is so: a look every other window, counters that
/// arrive once a window, a window that has to end first.
const LATE: f64 = 6.0;

/// The verdicts on one site over time.
#[derive(Clone, Debug)]
pub struct Sequence<'a> {
    case: &'a Case,
    domain: String,
    function: String,
    steps: Vec<Step<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Step<'a> {
    look: &'a Look,
    pid: u32,
    site: &'a Site,
}

impl<'a> Sequence<'a> {
    /// The site whose first frame of the user's is this function, or begins with it.
    pub(super) fn new(case: &'a Case, domain: &str, function: &str) -> anyhow::Result<Self> {
        let fits = |site: &Site| {
            site.domain == domain
                && title(site).is_some_and(|title| {
                    title == function || title.starts_with(&format!("{function}+"))
                })
        };
        let mut steps = Vec::new();
        for look in &case.looks {
            let own = look.sites.iter().filter(|(_, site)| fits(site));
            // Several processes of one scenario: the one about which the worst is said.
            let worst = own.max_by_key(|(_, site)| (site.verdict == "leak", site.live_bytes));
            steps.extend(worst.map(|(pid, site)| Step { look, pid: *pid, site }));
        }
        if steps.is_empty() {
            let all = case.looks.iter().flat_map(|look| &look.sites);
            let mut known: Vec<_> =
                all.map(|(_, site)| (site.domain.as_str(), title(site))).collect();
            known.sort();
            known.dedup();
            bail!("{}: no {domain} site in {function}, there are {known:?}", case.name);
        }
        Ok(Self { case, domain: domain.to_owned(), function: function.to_owned(), steps })
    }

    fn last(&self) -> anyhow::Result<&Step<'a>> {
        self.steps.last().context("no look")
    }

    /// When this was said first, windows from the start.
    fn first(&self, verdict: &str) -> Option<f64> {
        self.steps.iter().find(|step| step.site.verdict == verdict).map(|step| step.look.at)
    }

    /// This verdict was never given.
    ///
    /// # Errors
    ///
    /// With the sequence, when it was; as all that follow.
    pub fn never(&self, verdict: &str) -> anyhow::Result<()> {
        let said = self.first(verdict);
        ensure!(said.is_none(), "`{verdict}` must not be said, but was at {said:?}\n{self}");
        Ok(())
    }

    /// This verdict was given at some time.
    ///
    /// # Errors
    ///
    /// When it was not.
    pub fn was(&self, verdict: &str) -> anyhow::Result<()> {
        ensure!(self.first(verdict).is_some(), "`{verdict}` was never said\n{self}");
        Ok(())
    }

    /// Nothing but these verdicts was given.
    ///
    /// # Errors
    ///
    /// When another was.
    pub fn only(&self, verdicts: &[&str]) -> anyhow::Result<()> {
        let other = self.steps.iter().find(|step| !verdicts.contains(&step.site.verdict.as_str()));
        ensure!(other.is_none(), "only {verdicts:?} may be said\n{self}");
        Ok(())
    }

    /// This was the verdict at the last look before a window.
    ///
    /// # Errors
    ///
    /// When it was another.
    pub fn is_at(&self, window: f64, verdict: &str) -> anyhow::Result<()> {
        let step = self.steps.iter().rfind(|step| step.look.at <= window);
        let said = step.map(|step| step.site.verdict.as_str());
        ensure!(said == Some(verdict), "{said:?} at window {window}, not `{verdict}`\n{self}");
        Ok(())
    }

    /// This is the verdict at the end.
    ///
    /// # Errors
    ///
    /// When it is another.
    pub fn ends(&self, verdict: &str) -> anyhow::Result<()> {
        let said = &self.last()?.site.verdict;
        ensure!(said == verdict, "`{said}` at the end, not `{verdict}`\n{self}");
        Ok(())
    }

    /// Growth from this window on, of which nothing is freed, was called a leak in time, not too
    /// soon, and once and for all.
    ///
    /// # Errors
    ///
    /// When it was not.
    pub fn leaks_without_frees(&self, from: f64) -> anyhow::Result<()> {
        let (least, most) = WITHOUT_FREES;
        // A window that began before the scenario did counts as one, and on a busy machine, where
        // ticks come late and then soon, windows are no longer than they must be.
        self.leaks_within(from + (least - 1.0) * SHORTEST, from + most + LATE)
    }

    /// One object that is made ever larger: that the smaller ones before it are freed says nothing
    /// about what is kept, so it takes as long as where nothing is freed.
    ///
    /// # Errors
    ///
    /// When it was not called a leak in time, not too soon, and once and for all.
    pub fn leaks_in_size(&self, from: f64) -> anyhow::Result<()> {
        self.leaks_without_frees(from)
    }

    /// Growth from this window on at a site that frees as well was called a leak in time, and
    /// once and for all.
    ///
    /// # Errors
    ///
    /// When it was not.
    pub fn leaks_with_frees(&self, from: f64) -> anyhow::Result<()> {
        self.leaks_within(from, from + WITH_FREES + LATE)
    }

    fn leaks_within(&self, least: f64, most: f64) -> anyhow::Result<()> {
        let first = self.first("leak").with_context(|| format!("never called a leak\n{self}"))?;
        ensure!(
            (least..=most).contains(&first),
            "a leak at window {first:.1}, not between {least:.0} and {most:.0}\n{self}"
        );
        let mut later = self.steps.iter().skip_while(|step| step.site.verdict != "leak");
        ensure!(later.all(|step| step.site.verdict == "leak"), "not a leak for good\n{self}");
        Ok(())
    }

    /// The finding about this site at the end.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn finding(&self) -> anyhow::Result<&'a Finding> {
        let Step { look, pid, site } = *self.last()?;
        let finding = look.findings.iter().find(|finding| {
            finding.level == "site" && finding.site == site.id && finding.processes.contains(&pid)
        });
        finding.with_context(|| {
            format!("no finding about the site, there are {:#?}\n{self}", look.findings)
        })
    }

    /// It is a finding at the end, with a time to exhaustion where anything is known that can be
    /// exhausted: device memory is not, without a device, and what has no bytes is not.
    ///
    /// # Errors
    ///
    /// When one of them is missing.
    pub fn is_news(&self) -> anyhow::Result<()> {
        let finding = self.finding()?;
        let left = finding.exhaustion.as_ref().map(|exhaustion| exhaustion.seconds);
        if !["cuda", "cuda_ipc", "handles"].contains(&self.domain.as_str()) {
            let some = left.is_some_and(|seconds| seconds > 0.0 && seconds.is_finite());
            ensure!(some, "no time to exhaustion: {finding:#?}\n{self}");
        }
        Ok(())
    }

    /// The finding names the function, and its first frame the line in the scenarios' source.
    ///
    /// # Errors
    ///
    /// When they do not.
    pub fn names_its_line(&self) -> anyhow::Result<()> {
        let finding = self.finding()?;
        let named = finding.function.as_deref() == Some(&self.function);
        ensure!(named, "{:?} instead of {}", finding.function, self.function);
        let frames = &self.last()?.site.frames;
        let frame = frames.iter().find(|frame| !frame.allocator).context("no frame")?;
        let file = frame.file.as_deref().context("a frame without a file")?;
        let lines = lines_of(file, &self.function)?;
        ensure!(
            frame.line.is_some_and(|line| lines.contains(&line)),
            "{file}:{:?} is not in {} at {lines:?}",
            frame.line,
            self.function
        );
        Ok(())
    }

    /// One of its frames is this function.
    ///
    /// # Errors
    ///
    /// When none is.
    pub fn passes(&self, symbol: &str) -> anyhow::Result<()> {
        let site = self.last()?.site;
        ensure!(site.passes(symbol), "{symbol} is not among {:#?}", site.frames);
        Ok(())
    }
}

/// The lines of a C function, from its name to its closing brace.
fn lines_of(file: &str, function: &str) -> anyhow::Result<std::ops::RangeInclusive<u32>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
    let lines: Vec<&str> = text.lines().collect();
    let is_start = |line: &&str| line.contains(&format!("{function}(")) && line.ends_with('{');
    let start = lines.iter().position(is_start).with_context(|| format!("no {function}"))?;
    let length = lines.iter().skip(start).position(|line| *line == "}").context("no end")?;
    Ok(u32::try_from(start + 1)?..=u32::try_from(start + length + 1)?)
}

/// The same verdict look after look is one line, with what it was and what it rested on.
impl fmt::Display for Sequence<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, domain, function, steps } = self;
        writeln!(out, "{}: {domain} in {function}, by windows since its start:", case.name)?;
        for run in steps.chunk_by(|a, b| (a.pid, &a.site.verdict) == (b.pid, &b.site.verdict)) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let (from, to) = (first.site, last.site);
            writeln!(
                out,
                "  {:5.1} to {:5.1}  {:13} pid {}, live {} to {} bytes in {} objects, {} of {} \
                 freed, growth {:?} bytes/s, confidence {:?}",
                first.look.at,
                last.look.at,
                to.verdict,
                last.pid,
                from.live_bytes,
                to.live_bytes,
                to.live_count,
                to.frees,
                to.allocations,
                to.growth_bytes_per_second,
                to.confidence,
            )?;
            writeln!(out, "                  {}", to.evidence)?;
            let about = |one: &&Finding| one.site == to.id && one.processes.contains(&last.pid);
            if let Some(finding) = last.look.findings.iter().find(about) {
                writeln!(out, "                  {:?}", finding.decided_by)?;
            }
        }
        Ok(())
    }
}
