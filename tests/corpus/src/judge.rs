//! One variant through memtrace and through the rules that it is compared with: what each said,
//! and whether that was right.

use memtrace_common::Domain;
use memtrace_daemon::engine::{Core, CoreConfig, Setting};
use memtrace_daemon::ledger::{Effects, Ledger, LedgerConfig, RowKey};
use memtrace_daemon::record::{Anchor, Observation, Record};
use memtrace_daemon::snapshot::{HostInfo, Site, Snapshot, Verdict};
use memtrace_daemon::verdict::baseline::{Outstanding, Quartile, Regression};
use memtrace_daemon::verdict::{Rule, Subject, Surroundings, VerdictConfig};
use rustc_hash::FxHashMap;

use crate::cases::Case;
use crate::expect::{Expectation, STEADY, Target};
use crate::stage::{LOOK, Watcher};
use crate::world::{SECOND, SiteId, WINDOW, World};

/// The rules, in the order of what [`run`] gives back.
pub const RULES: [&str; 4] = ["memtrace", "outstanding", "quartile", "regression"];

/// Whom to ask.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// memtrace's numbers.
    pub verdict: VerdictConfig,
    /// Whether the other rules are asked too.
    pub baselines: bool,
    /// Whether each look is written down.
    pub trace: bool,
}

/// A leak that was called, or not.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Seconds from the first lost byte; `None` where it was never called a leak.
    pub after: Option<f64>,
    /// Of these: in windows in which there was nothing to do.
    pub rested: f64,
    /// Bytes lost by then.
    pub bytes: u64,
    /// What is known of its turnover by then.
    pub turnover: Turnover,
    /// What kind of memory.
    pub domain: Option<Domain>,
}

/// What frees tell about a leak.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Turnover {
    /// Nothing: none was seen, or only of blocks that were copied into larger ones.
    #[default]
    Unknown,
    /// Seconds that what is freed at the site lives at most.
    Known(f64),
    /// It is a sum over sites, or over processes that come and go.
    OfMany,
}

/// One look at a target.
#[derive(Clone, Debug)]
pub struct Look {
    /// Seconds since the world began.
    pub second: u64,
    /// Live bytes.
    pub live_bytes: u64,
    /// What was said.
    pub verdict: Verdict,
    /// Why.
    pub why: Option<String>,
}

/// What one rule made of one variant.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What was said in the end about what is expected, and whether that is right.
    pub finals: Vec<(Expectation, Verdict, bool)>,
    /// What was called a leak and is none: what, and at which second.
    pub wrong: Vec<(String, u64)>,
    /// Of what is measured, what something was said of at any look and nothing should be (memtrace
    /// only): what, and at which second.
    pub loud: Vec<(String, u64)>,
    /// Whether all was right.
    pub right: bool,
    /// Leaks that are expected.
    pub found: Vec<Found>,
    /// Different things that were called a leak and are none.
    pub false_positives: usize,
    /// Days that sites with traffic and without a leak were watched for.
    pub site_days: f64,
    /// How sure it was, and whether it was right (memtrace only).
    pub claims: Vec<(f64, bool)>,
    /// Each look at the first thing that is expected.
    pub looks: Vec<Look>,
}

/// Runs a variant. One outcome a rule, in the order of [`RULES`]; of memtrace alone without
/// baselines.
#[must_use]
pub fn run(case: &Case, seed: u64, plan: &Plan) -> Vec<Outcome> {
    let stage = case.variant(seed);
    let expectations = stage.expectations.clone();
    let mut judge = Judge::new(plan, &expectations, &stage.domains);
    let world = stage.run(&mut judge);
    judge.finish(&world)
}

/// One rule, and what it has said.
struct Follow {
    said: FxHashMap<Subject, Verdict>,
    /// The first right call of a leak.
    calls: FxHashMap<Subject, Found>,
    wrong: Vec<(String, u64)>,
    loud: Vec<(String, u64)>,
    claims: Vec<(f64, bool)>,
    looks: Vec<Look>,
}

struct Judge<'a> {
    plan: &'a Plan,
    expectations: &'a [Expectation],
    core: Core,
    ledger: Ledger,
    others: Vec<Box<dyn Rule>>,
    follows: Vec<Follow>,
    rows: FxHashMap<RowKey, SiteId>,
}

