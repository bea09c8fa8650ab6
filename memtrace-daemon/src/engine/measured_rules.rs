//! Measurements through the whole core: whose they are, what runs out first, what the picture
//! shows beside the books, and that a replay says the same.

use memtrace_common::{Account, AccountKey, Amount, Context, KMALLOC};

use super::core::Core;
use super::rules::process;
use super::simulation::Fate::Arrives;
use super::simulation::{SECOND, World, allocators, config, hasty, setting};
use crate::ledger::LedgerConfig;
use crate::record::{CgroupLimit, DeviceMemory, HostMemory, Observation, ProcessMemory, Record};
use crate::snapshot::{Finding, Measured, Snapshot};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn world() -> World {
    World::new(LedgerConfig { linger_ns: Some(900 * SECOND), max_ended: 100, ..hasty() })
}

fn observe(world: &mut World, observation: Observation) {
    let now_ns = world.now_ns;
    world.tell(Record::Observation { now_ns, observation });
}

fn memory() -> ProcessMemory {
    ProcessMemory {
        serial: 1,
        anonymous_bytes: 100 * MIB,
        virtual_bytes: GIB,
        threads: 3,
        limit: Some(CgroupLimit {
            cgroup: "/system.slice/llm.service".into(),
            limit_bytes: 8 * GIB,
            used_bytes: 6 * GIB,
        }),
        ..ProcessMemory::default()
    }
}

fn host() -> HostMemory {
    HostMemory {
        total_bytes: 24 * GIB,
        available_bytes: 16 * GIB,
        free_bytes: 20 * GIB,
        slab_bytes: 900 * MIB,
        unreclaimable_bytes: 100 * MIB,
        page_lists_bytes: Some(0),
        ..HostMemory::default()
    }
}

fn at<'a>(picture: &'a Snapshot, level: &str) -> Vec<&'a Finding> {
    picture.findings.iter().filter(|finding| finding.level == level).collect()
}

#[test]
fn growth_of_a_process_runs_into_its_cgroups_limit_first() {
    let mut world = world();
    world.start(None, false, Arrives);
    let mut memory = memory();
    observe(&mut world, Observation::Memory(host()));
    for _ in 0..60 {
        observe(&mut world, Observation::ProcessMemory(memory.clone()));
        memory.anonymous_bytes += 10 * MIB;
        world.tick(5);
    }
    let picture = world.snapshot();
    let [finding] = at(&picture, "process")[..] else { panic!("{:?}", picture.findings) };
    assert_eq!((finding.verdict.name(), finding.domain), ("growing", "heap"));
    assert_eq!((finding.processes.as_slice(), finding.comm.as_str()), (&[1_001][..], "app"));
    let exhaustion = finding.exhaustion.as_ref().unwrap();
    assert_eq!(exhaustion.of, "cgroup /system.slice/llm.service");
    // 2 GiB are left, at 2 MiB a second.
    assert!((exhaustion.seconds - 1_024.0).abs() < 100.0, "{exhaustion:?}");
    // A limit that leaves more than the host has is not what runs out.
    memory.limit =
        Some(CgroupLimit { cgroup: "/wide".into(), limit_bytes: 60 * GIB, used_bytes: GIB });
    observe(&mut world, Observation::ProcessMemory(memory.clone()));
    let picture = world.snapshot();
    assert_eq!(at(&picture, "process")[0].exhaustion.as_ref().unwrap().of, "host");
    // Nobody is told of who has ended.
    world.end(0, Arrives);
    observe(&mut world, Observation::ProcessMemory(memory));
    assert!(at(&world.snapshot(), "process").is_empty());
}

#[test]
fn the_picture_shows_what_was_measured_beside_the_books() {
    let mut world = world();
    let app = world.start(None, false, Arrives);
    assert_eq!(process_of(&mut world, app).measured, Measured::default(), "unknown");
    observe(
        &mut world,
        Observation::ProcessMemory(ProcessMemory {
            swap_bytes: 7,
            file_bytes: 8,
            shared_bytes: 9,
            huge_bytes: Some(2 * MIB),
            ..memory()
        }),
    );
    // A pool: all was given back to it, and the device's memory stays (A41).
    observe(
        &mut world,
        Observation::Device(DeviceMemory {
            total_bytes: 80 * GIB,
            used_bytes: 9 * GIB,
            processes: vec![(1_001, 8 * GIB), (4, MIB)],
            ..DeviceMemory::default()
        }),
    );
    let seen = process_of(&mut world, app);
    assert_eq!(
        seen.measured,
        Measured {
            anonymous_bytes: Some(100 * MIB),
            swap_bytes: Some(7),
            shared_bytes: Some(9),
            file_bytes: Some(8),
            anonymous_huge_bytes: Some(2 * MIB),
            virtual_bytes: Some(GIB),
            threads: Some(3),
            device_bytes: Some(8 * GIB),
            cgroup_limit_bytes: Some(8 * GIB),
            cgroup_used_bytes: Some(6 * GIB),
        }
    );
    assert_eq!(seen.domains["cuda"].terms.live.bytes, 0);
    assert_eq!(seen.domains["cuda"].terms.freed.bytes, 5 * MIB);
    assert!(world.snapshot().findings.is_empty());
}

