//! The corpus is the same each time, and its labels are true.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

use memtrace_common::Domain;
use memtrace_corpus::cases::{self, Case};
use memtrace_corpus::expect::{Expectation, PLATEAU, STEADY, Target};
use memtrace_corpus::stage::Watcher;
use memtrace_corpus::world::{Kind, SiteId, World};
use memtrace_daemon::record::{HostMemory, Observation, ProcessMemory, Record};

/// Seconds of each variant that are looked at: debug builds are slow, and leaks show by then.
const SECONDS: u64 = 1_700;

/// Digests the records, and remembers what was live when.
#[derive(Default)]
struct Digest {
    hasher: rustc_hash::FxHasher,
    last_ns: u64,
    /// Live bytes of a site, each ten seconds from its first allocation on.
    levels: BTreeMap<SiteId, Vec<u64>>,
    /// What was measured of each process, and first and last of the host.
    processes: BTreeMap<u32, Vec<ProcessMemory>>,
    host: Option<[HostMemory; 2]>,
}

impl Digest {
    fn measure(&mut self, observation: &Observation) {
        match observation {
            Observation::ProcessMemory(now) => {
                self.processes.entry(now.serial).or_default().push(now.clone());
            }
            Observation::Memory(now) => {
                let [_, last] = self.host.get_or_insert([*now; 2]);
                *last = *now;
            }
            _ => {}
        }
        self.hasher.write(format!("{observation:?}").as_bytes());
    }
}

impl Watcher for Digest {
    fn record(&mut self, record: &Record) {
        let (time_ns, numbers) = match record {
            Record::Process { time_ns, entry } => (*time_ns, [1, u64::from(entry.serial), 0]),
            Record::Account { time_ns, account } => {
                (*time_ns, [2, account.allocated.bytes, account.freed.bytes])
            }
            Record::Totals { time_ns, totals, .. } => {
                (*time_ns, [3, totals.allocated.bytes, totals.freed.bytes])
            }
            Record::Allocation(call) => (call.time_ns, [4, call.id, call.bytes]),
            Record::Free(free) => (free.header.time_ns, [5, free.id, free.bytes]),
            Record::Tick { now_ns } => (*now_ns, [6, 0, 0]),
            Record::Observation { now_ns, observation } => {
                self.measure(observation);
                (*now_ns, [7, 0, 0])
            }
            Record::AccountAges(ages) => {
                (ages.header.time_ns, [9, ages.bytes.iter().sum(), u64::from(ages.slot)])
            }
            _ => (self.last_ns, [8, 0, 0]),
        };
        assert!(time_ns >= self.last_ns, "records come in the order of time: {record:?}");
        self.last_ns = time_ns;
        self.hasher.write_u64(time_ns);
        numbers.into_iter().for_each(|number| self.hasher.write_u64(number));
    }

    fn look(&mut self, world: &World) {
        for (id, site) in world.sites().filter(|(_, site)| site.allocations > 0) {
            self.levels.entry(id).or_default().push(site.live_bytes);
        }
    }
}

fn play(case: &Case, seed: u64, seconds: u64) -> (Digest, World, Vec<Expectation>) {
    let mut stage = case.variant(seed);
    stage.seconds = stage.seconds.min(seconds);
    let expected = stage.expectations.clone();
    let mut digest = Digest::default();
    let world = stage.run(&mut digest);
    (digest, world, expected)
}

#[test]
fn every_row_is_there() {
    let rows = [
        1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 23, 24, 25, 26, 28, 29, 31, 35,
        36, 37, 38, 39, 40, 41, 42, 43,
    ];
    let cases = cases::all();
    for row in rows {
        let name = format!("A{row}");
        let of_row = |case: &&Case| case.name.split(' ').next() == Some(name.as_str());
        let here: Vec<&Case> = cases.iter().filter(of_row).collect();
        assert!(!here.is_empty(), "{name}");
        // These rest on what the host observes, and say something about it.
        let measured = [5, 7, 11, 13, 14, 28, 39].contains(&row);
        assert!(here.iter().all(|case| case.is_measured() == measured), "{name}");
    }
    for case in cases.iter().filter(|case| case.is_measured()) {
        let first = case.variant(0).expectations[0];
        assert!(first.target.is_measured() && !case.leaks, "{}", case.name);
        // Where something is to be said, in which words.
        assert_eq!(first.finals == STEADY, first.words.is_empty(), "{}", case.name);
    }
    assert_eq!(Kind::HEAP.domain(), Domain::Heap, "its allocator is declared");
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases.len());
    let (leaks, others) = cases::variants(&cases, 20);
    let leaking = cases.iter().filter(|case| case.leaks).count() as u64;
    let share = (leaking * leaks) as f64
        / (leaking * leaks + (cases.len() as u64 - leaking) * others) as f64;
    assert!((0.23..=0.25).contains(&share), "leaks are a quarter of all: {share}");
    assert!(leaks >= 20 && others >= 20);
}