impl<'a> Judge<'a> {
    fn new(plan: &'a Plan, expectations: &'a [Expectation], domains: &[Domain]) -> Self {
        let mut others: Vec<Box<dyn Rule>> = Vec::new();
        if plan.baselines {
            others.push(Box::new(Outstanding::default()));
            others.push(Box::new(Quartile::default()));
            others.push(Box::new(Regression::default()));
        }
        let follow = |_| Follow {
            said: FxHashMap::default(),
            calls: FxHashMap::default(),
            wrong: Vec::new(),
            loud: Vec::new(),
            claims: Vec::new(),
            looks: Vec::new(),
        };
        Self {
            plan,
            expectations,
            core: core(plan.verdict.clone(), domains),
            ledger: Ledger::new(LedgerConfig::default()),
            follows: (0..=others.len()).map(follow).collect(),
            others,
            rows: FxHashMap::default(),
        }
    }

    /// Whether a subject loses memory by now.
    fn loses(&self, world: &World, subject: Subject) -> bool {
        match subject {
            Subject::Row(row) => self
                .rows
                .get(&row)
                .and_then(|site| world.look(*site))
                .is_some_and(|site| site.growth_ns.is_some()),
            Subject::Process(serial, domain) => world.loses(domain, |of, _| of == serial),
            Subject::Service(service, domain) => world.loses(domain, |_, of| of == service),
        }
    }

    fn finish(mut self, world: &World) -> Vec<Outcome> {
        self.rows = world.rows();
        let snapshot = self.core.snapshot(world.now_ns(), &setting());
        let mut claims = Vec::new();
        for (_, site) in world.sites().filter(|(_, site)| site.allocations > 0) {
            let row = find(&snapshot, world.process(site.process).1, site.id);
            let Some((verdict, confidence)) =
                row.and_then(|row| Some((row.verdict, row.confidence?)))
            else {
                continue;
            };
            if !matches!(verdict, Verdict::Growing | Verdict::Warming | Verdict::Unreliable) {
                let leak = verdict == Verdict::Leak;
                claims.push((confidence, leak == site.growth_ns.is_some()));
            }
        }
        let days = world.second() as f64 / 86_400.0;
        let healthy = world
            .sites()
            .filter(|(_, site)| site.allocations > 0 && site.growth_ns.is_none())
            .count();
        let mut outcomes = Vec::new();
        for (number, follow) in self.follows.into_iter().enumerate() {
            let mut outcome = Outcome { site_days: days * healthy as f64, ..Outcome::default() };
            for expectation in self.expectations {
                let subject = expectation.target.subject(world);
                let said = subject.and_then(|subject| follow.said.get(&subject).copied());
                let finding = expectation.finding(world, &snapshot).filter(|_| number == 0);
                let said = said.or(finding.map(|finding| finding.verdict));
                let said = said.unwrap_or(Verdict::Steady);
                // The others look at the books alone. That they say nothing of what is measured is
                // right where it is no leak.
                let silent = number > 0 && expectation.target.is_measured();
                let right = (silent && !expectation.leaks())
                    || (expectation.finals.contains(&said)
                        && finding.is_none_or(|finding| expectation.is_worded(finding)))
                    || (number == 0
                        && expectation.finals.contains(&Verdict::Orphaned)
                        && orphaned(&snapshot, world, expectation.target));
                outcome.finals.push((*expectation, said, right));
                if expectation.leaks() {
                    let found = subject.and_then(|subject| follow.calls.get(&subject).copied());
                    outcome.found.push(found.unwrap_or(Found {
                        after: None,
                        rested: 0.0,
                        bytes: 0,
                        turnover: Turnover::Unknown,
                        domain: None,
                    }));
                }
            }
            let mut wrong: Vec<&str> = follow.wrong.iter().map(|(what, _)| what.as_str()).collect();
            wrong.sort_unstable();
            wrong.dedup();
            outcome.false_positives = wrong.len();
            outcome.right = wrong.is_empty()
                && follow.loud.is_empty()
                && outcome.finals.iter().all(|(_, _, right)| *right);
            outcome.wrong = follow.wrong;
            outcome.loud = follow.loud;
            outcome.claims = follow.claims;
            outcome.looks = follow.looks;
            if outcomes.is_empty() {
                outcome.claims.append(&mut claims);
            }
            outcomes.push(outcome);
        }
        outcomes
    }
}

/// Whether the process of a site was found orphaned: as good as the site itself.
fn orphaned(snapshot: &Snapshot, world: &World, target: Target) -> bool {
    let Target::Site(site) = target else { return false };
    world.look(site).is_some_and(|site| {
        let (_, pid) = world.process(site.process);
        let domain = site.kind.domain().name();
        snapshot.findings.iter().any(|finding| {
            finding.verdict == Verdict::Orphaned
                && finding.domain == domain
                && finding.processes.contains(&pid)
        })
    })
}

