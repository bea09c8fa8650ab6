//! A variant being set up, and run: a world, what happens in it, and what is right to say.

use crate::expect::{Expectation, Target};
use crate::load::Load;
use crate::random::Random;
use crate::workload::{Life, Sizes, Traffic, Workload};
use crate::world::{Kind, ProcessId, SiteId, World};
use memtrace_common::Domain;
use memtrace_daemon::record::Record;
use memtrace_daemon::snapshot::Verdict;

/// How often a rule's words are looked at, seconds.
pub const LOOK: u64 = 10;

/// A variant.
#[derive(Debug)]
pub struct Stage {
    /// The host.
    pub world: World,
    /// How long it runs, seconds.
    pub seconds: u64,
    /// What is right to say.
    pub expectations: Vec<Expectation>,
    /// What is traced beside what is always traced.
    pub domains: Vec<Domain>,
    /// Each with chance of its own, so that one more changes nothing in the others.
    workloads: Vec<(Box<dyn Workload>, Random)>,
    ends: Vec<(u64, ProcessId)>,
}

/// Somebody who follows a variant.
pub trait Watcher {
    /// A record, in the order of time.
    fn record(&mut self, record: &Record);
    /// Ten seconds have passed.
    fn look(&mut self, world: &World);
}

impl Stage {
    /// An empty stage.
    #[must_use]
    pub fn new(random: Random) -> Self {
        Self {
            world: World::new(random),
            seconds: 0,
            expectations: Vec::new(),
            domains: Vec::new(),
            workloads: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Chance.
    pub fn random(&mut self) -> &mut Random {
        &mut self.world.random
    }

    /// Runs for some minutes: from, to.
    pub fn minutes(&mut self, from: f64, to: f64) -> u64 {
        self.seconds = (self.random().between(from, to) * 60.0) as u64;
        self.seconds
    }

    /// A service.
    pub fn service(&mut self) -> ProcessId {
        let cgroup = self.random().whole(100, 9_000);
        self.world.start("server", cgroup)
    }

    /// A site of any kind whose objects are followed each, or of the kernel: objects in batches.
    pub fn any_site(&mut self, process: ProcessId) -> SiteId {
        let kinds = [Kind::DEVICE, Kind::PINNED, Kind::MANAGED, Kind::DRIVER, Kind::Kernel];
        let kind = self.random().pick(&kinds, Kind::DEVICE);
        self.site(process, kind)
    }

    /// A site of a kind.
    pub fn site(&mut self, process: ProcessId, kind: Kind) -> SiteId {
        let batch = self.random().log_between(2.0, 400.0) as u64;
        self.world.site(process, kind, batch)
    }

    /// Sizes around which a site takes memory: one object, or a whole batch, of the order of
    /// `around` bytes.
    pub fn sizes(&mut self, site: SiteId, around: f64) -> Sizes {
        let batch = self.world.look(site).map_or(1, |site| site.batch()) as f64;
        let one = around / batch;
        let random = self.random();
        match random.whole(0, 4) {
            0 => Sizes::Fixed((one as u64).max(8)),
            1 => Sizes::Heavy((one / 2.5).max(8.0) as u64, 2.5, (one * 30.0).max(64.0) as u64),
            _ => {
                let spread = random.between(1.2, 6.0);
                Sizes::Log((one / spread).max(8.0) as u64, (one * spread).max(16.0) as u64)
            }
        }
    }

    /// Something happens.
    pub fn play(&mut self, workload: impl Workload + 'static) {
        let random = self.world.random.fork();
        self.workloads.push((Box::new(workload), random));
    }

    /// A process ends.
    pub fn end_at(&mut self, second: u64, process: ProcessId) {
        self.ends.push((second, process));
    }

    /// What is right to say about a site.
    pub fn label(&mut self, site: SiteId, finals: &'static [Verdict]) {
        self.label_of(Target::Site(site), finals);
    }

    /// What is right to say about anything.
    pub fn label_of(&mut self, target: Target, finals: &'static [Verdict]) {
        self.label_in_words(target, finals, "");
    }

    /// What is right to say about something that is measured, and a part of the words.
    pub fn label_in_words(
        &mut self,
        target: Target,
        finals: &'static [Verdict],
        words: &'static str,
    ) {
        self.expectations.push(Expectation { target, finals, words });
    }

    /// Balanced traffic at a site: short-lived, under any load.
    pub fn balanced(&mut self, site: SiteId) -> Traffic {
        let seconds = self.seconds;
        let around = self.random().log_between(16e3, 4e6);
        let sizes = self.sizes(site, around);
        let random = self.random();
        let life = match random.whole(0, 4) {
            0 => Life::Fixed(random.log_between(0.01, 10.0)),
            1 => Life::LogNormal(random.log_between(0.05, 5.0), random.between(0.3, 1.0)),
            _ => Life::Exponential(random.log_between(0.05, 20.0)),
        };
        let rate = random.log_between(0.3, 8.0);
        let load = Load::any(random, seconds);
        Traffic { site, rate, sizes, life, lost: 0.0, lost_from: 0, load }
    }

    /// What else a program does: some sites with balanced traffic, and what it took at its start.
    pub fn others(&mut self, process: ProcessId) {
        for _ in 0..self.random().whole(0, 3) {
            let site = self.any_site(process);
            let traffic = self.balanced(site);
            self.play(traffic);
        }
        if self.random().chance(0.5) {
            let site = self.site(process, Kind::DEVICE);
            let seconds = self.random().between(2.0, 40.0);
            let blocks = self.random().log_between(4.0, 200.0);
            let around = self.random().log_between(1e6, 200e6);
            let sizes = self.sizes(site, around);
            self.play(Traffic {
                site,
                rate: blocks / seconds,
                sizes,
                life: Life::Ever,
                lost: 0.0,
                lost_from: 0,
                load: Load::constant().until(seconds as u64 + 1),
            });
        }
    }

    /// Runs it, and gives the world back as it is in the end.
    pub fn run(mut self, watcher: &mut dyn Watcher) -> World {
        for second in 0..self.seconds {
            for (_, process) in self.ends.iter().filter(|(at, _)| *at == second) {
                self.world.end(*process);
            }
            for (workload, random) in &mut self.workloads {
                std::mem::swap(random, &mut self.world.random);
                workload.second(&mut self.world);
                std::mem::swap(random, &mut self.world.random);
            }
            self.world.tick(&mut |record| watcher.record(record));
            if self.world.second().is_multiple_of(LOOK) {
                watcher.look(&self.world);
            }
        }
        self.world
    }
}
