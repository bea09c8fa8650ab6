//! A host in virtual time: processes, sites, and memory that comes and goes. It tells what the
//! kernel side would tell, as records in the order of time, and it knows the truth: which sites
//! lose memory, since when and how much.
//!
//! It must never look at a verdict, nor read a clock.

mod measured;
mod site;
mod tell;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use memtrace_common::{Domain, ProcessEntry, ProcessKey};
use memtrace_daemon::ledger::FoldedKey;
use memtrace_daemon::record::{Observation, ProcessMemory, Record};
use rustc_hash::FxHashMap;

pub use measured::Ownerless;
pub use site::{Kind, Site, SiteId};

use crate::load::Load;
use crate::random::Random;

/// A second, in ns.
pub const SECOND: u64 = 1_000_000_000;

/// Seconds of a window, in which a floor is the lowest live bytes.
pub const WINDOW: u64 = 10;
/// The clock when a world begins: the host has been up for a while.
const BEGIN_NS: u64 = 1_000 * SECOND;

/// Which process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId(usize);

/// Memory that was given: one object, or at a kernel site some at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Block {
    /// Where.
    pub site: SiteId,
    /// When, monotonic ns.
    pub born_ns: u64,
    /// Bytes of all objects together.
    pub bytes: u64,
    id: u64,
    count: u64,
}

/// Something that happens within the present second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at_ns: u64,
    order: u64,
    free: bool,
    block: Block,
}

/// The host.
#[derive(Debug)]
pub struct World {
    /// Chance.
    pub random: Random,
    /// Memory that no process has.
    pub ownerless: Ownerless,
    now_ns: u64,
    order: u64,
    processes: Vec<ProcessEntry>,
    /// What is measured of each, beside its heap.
    memory: Vec<ProcessMemory>,
    /// Truth: pages of files that the kernel took from each, bytes.
    evicted: Vec<u64>,
    sites: Vec<Site>,
    events: Vec<Event>,
    due: BinaryHeap<Reverse<Event>>,
    books: tell::Books,
    out: Vec<Record>,
}

impl World {
    /// A host on which nothing runs.
    #[must_use]
    pub fn new(random: Random) -> Self {
        Self {
            random,
            ownerless: Ownerless::default(),
            now_ns: BEGIN_NS,
            order: 0,
            processes: Vec::new(),
            memory: Vec::new(),
            evicted: Vec::new(),
            sites: Vec::new(),
            events: Vec::new(),
            due: BinaryHeap::new(),
            books: tell::Books::default(),
            out: Vec::new(),
        }
    }

    /// Now, monotonic ns: the beginning of the present second.
    #[must_use]
    pub const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Seconds since the world began.
    #[must_use]
    pub const fn second(&self) -> u64 {
        (self.now_ns - BEGIN_NS) / SECOND
    }

    /// Starts a process of a program in a cgroup.
    pub fn start(&mut self, comm: &str, cgroup: u64) -> ProcessId {
        let serial = u32::try_from(self.processes.len()).unwrap_or(u32::MAX - 1) + 1;
        let mut name = [0; 16];
        for (to, from) in name.iter_mut().zip(comm.bytes().take(15)) {
            *to = from;
        }
        let entry = ProcessEntry {
            key: ProcessKey { start_ns: self.now_ns, tgid: 2_000 + serial, reserved: 0 },
            serial,
            space: serial,
            space_owner: serial,
            parent_tgid: 1,
            cgroup,
            comm: name,
            version: 1,
            ..ProcessEntry::default()
        };
        self.processes.push(entry);
        self.memory.push(measured::at_start(serial));
        self.evicted.push(0);
        self.out.push(Record::Process { time_ns: self.now_ns, entry });
        let observation = Observation::ProcessFacts {
            serial,
            cmdline: Some(format!("{comm} --serve")),
            cgroup: Some(format!("/system.slice/{comm}-{cgroup}.service")),
            rss_bytes: Some(64 << 20),
            before_attach: false,
        };
        self.out.push(Record::Observation { now_ns: self.now_ns, observation });
        ProcessId(self.processes.len() - 1)
    }

    /// Says who started a process.
    pub fn set_parent(&mut self, child: ProcessId, parent: ProcessId) {
        let tgid = self.entry(parent).map_or(1, |entry| entry.key.tgid);
        self.change(child, |entry| entry.parent_tgid = tgid);
    }

    /// The last thread of a process ends.
    pub fn end(&mut self, process: ProcessId) {
        let now_ns = self.now_ns;
        self.leave(process);
        self.change(process, |entry| entry.ended_ns = now_ns);
    }

    fn change(&mut self, process: ProcessId, how: impl FnOnce(&mut ProcessEntry)) {
        if let Some(entry) = self.processes.get_mut(process.0) {
            how(entry);
            entry.version += 1;
            self.out.push(Record::Process { time_ns: self.now_ns, entry: *entry });
        }
    }

    fn entry(&self, process: ProcessId) -> Option<&ProcessEntry> {
        self.processes.get(process.0)
    }

    /// Serial and process id of a process.
    #[must_use]
    pub fn process(&self, process: ProcessId) -> (u32, u32) {
        self.entry(process).map_or((0, 0), |entry| (entry.serial, entry.key.tgid))
    }

    /// What a process has in common with others of its program.
    #[must_use]
    pub fn service(&self, process: ProcessId) -> FoldedKey {
        let entry = self.entry(process).copied().unwrap_or_default();
        FoldedKey { comm: entry.comm, cgroup: entry.cgroup }
    }