impl Watcher for Judge<'_> {
    fn record(&mut self, record: &Record) {
        let _ = self.core.apply(record);
        if self.others.is_empty() {
            return;
        }
        self.ledger.apply(record, &mut Effects::default());
        if let Record::Tick { now_ns } = record {
            for rule in &mut self.others {
                let ledger = &mut self.ledger;
                rule.observe(*now_ns, Surroundings::default(), &mut |each| {
                    ledger.sample_rows(each)
                });
            }
        }
    }

    fn look(&mut self, world: &World) {
        if self.rows.len() != world.sites().count() {
            self.rows = world.rows();
        }
        let now_ns = world.now_ns();
        if self.core.wants_unused(now_ns) {
            let observation = Observation::UnusedShared(world.unused_shared());
            let _ = self.core.apply(&Record::Observation { now_ns, observation });
        }
        self.hear_measured(world);
        for number in 0..self.follows.len() {
            let mut said = FxHashMap::default();
            let mut hear = |subject, verdict| {
                said.insert(subject, verdict);
            };
            match number.checked_sub(1).and_then(|other| self.others.get(other)) {
                Some(rule) => rule.said(&mut hear),
                None => self.core.said(&mut hear),
            }
            self.hear(number, world, said);
        }
    }
}

impl Judge<'_> {
    /// Takes what a rule says now.
    fn hear(&mut self, number: usize, world: &World, said: FxHashMap<Subject, Verdict>) {
        let now_ns = world.now_ns();
        let Some(before) = self.follows.get(number).map(|follow| &follow.said) else { return };
        let new: Vec<Subject> = said
            .iter()
            .filter(|(subject, verdict)| {
                **verdict == Verdict::Leak && before.get(*subject) != Some(&Verdict::Leak)
            })
            .map(|(subject, _)| *subject)
            .collect();
        let mut snapshot = None;
        for subject in new {
            let right = self.loses(world, subject);
            if number == 0
                && let Subject::Row(row) = subject
            {
                let picture =
                    snapshot.get_or_insert_with(|| self.core.snapshot(now_ns, &setting()));
                let site = self.rows.get(&row).and_then(|site| world.look(*site));
                let row = site
                    .and_then(|site| find(picture, world.process(site.process).1, site.id))
                    .and_then(|row| row.confidence);
                if let (Some(confidence), Some(follow)) = (row, self.follows.get_mut(number)) {
                    follow.claims.push((confidence, right));
                }
            }
            let found = found(world, &self.rows, subject);
            let Some(follow) = self.follows.get_mut(number) else { continue };
            if right {
                follow.calls.entry(subject).or_insert(found);
            } else {
                follow.wrong.push((format!("{subject:?}"), world.second()));
            }
        }
        if self.plan.trace {
            self.trace(number, world, &said);
        }
        if let Some(follow) = self.follows.get_mut(number) {
            // What is not there any more keeps its last word.
            follow.said.extend(said);
        }
    }

    /// Takes what memtrace says now of what is measured: that is never called a leak, and of some
    /// of it nothing is said at any time.
    fn hear_measured(&mut self, world: &World) {
        if !self.expectations.iter().any(|expectation| expectation.target.is_measured()) {
            return;
        }
        let picture = self.core.snapshot(world.now_ns(), &setting());
        let Some(follow) = self.follows.first_mut() else { return };
        for expectation in self.expectations {
            let Some(finding) = expectation.finding(world, &picture) else { continue };
            let heard = match finding.verdict {
                Verdict::Leak => &mut follow.wrong,
                _ if expectation.finals == STEADY => &mut follow.loud,
                _ => continue,
            };
            let what = format!("{:?}", expectation.target);
            if heard.iter().all(|(known, _)| *known != what) {
                heard.push((what, world.second()));
            }
        }
    }

    fn trace(&mut self, number: usize, world: &World, said: &FxHashMap<Subject, Verdict>) {
        let Some(expectation) = self.expectations.first() else { return };
        let target = expectation.target;
        let picture = (number == 0).then(|| self.core.snapshot(world.now_ns(), &setting()));
        let finding = picture.as_ref().and_then(|picture| expectation.finding(world, picture));
        let subject = target.subject(world);
        let verdict = subject.and_then(|subject| said.get(&subject).copied());
        let verdict = verdict.or(finding.map(|finding| finding.verdict));
        let verdict = verdict.unwrap_or(Verdict::Steady);
        let sites = sites_of(world, target);
        let live_bytes = sites.iter().map(|site| site.live_bytes).sum();
        let changed = self
            .follows
            .get(number)
            .and_then(|follow| follow.looks.last())
            .is_none_or(|look| look.verdict != verdict);
        let why = picture.as_ref().map(|picture| {
            if target.is_measured() {
                return finding.map_or_else(String::new, |finding| finding.decided_by.join("; "));
            }
            let site =
                sites.last().and_then(|site| find(picture, world.process(site.process).1, site.id));
            site.map_or_else(String::new, |site| {
                let words = found_words(picture, site.id).join("; ");
                match changed {
                    true => format!("{words}; {:?}, {:?}", site.confidence, site.evidence),
                    false => words,
                }
            })
        });
        if let Some(follow) = self.follows.get_mut(number) {
            follow.looks.push(Look { second: world.second(), live_bytes, verdict, why });
        }
    }
}

