//! The rules of contracts §2 that user space decides, on random interleavings of records that
//! are lost, late and repeated.

use std::collections::BTreeMap;

use memtrace_common::FreeReason;
use proptest::prelude::*;

use super::simulation::{Fate, World, allocators, config, hasty, setting};
use super::{Core, Setting};
use crate::cli::recording::Header;
use crate::cli::replay::{Replayed, replay_from};
use crate::intake::recording::Recorder;
use crate::record::{Anchor, Record};
use crate::snapshot::{Process, Snapshot};

#[derive(Clone, Debug)]
enum Step {
    Start { parent: usize, shared: bool },
    Exec(usize),
    End(usize),
    Kmalloc { process: usize, site: u64, bytes: u64 },
    Kfree(usize),
    Call { process: usize, function: usize, caller: u64, bytes: u64, followed: bool },
    Fail { process: usize, function: usize, caller: u64 },
    Free { pick: usize, unseen: bool },
    Reset(usize),
    Totals,
    Tick(u64),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..8usize, any::<bool>()).prop_map(|(parent, shared)| Step::Start { parent, shared }),
        1 => (0..8usize).prop_map(Step::Exec),
        1 => (0..8usize).prop_map(Step::End),
        6 => (0..9usize, 0..4u64, 1..5_000u64)
            .prop_map(|(process, site, bytes)| Step::Kmalloc { process, site, bytes }),
        4 => (0..64usize).prop_map(Step::Kfree),
        8 => (0..8usize, 0..8usize, 0..4u64, 0..5_000u64, prop::bool::weighted(0.9)).prop_map(
            |(process, function, caller, bytes, followed)| Step::Call {
                process, function, caller, bytes, followed
            }
        ),
        1 => (0..8usize, 0..8usize, 0..4u64)
            .prop_map(|(process, function, caller)| Step::Fail { process, function, caller }),
        5 => (0..64usize, prop::bool::weighted(0.1))
            .prop_map(|(pick, unseen)| Step::Free { pick, unseen }),
        1 => (0..8usize).prop_map(Step::Reset),
        1 => Just(Step::Totals),
        2 => (1..4u64).prop_map(Step::Tick),
        1 => Just(Step::Flush),
    ]
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        5 => Just(Fate::Arrives),
        1 => Just(Fate::IsLost),
        1 => Just(Fate::ComesTwice),
        1 => (1..12u8).prop_map(Fate::IsLate),
    ]
}

fn play(world: &mut World, step: &Step, fate: Fate) {
    let functions = allocators();
    match *step {
        Step::Start { parent, shared } => {
            let parent = Some(parent).filter(|parent| world.running(*parent));
            if world.processes.len() < 8 {
                world.start(parent, shared, fate);
            }
        }
        Step::Exec(process) if world.running(process) => world.exec(process, fate),
        Step::End(process) if world.running(process) => world.end(process, fate),
        Step::Kmalloc { process, site, bytes } => {
            let serial = if process == 8 {
                Some(0)
            } else {
                world.running(process).then(|| world.processes[process].serial)
            };
            if let Some(serial) = serial {
                world.kmalloc(serial, 0x100 + site, bytes, fate);
            }
        }
        Step::Kfree(pick) if !world.objects.is_empty() => {
            world.kfree(pick % world.objects.len(), fate);
        }
        Step::Call { process, function, caller, bytes, followed } if world.running(process) => {
            let function = functions[function % functions.len()];
            world.call(process, function, caller, bytes, followed, fate);
        }
        Step::Fail { process, function, caller } if world.running(process) => {
            world.fail(process, functions[function % functions.len()], caller, fate);
        }
        Step::Free { pick, unseen } => {
            // What is in a closed space is not freed any more.
            let open: Vec<u64> = world
                .calls
                .iter()
                .filter(|(_, (key, _))| !world.space_closed(key.space))
                .map(|(id, _)| *id)
                .collect();
            if !open.is_empty() {
                let reason = if unseen { FreeReason::FreedUnseen } else { FreeReason::Freed };
                world.free(open[pick % open.len()], reason, fate);
            }
        }
        Step::Reset(process) if world.running(process) => {
            let space = world.processes[process].space;
            world.reset(space, fate);
        }
        Step::Totals => world.totals(fate),
        Step::Tick(seconds) => world.tick(seconds),
        Step::Flush => world.flush(),
        Step::Reset(_)
        | Step::Exec(_)
        | Step::End(_)
        | Step::Kfree(_)
        | Step::Call { .. }
        | Step::Fail { .. } => {}
    }
}

/// Sums of a process' rows in a domain: allocated, freed, live; bytes and counts.
fn sums(process: &Process, domain: &str) -> [u64; 6] {
    process.sites.iter().filter(|site| site.domain == domain).fold([0; 6], |mut sum, site| {
        let row = [
            site.allocated_bytes,
            site.allocations,
            site.freed_bytes,
            site.frees,
            site.live_bytes,
            site.live_count,
        ];
        sum.iter_mut().zip(row).for_each(|(sum, part)| *sum += part);
        sum
    })
}