    /// A new site of a process: a call path, or a call site in the kernel whose objects come in
    /// batches.
    pub fn site(&mut self, process: ProcessId, kind: Kind, batch: u64) -> SiteId {
        let code = self.sites.len() as u64;
        self.place(process, kind, batch, code)
    }

    /// The same code in another process.
    pub fn twin(&mut self, site: SiteId, process: ProcessId) -> SiteId {
        let like = self.look(site).map(|site| (site.kind, site.batch, site.code));
        let (kind, batch, code) = like.unwrap_or((Kind::Kernel, 1, 0));
        self.place(process, kind, batch, code)
    }

    fn place(&mut self, process: ProcessId, kind: Kind, batch: u64, code: u64) -> SiteId {
        let number = self.sites.len();
        let entry = self.entry(process).copied().unwrap_or_default();
        let slot = u32::try_from(number).unwrap_or(u32::MAX - 1) + 1;
        self.sites.push(Site::new(process, &entry, kind, batch, slot, code));
        SiteId(number)
    }

    /// All sites.
    pub fn sites(&self) -> impl Iterator<Item = (SiteId, &Site)> {
        self.sites.iter().enumerate().map(|(number, site)| (SiteId(number), site))
    }

    /// A site; `None` if it is another world's.
    #[must_use]
    pub fn look(&self, site: SiteId) -> Option<&Site> {
        self.sites.get(site.0)
    }

    /// Whether any site of a domain loses memory by now, of a process or of a service.
    #[must_use]
    pub fn loses(&self, domain: Domain, of: impl Fn(u32, FoldedKey) -> bool) -> bool {
        self.sites.iter().any(|site| {
            let (serial, _) = self.process(site.process);
            site.kind.domain() == domain
                && site.growth_ns.is_some()
                && of(serial, self.service(site.process))
        })
    }

    /// Moments of the present second at which something happens that happens so often a second.
    pub fn arrivals(&mut self, rate: f64) -> Vec<u64> {
        let count = self.random.poisson(rate);
        let mut at: Vec<u64> = (0..count).map(|_| self.moment()).collect();
        at.sort_unstable();
        at
    }

    /// How much there is to do at a site in the present second, by its load.
    pub fn level(&mut self, site: SiteId, load: &Load) -> f64 {
        let level = load.level(self.second(), &mut self.random);
        if level <= 0.0
            && let Some(site) = self.sites.get_mut(site.0)
        {
            site.off += 1;
        }
        level
    }

    /// A moment of the present second.
    pub fn moment(&mut self) -> u64 {
        self.now_ns + self.random.whole(0, SECOND)
    }

    /// Takes memory at a moment of the present second: at a kernel site a batch of objects.
    pub fn take(&mut self, site: SiteId, bytes: u64, at_ns: u64) -> Block {
        let count = self.look(site).map_or(1, |site| site.batch);
        let id = self.books.next_id();
        let block = Block { site, born_ns: at_ns, bytes: bytes.max(1) * count, id, count };
        self.happen(Event { at_ns, order: 0, free: false, block });
        block
    }

    /// Gives memory back, now or later.
    pub fn give(&mut self, block: Block, at_ns: u64) {
        self.happen(Event { at_ns: at_ns.max(block.born_ns), order: 0, free: true, block });
    }

    /// Gives memory back that was copied into a larger block: that says nothing about how long
    /// what is in it lives.
    pub fn moved(&mut self, block: Block, at_ns: u64) {
        if let Some(site) = self.sites.get_mut(block.site.0) {
            site.moves = true;
        }
        self.give(block, at_ns);
    }

    /// Notes that a block will never be given back, and nobody wants it: the truth.
    pub fn lose(&mut self, block: Block) {
        self.lose_bytes(block.site, block.bytes, block.born_ns);
    }

    /// The same of so many bytes, where a block grows instead.
    pub fn lose_bytes(&mut self, site: SiteId, bytes: u64, at_ns: u64) {
        if let Some(site) = self.sites.get_mut(site.0) {
            site.lost_bytes += bytes;
            site.growth_ns.get_or_insert(at_ns);
        }
    }

    fn happen(&mut self, event: Event) {
        self.order += 1;
        let event = Event { order: self.order, ..event };
        if event.at_ns < self.now_ns + SECOND {
            self.events.push(event);
        } else {
            self.due.push(Reverse(event));
        }
    }

    /// Ends the second: tells what happened in it, and that it is over.
    pub fn tick(&mut self, sink: &mut dyn FnMut(&Record)) {
        let end_ns = self.now_ns + SECOND;
        while let Some(Reverse(event)) = self.due.peek().copied()
            && event.at_ns < end_ns
        {
            self.due.pop();
            self.events.push(event);
        }
        self.events.sort_unstable();
        for event in std::mem::take(&mut self.events) {
            self.tell(&event);
        }
        self.now_ns = end_ns;
        if self.second().is_multiple_of(WINDOW) {
            for site in &mut self.sites {
                let rested = std::mem::take(&mut site.off) == WINDOW && site.growth_ns.is_some();
                site.rested += u64::from(rested);
            }
        }
        self.flush();
        for record in self.out.drain(..) {
            sink(&record);
        }
    }

    /// Kernel memory that is live, by site and moment: what RSS and the slab go by.
    #[must_use]
    pub fn kernel_bytes(&self) -> u64 {
        self.sites.iter().filter(|site| site.kind == Kind::Kernel).map(|site| site.live_bytes).sum()
    }

    /// Rows of the books and the sites that they are.
    #[must_use]
    pub fn rows(&self) -> FxHashMap<memtrace_daemon::ledger::RowKey, SiteId> {
        self.sites().map(|(id, site)| (site.row, id)).collect()
    }
}