/// What decided about a site, or would decide.
fn found_words(snapshot: &Snapshot, site: Option<u64>) -> Vec<String> {
    let mut found = snapshot.findings.iter();
    let found = found.find(|finding| finding.level == "site" && finding.site == site);
    found.map(|finding| finding.decided_by.clone()).unwrap_or_default()
}

/// The sites that a target is about.
fn sites_of(world: &World, target: Target) -> Vec<&crate::world::Site> {
    let is_it = |id: SiteId, site: &crate::world::Site| match target {
        Target::Site(wanted) => id == wanted,
        Target::Process(process, domain) => site.process == process && site.kind.domain() == domain,
        Target::Service(process, domain) => {
            world.service(site.process) == world.service(process) && site.kind.domain() == domain
        }
        Target::Measured(..) | Target::Host => false,
    };
    world.sites().filter(|(id, site)| is_it(*id, site)).map(|(_, site)| site).collect()
}

/// How long after the first lost byte, and how many were lost by now.
fn found(world: &World, rows: &FxHashMap<RowKey, SiteId>, subject: Subject) -> Found {
    let sites: Vec<&crate::world::Site> = match subject {
        Subject::Row(row) => {
            rows.get(&row).and_then(|site| world.look(*site)).into_iter().collect()
        }
        Subject::Process(serial, domain) => {
            of(world, domain, |world, site| world.process(site.process).0 == serial)
        }
        Subject::Service(service, domain) => {
            of(world, domain, |world, site| world.service(site.process) == service)
        }
    };
    let growth_ns = sites.iter().filter_map(|site| site.growth_ns).min();
    let after = growth_ns.map(|ns| world.now_ns().saturating_sub(ns) as f64 / SECOND as f64);
    Found {
        after,
        rested: sites.iter().map(|site| site.rested * WINDOW).min().unwrap_or(0) as f64,
        bytes: sites.iter().map(|site| site.lost_bytes).sum(),
        turnover: match (subject, sites.first()) {
            (Subject::Row(_), Some(site)) if site.frees == 0 || site.moves => Turnover::Unknown,
            (Subject::Row(_), Some(site)) => {
                Turnover::Known(site.freed_age_ns as f64 / SECOND as f64)
            }
            _ => Turnover::OfMany,
        },
        domain: sites.first().map(|site| site.kind.domain()),
    }
}

fn of(
    world: &World,
    domain: Domain,
    is_it: impl Fn(&World, &crate::world::Site) -> bool,
) -> Vec<&crate::world::Site> {
    let sites = world.sites().map(|(_, site)| site);
    sites.filter(|site| site.kind.domain() == domain && is_it(world, site)).collect()
}

/// A site's row in a picture.
fn find(snapshot: &Snapshot, pid: u32, id: u64) -> Option<&Site> {
    let process = snapshot.processes.iter().find(|process| process.pid == pid)?;
    process.sites.iter().find(|site| site.id == Some(id))
}

/// A core with these numbers, that traces these domains beside what is always traced.
#[must_use]
pub fn core(verdict: VerdictConfig, more: &[Domain]) -> Core {
    let mut domains = vec![Domain::Kernel, Domain::Cuda, Domain::Managed, Domain::Pinned];
    domains.extend(more);
    Core::new(CoreConfig { domains, verdict, sees_rcu_frees: true, ..CoreConfig::default() })
}

/// What a picture says beside the books: nothing of interest.
#[must_use]
pub fn setting() -> Setting {
    let wall = jiff::Timestamp::UNIX_EPOCH;
    Setting {
        anchor: Anchor { wall, monotonic_ns: 0, boot_ns: 0 },
        attached_at: wall,
        host: HostInfo { name: "corpus".into(), kernel: "6.18".into(), arch: "x86_64".into() },
    }
}

/// How many looks there are in so many seconds.
#[must_use]
pub const fn looks(seconds: u64) -> u64 {
    seconds / LOOK
}