/// The process in a picture, after one more call that is freed at once the first time.
fn process_of(world: &mut World, app: usize) -> crate::snapshot::Process {
    if world.calls.is_empty() && world.snapshot().domains["cuda"].seen.count == 0 {
        world.call(app, allocators()[0], 1, 5 * MIB, true, Arrives);
        let id = *world.calls.keys().next().unwrap();
        world.free(id, memtrace_common::FreeReason::Freed, Arrives);
        world.totals(Arrives);
    }
    process(&world.snapshot(), 1_001).clone()
}

#[test]
fn a_worker_whose_parent_was_killed_is_found_by_the_books() {
    let mut world = world();
    let parent = world.start(None, false, Arrives);
    let worker = world.start(Some(parent), false, Arrives);
    for _ in 0..3 {
        world.call(worker, allocators()[0], 1, 100 * MIB, true, Arrives);
    }
    world.totals(Arrives);
    let memory = ProcessMemory { serial: 2, ..memory() };
    observe(&mut world, Observation::ProcessMemory(memory.clone()));
    world.tick(5);
    world.end(parent, Arrives);
    for _ in 0..30 {
        observe(&mut world, Observation::ProcessMemory(memory.clone()));
        world.tick(5);
    }
    let picture = world.snapshot();
    let orphans: Vec<&Finding> =
        picture.findings.iter().filter(|one| one.verdict.name() == "orphaned").collect();
    let [orphan] = orphans[..] else { panic!("{:?}", picture.findings) };
    assert_eq!((orphan.level, orphan.domain), ("process", "cuda"));
    assert_eq!(orphan.processes, [1_002]);
    assert!(orphan.decided_by[0].contains("(pid 1001) ended"), "{:?}", orphan.decided_by);
}

#[test]
fn kernel_growth_is_explained_against_what_cannot_be_reclaimed() {
    let mut world = world();
    world.start(None, false, Arrives);
    observe(&mut world, Observation::Memory(host()));
    let amount = Amount { count: 10, bytes: 30 * MIB };
    let account = Account {
        key: AccountKey {
            call_site: 0x100,
            detail: 0,
            serial: 1,
            context_and_function: AccountKey::pack(Context::Process, KMALLOC),
        },
        slot: 1,
        seen: amount,
        allocated: amount,
        ..Account::default()
    };
    let time_ns = world.now_ns;
    world.tell(Record::Account { time_ns, account });
    let grown = HostMemory {
        // Dentries and inodes came, which nobody traces.
        slab_bytes: host().slab_bytes + 500 * MIB,
        unreclaimable_bytes: host().unreclaimable_bytes + 40 * MIB,
        ..host()
    };
    observe(&mut world, Observation::Memory(grown));
    let ratio = world.snapshot().runtime.explained["kernel"];
    assert!((ratio - 0.75).abs() < 1e-9, "{ratio}");
}

#[test]
fn the_host_is_a_level_of_its_own_and_a_replay_says_the_same() {
    let mut world = world();
    world.start(None, false, Arrives);
    let (mut memory, mut of_host) = (memory(), host());
    for look in 0..60 {
        observe(&mut world, Observation::ProcessMemory(memory.clone()));
        observe(&mut world, Observation::Memory(of_host));
        memory.swap_bytes += 10 * MIB;
        if look == 20 {
            of_host.free_bytes -= GIB;
        }
        world.tick(10);
    }
    let picture = world.snapshot();
    let [finding] = at(&picture, "host")[..] else { panic!("{:?}", picture.findings) };
    assert!(finding.processes.is_empty() && finding.comm.is_empty());
    assert_eq!((finding.domain, finding.verdict.name()), ("host", "plateau"));
    assert_eq!(at(&picture, "process").len(), 1);
    let mut replayed = Core::new(config(LedgerConfig {
        linger_ns: Some(900 * SECOND),
        max_ended: 100,
        ..hasty()
    }));
    for record in &world.told {
        replayed.apply(record);
    }
    let first = serde_json::to_string(&picture).unwrap();
    let second = serde_json::to_string(&replayed.snapshot(world.now_ns, &setting())).unwrap();
    assert_eq!(first, second);
}

#[test]
fn those_that_hold_most_are_measured_first_and_the_others_in_turn() {
    let mut world = world();
    for _ in 0..6 {
        world.start(None, false, Arrives);
    }
    world.call(3, allocators()[0], 1, 100 * MIB, true, Arrives);
    world.totals(Arrives);
    let large = ProcessMemory { serial: 6, anonymous_bytes: 50 * MIB, ..memory() };
    observe(&mut world, Observation::ProcessMemory(large));
    let serials = |world: &World, last| -> Vec<u32> {
        world.core.to_measure(2, 2, last).iter().map(|wanted| wanted.serial).collect()
    };
    assert_eq!(serials(&world, 0), [4, 6, 1, 2]);
    assert_eq!(serials(&world, 2), [4, 6, 3, 5]);
    assert_eq!(serials(&world, 5), [4, 6, 1, 2]);
    world.end(3, Arrives);
    assert_eq!(serials(&world, 0), [6, 1, 2, 3]);
    let closer: Vec<bool> =
        world.core.to_measure(9, 0, 0).iter().map(|wanted| wanted.closer).collect();
    assert_eq!(closer, [false, true, true, true, true], "who is new is looked at closely");
}