/// What must hold in a picture whose totals are final, whether or not all ends were heard of.
fn check_sums(world: &World, picture: &Snapshot) {
    for (domain, expected) in world.expected() {
        let got = picture.domains[domain];
        assert!(got.conserved());
        assert_eq!(got.seen, expected.seen);
        assert_eq!(got.freed, expected.freed);
        assert_eq!(got.freed_unseen, expected.freed_unseen);
        assert_eq!(got.dropped, expected.dropped);
    }
}

/// What must hold in a picture whose totals are final and whose ends are known.
fn check_final(world: &World, picture: &Snapshot) {
    let expected = world.expected();
    let mut got: BTreeMap<_, _> = picture.domains.clone();
    got.retain(|_, terms| *terms != Default::default());
    assert_eq!(got, expected, "the host's terms are what the kernel side counted");
    for terms in picture.domains.values() {
        assert!(terms.conserved(), "{terms:?}");
    }
    for process in &picture.processes {
        for (domain, terms) in &process.domains {
            let terms = &terms.terms;
            assert!(terms.conserved(), "{terms:?}");
            let [allocated, allocations, _, _, live, count] = sums(process, domain);
            let followed = terms.seen.saturating_sub(terms.dropped);
            assert_eq!((allocated, allocations), (followed.bytes, followed.count));
            if process.ended && *domain != "kernel" {
                // What it held at its end, or what a child that shares its memory still holds;
                // what its earlier programs held is closed as well.
                let held = terms.closed.saturating_add(terms.live);
                assert!(live <= held.bytes && count <= held.count);
            } else {
                assert_eq!((live, count), (terms.live.bytes, terms.live.count));
            }
        }
    }
}

/// What must hold in every picture.
fn check_always(picture: &Snapshot) {
    for process in &picture.processes {
        for site in &process.sites {
            assert!(site.live_bytes <= site.allocated_bytes, "{site:?}");
            assert!(site.live_count <= site.allocations, "{site:?}");
        }
        for failures in process.domains.values().map(|terms| terms.failures) {
            assert!(failures <= 1_000);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn books_are_conserved_whatever_the_wire_does(
        steps in prop::collection::vec((step(), fate()), 1..160),
    ) {
        let mut world = World::new(hasty());
        for (step, fate) in &steps {
            play(&mut world, step, *fate);
            if matches!(step, Step::Tick(_)) {
                check_always(&world.snapshot());
            }
        }
        world.flush();
        check_sums(&world, &world.snapshot());
        // Spaces that an unheard exec left behind are noticed by nobody's claiming them. After
        // that, letting go of everything that ended changes no sum.
        for _ in 0..4 {
            world.tick(7);
            world.flush();
            check_final(&world, &world.snapshot());
        }
        prop_assert_eq!(world.core.ledger().faults().replaced_live, 0);
    }

    #[test]
    fn a_replay_gives_the_same_picture(
        steps in prop::collection::vec((step(), fate()), 1..120),
    ) {
        let mut world = World::new(hasty());
        for (step, fate) in &steps {
            play(&mut world, step, *fate);
        }
        let mut replayed = Core::new(config(hasty()));
        for record in &world.told {
            replayed.apply(record);
        }
        let first = serde_json::to_string(&world.snapshot()).unwrap();
        let second =
            serde_json::to_string(&replayed.snapshot(world.now_ns, &setting())).unwrap();
        prop_assert_eq!(first, second);
    }

    #[test]
    fn a_replay_of_a_recording_gives_the_same_picture(
        steps in prop::collection::vec((step(), fate()), 1..120),
    ) {
        let mut world = World::new(hasty());
        for (step, fate) in &steps {
            play(&mut world, step, *fate);
        }
        let header = Header::new(setting().anchor, setting().host, config(hasty()));
        let file = tempfile::NamedTempFile::new().unwrap();
        let written = file.reopen().unwrap();
        let (mut recorder, writing) =
            Recorder::start(written, &serde_json::to_vec(&header).unwrap()).unwrap();
        for record in &world.told {
            recorder.record(record);
            if matches!(record, Record::Tick { .. }) {
                recorder.flush();
            }
        }
        recorder.end(Anchor { monotonic_ns: world.now_ns, ..setting().anchor });
        prop_assert_eq!(writing.wait().records, world.told.len() as u64);
        let Replayed { snapshot, records, notes } = replay_from(file).unwrap();
        prop_assert_eq!((records, notes), (world.told.len() as u64, Vec::new()));
        // The last picture's clocks lie to each other as they did when it was made.
        let anchor = Anchor { monotonic_ns: world.now_ns, ..setting().anchor };
        let live = world.core.snapshot(world.now_ns, &Setting { anchor, ..setting() });
        prop_assert_eq!(
            serde_json::to_string(&live).unwrap(),
            serde_json::to_string(&snapshot).unwrap()
        );
    }
}