#[test]
fn a_variant_is_the_same_each_time_and_no_other() {
    for case in cases::all() {
        let digest = |seed| play(&case, seed, 120).0.hasher.finish();
        assert_eq!(digest(3), digest(3), "{}", case.name);
        assert_ne!(digest(3), digest(4), "{}", case.name);
    }
}

#[test]
fn labels_are_the_truth() {
    let seed = std::env::var("CORPUS_SEED").map_or(11, |seed| seed.parse().unwrap());
    for case in cases::all() {
        let (digest, world, expected) = play(&case, seed, SECONDS);
        assert!(!expected.is_empty(), "{}", case.name);
        assert!(expected.iter().any(Expectation::leaks) == case.leaks, "{}", case.name);
        for one in expected {
            let (name, leaks) = (case.name, one.leaks());
            let loses = |site: SiteId| world.look(site).unwrap().growth_ns.is_some();
            match one.target {
                Target::Site(site) => {
                    assert!(world.look(site).unwrap().allocations > 0, "{name} has traffic");
                    assert_eq!(loses(site), leaks, "{name}");
                    if one.finals == PLATEAU {
                        grows_and_holds(name, &digest.levels[&site]);
                    }
                }
                Target::Process(of, domain) => {
                    let serial = world.process(of).0;
                    assert_eq!(world.loses(domain, |one, _| one == serial), leaks, "{name}");
                }
                Target::Service(of, domain) => {
                    let service = world.service(of);
                    assert_eq!(world.loses(domain, |_, one| one == service), leaks, "{name}");
                }
                Target::Measured(of, domain) => {
                    let all = &digest.processes[&world.process(of).0];
                    let last = all.last().unwrap();
                    let grown = match domain {
                        // Resident memory swings, so that the most of a minute counts.
                        Domain::Mmap => {
                            let first = all.iter().take(12).map(unused).max().unwrap();
                            unused(last).saturating_sub(first + world.evicted(of))
                        }
                        _ => last.private_bytes().saturating_sub(all[0].private_bytes()),
                    };
                    assert_eq!(grown < 16 << 20, one.finals == STEADY, "{name}: {grown}");
                }
                Target::Host => {
                    let taken = |host: &HostMemory| host.ownerless_bytes().unwrap();
                    let [first, last] =
                        digest.host.unwrap().map(|now| taken(&now) + now.shared_bytes);
                    // What runs has its share, and what a driver has swings.
                    let pinned = world.sites().filter(|(_, site)| site.kind == Kind::PINNED);
                    let pinned: u64 = pinned.map(|(_, site)| site.live_bytes).sum();
                    match one.finals == STEADY {
                        true => assert!(last < first + pinned + (640 << 20), "{name}: {last}"),
                        false => assert!(last > first + (64 << 20), "{name}: {first} to {last}"),
                    }
                }
            }
        }
        // Whatever frees nothing and is no leak does not go on evenly for as long as it takes
        // by the contract to be called one.
        for (id, site) in world.sites() {
            if site.growth_ns.is_none()
                && site.frees == 0
                && let Some(levels) = digest.levels.get(&id)
            {
                assert!(!grows_evenly(levels), "{}: {levels:?}", case.name);
            }
        }
    }
}

/// Address space that is neither memory nor swapped out.
fn unused(memory: &ProcessMemory) -> u64 {
    let resident = memory.private_bytes() + memory.file_bytes + memory.shared_bytes;
    memory.virtual_bytes.saturating_sub(resident)
}

/// Whether some ten minutes look like a straight line: growth in each fifth, no less of it in
/// the later half, and no slower than half of all before.
fn grows_evenly(levels: &[u64]) -> bool {
    (0..levels.len().saturating_sub(60)).step_by(6).any(|begin| {
        let at = |place: usize| levels.get(begin + place).map_or(0.0, |level| *level as f64);
        let grown = |from: usize, to: usize| at(to) - at(from);
        let all = grown(0, 60);
        let fifths = (0..5).all(|fifth| grown(fifth * 12, fifth * 12 + 12) >= all * 0.08);
        let even = fifths && grown(30, 60) >= grown(0, 30) * 0.75;
        let before = at(0) / begin.max(1) as f64;
        all >= f64::from(1 << 20) && even && all / 60.0 >= before * 0.5
    })
}

fn grows_and_holds(name: &str, levels: &[u64]) {
    let start_up = levels.get(6).copied().unwrap_or(0);
    let last = levels.last().copied().unwrap_or(0);
    assert!(last > start_up + start_up / 4, "{name}: {start_up} bytes after a minute, {last} then");
}
