//! The picture of the books that everybody else reads. It changes nothing.

use std::collections::BTreeMap;

use memtrace_common::{Amount, Domain, ProcessFlags};
use rustc_hash::FxHashMap;

use super::call_rows::{self, View};
use super::core::{Core, Setting};
use super::coverage;
use super::devices;
use super::finding;
use super::kernel_rows;
use super::latency;
use super::levels::{self, Below};
use super::row::{Hushed, Rows};
use crate::catalog;
use crate::ledger::{Folded, FoldedKey, ProcessBooks, Space, of_account, of_totals, text};
use crate::snapshot::{
    Baseline, Evidence, Finding, Measured, OnDevice, Process, Runtime, Snapshot, Terms,
};

/// Paints everything.
pub(super) fn paint(core: &Core, now_ns: u64, setting: &Setting) -> Snapshot {
    let host_terms = core.ledger.host_terms();
    let mut painter = Painter {
        core,
        now_ns,
        setting,
        rows: Rows::default(),
        processes: Vec::new(),
        findings: Vec::new(),
        hushed: FxHashMap::default(),
    };
    painter.paint_processes();
    let mut domains: BTreeMap<&'static str, Terms> =
        core.config.domains.iter().map(|domain| (domain.name(), Terms::default())).collect();
    for (domain, terms) in &host_terms {
        if *terms != Terms::default() {
            domains.insert(domain.name(), *terms);
        }
    }
    let mut findings = painter.findings;
    findings.extend(levels::of_services(core, setting, &painter.hushed, now_ns));
    findings.extend(core.measured_findings(now_ns, setting));
    finding::worst_first(&mut findings);
    Snapshot {
        schema: 1,
        generated_at: setting.anchor.wall_of_monotonic(now_ns),
        attached_at: setting.attached_at,
        stopped_at: core.host.stopped_ns.map(|ns| setting.anchor.wall_of_monotonic(ns)),
        host: setting.host.clone(),
        domains,
        coverage: coverage::rows(core),
        layers: coverage::layers(core),
        latency: latency::by_function(&core.host),
        not_seen: not_seen(core),
        devices: devices::of_host(&core.host, &painter.processes),
        loss: core.host.losses(core.ledger.faults().refused_stacks),
        processes: painter.processes,
        findings,
        runtime: runtime(core, &host_terms),
    }
}

struct Painter<'a> {
    core: &'a Core,
    now_ns: u64,
    setting: &'a Setting,
    rows: Rows,
    processes: Vec<Process>,
    findings: Vec<Finding>,
    /// Of each service with a process.
    hushed: FxHashMap<(FoldedKey, Domain), Hushed>,
}

impl Painter<'_> {
    fn paint_processes(&mut self) {
        let ledger = &self.core.ledger;
        let mut named: Vec<&ProcessBooks> = Vec::new();
        let mut nameless: Vec<&ProcessBooks> = Vec::new();
        for process in ledger.processes() {
            if process.entry.is_some() { &mut named } else { &mut nameless }.push(process);
        }
        named.sort_unstable_by_key(|process| process.serial);
        nameless.sort_unstable_by_key(|process| process.serial);
        for process in named {
            let mut painted = self.describe(process);
            self.add_books(process, &mut painted);
            // Whoever was asked about is shown, whether or not anything was seen of it.
            let flags = process.entry.map_or(0, |entry| entry.flags);
            let asked_for = flags & ProcessFlags::TRACED != 0 && process.facts.before_attach;
            self.finish(painted, Some(process), asked_for);
        }
        let mut folded: Vec<(&FoldedKey, &Folded)> = ledger.folded().collect();
        folded.sort_unstable_by_key(|(key, _)| **key);
        for (key, folded) in folded {
            let mut painted = nobody(text(&key.comm));
            painted.cgroup.clone_from(&folded.cgroup);
            painted.ended = true;
            let ended_ns = Some(folded.ended_boot_ns).filter(|ns| *ns != 0);
            painted.ended_at = ended_ns.map(|ns| self.setting.anchor.wall_of_boot(ns));
            self.add_accounts(&folded.accounts, Some(folded.ended_ns), &mut painted);
            self.finish(painted, None, false);
        }
        let mut interrupt = nobody("[interrupt]".to_owned());
        self.add_accounts(ledger.interrupt_accounts(), None, &mut interrupt);
        self.finish(interrupt, None, false);
        let mut unknown = nobody("[unknown]".to_owned());
        self.add_accounts(ledger.unknown_accounts(), None, &mut unknown);
        for process in nameless {
            self.add_books(process, &mut unknown);
        }
        let mut ownerless: Vec<_> =
            ledger.spaces().filter(|(_, space)| space.owner.is_none()).collect();
        ownerless.sort_unstable_by_key(|(id, _)| *id);
        for (id, space) in ownerless {
            let shown = space.closed_ns.is_none();
            self.add_space(View { id, space, shown }, &mut unknown);
        }
        self.finish(unknown, None, false);
    }

    fn describe(&self, process: &ProcessBooks) -> Process {
        let entry = process.entry.unwrap_or_default();
        let facts = &process.facts;
        Process {
            pid: entry.key.tgid,
            start_ns: entry.key.start_ns,
            ppid: Some(entry.parent_tgid).filter(|parent| *parent != 0),
            comm: text(&entry.comm),
            cmdline: facts.cmdline.clone(),
            cgroup: facts.cgroup.clone(),
            ended: process.ended(),
            ended_at: Some(entry.ended_ns)
                .filter(|ns| *ns != 0)
                .map(|ns| self.setting.anchor.wall_of_boot(ns)),
            baseline: Baseline {
                before_attach: facts.before_attach,
                rss_bytes: facts.rss_bytes,
                device_bytes: facts.device_bytes,
            },
            measured: self.core.latest(process),
            device: None,
            pool: self.core.pool_of(process),
            domains: BTreeMap::new(),
            devices: Vec::new(),
            sites: Vec::new(),
        }
    }

    fn add_books(&mut self, process: &ProcessBooks, painted: &mut Process) {
        self.add_accounts(&process.accounts, process.ended_ns, painted);
        let current = process.entry.map_or(0, |entry| entry.space);
        for id in &process.spaces {
            if let Some(space) = self.core.ledger.space(*id) {
                let open = space.closed_ns.is_none();
                let shown = open || (process.ended() && *id == current);
                self.add_space(View { id: *id, space, shown }, painted);
            }
        }
    }

    fn add_accounts(&mut self, ids: &[usize], ended_ns: Option<u64>, painted: &mut Process) {
        for books in ids.iter().filter_map(|id| self.core.ledger.account(*id)) {
            let terms = of_account(&books.account);
            if terms == Terms::default() {
                continue;
            }
            let part = kernel_rows::part(self.core, books, self.now_ns, ended_ns);
            painted.domains.entry(part.domain.name()).or_default().terms.add(&terms);
            self.rows.add(part);
        }
    }

    fn add_space(&mut self, view: View<'_>, painted: &mut Process) {
        for (function, totals) in view.space.totals() {
            let Some((_, domain)) = catalog::name_and_domain(function) else {
                continue;
            };
            let terms = painted.domains.entry(domain.name()).or_default();
            terms.terms.add(&of_totals(&totals, view.space.closed_ns.is_some()));
            terms.failures += totals.failures;
            terms.failed_frees += totals.failed_frees;
            terms.unknown_frees += totals.unknown_frees;
            terms.empty += totals.empty;
            terms.implausible += totals.implausible;
        }
        if view.space.closed_ns.is_none() {
            // A process has one address space that is open.
            painted.devices = on_devices(view.space);
        }
        let Self { core, now_ns, rows, .. } = self;
        call_rows::parts(core, view, *now_ns, |part| rows.add(part));
    }

    /// Puts a process into the picture if it has books, or anyway.
    fn finish(&mut self, mut painted: Process, books: Option<&ProcessBooks>, anyway: bool) {
        let Self { core, setting, now_ns, .. } = self;
        let first = self.findings.len();
        painted.device = devices::of_process(&core.host, &painted);
        let since_ns = setting.anchor.monotonic_of_boot(painted.start_ns);
        let age = Evidence::seconds(now_ns.saturating_sub(since_ns));
        let age = Some(age).filter(|_| painted.start_ns != 0);
        self.rows.of_age(age);
        let config = &core.config.verdict;
        let hushed = self.rows.hushed(config);
        for (site, judgement) in self.rows.give_to(&mut painted, config) {
            self.findings.push(finding::of_site(&core.host, setting, &painted, site, judgement));
        }
        if let Some(books) = books {
            for domain in &core.config.domains {
                let below = Below {
                    findings: self.findings.get(first..).unwrap_or_default(),
                    hushed: hushed.get(domain).map_or(0.0, |hushed| hushed.growth),
                };
                let subject = (&painted, books.serial, age);
                let found = levels::of_process(core, setting, subject, *domain, &below, *now_ns);
                self.findings.extend(found);
            }
            for (domain, hushed) in hushed {
                self.hushed.entry((books.service(), domain)).or_default().add(hushed);
            }
        }
        if anyway
            || painted.device.is_some()
            || !painted.domains.is_empty()
            || !painted.sites.is_empty()
        {
            self.processes.push(painted);
        }
    }
}

fn on_devices(space: &Space) -> Vec<OnDevice> {
    let on = |(device, live): (Option<u8>, Amount)| OnDevice {
        device,
        live_bytes: live.bytes,
        live_count: live.count,
    };
    space.devices().into_iter().map(on).collect()
}

/// A process that is none: books that nobody in particular is behind.
fn nobody(comm: String) -> Process {
    Process {
        pid: 0,
        start_ns: 0,
        ppid: None,
        comm,
        cmdline: None,
        cgroup: None,
        ended: false,
        ended_at: None,
        baseline: Baseline::default(),
        measured: Measured::default(),
        device: None,
        pool: None,
        domains: BTreeMap::new(),
        devices: Vec::new(),
        sites: Vec::new(),
    }
}

fn runtime(core: &Core, host_terms: &BTreeMap<Domain, Terms>) -> Runtime {
    let mut probes = BTreeMap::new();
    for row in &core.host.coverage {
        let Some(library) = &row.library else {
            continue;
        };
        for (functions, attached) in [(&row.functions, row.attached), (&row.missing, false)] {
            for function in functions {
                let probe = probes.entry((function.clone(), library.clone())).or_insert(false);
                *probe |= attached;
            }
        }
    }
    Runtime {
        records: core.record_counts(),
        probes,
        explained: core.host.explained(host_terms, core.config.named_caches),
        ..Runtime::default()
    }
}

/// What no probe sees, so that nobody takes silence for absence.
fn not_seen(core: &Core) -> Vec<String> {
    let on = |domain: Domain| core.config.domains.contains(&domain);
    let mut rows = vec![
        "memory from before memtrace was attached (a process' baseline says how much it held)"
            .to_owned(),
        "pages taken straight from the page allocator (network buffers, huge pages, page cache)"
            .to_owned(),
        "vmalloc and per-CPU memory".to_owned(),
    ];
    if on(Domain::Kernel) && !core.config.named_caches {
        rows.push("named slab caches (inodes, dentries, sockets): --kmem-cache".to_owned());
    }
    if on(Domain::Kernel) && !core.config.sees_rcu_frees {
        rows.push("kernel memory freed by kfree_rcu where the kernel allows no fentry".to_owned());
    }
    if on(Domain::Cuda) {
        rows.push(
            "when memory freed in stream order (cudaFreeAsync) goes back: it leaves the books at \
             the call, deferred as it may be"
                .to_owned(),
        );
    }
    let known = core.config.verdict.known_sites.len();
    if known > 0 {
        rows.push(format!(
            "findings at {known} of the sites: [verdict] known_sites calls them known; \
             their rows have the verdict"
        ));
    }
    let names = |which: &dyn Fn(&Domain) -> bool| {
        let off = Domain::ALL.into_iter().filter(|domain| !on(*domain)).filter(which);
        off.map(Domain::name).collect::<Vec<_>>().join(", ")
    };
    for (names, why) in [
        (names(&catalog::has_probes), "off: --domains turns them on"),
        (names(&|domain| !catalog::has_probes(domain)), "no probes in this version"),
    ] {
        if !names.is_empty() {
            rows.push(format!("{names} ({why})"));
        }
    }
    rows
}
