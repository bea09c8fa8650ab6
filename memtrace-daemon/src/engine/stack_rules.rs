//! What is asked of stacks, and what rows show while they have no names.

use memtrace_common::bytemuck::Zeroable;
use memtrace_common::{Account, AccountKey, KernelSampleRecord};

use super::rules::{account, cuda_malloc, named, process, site, tell_account, world};
use super::simulation::{Fate::Arrives, World, header, label, setting};
use crate::ledger::LedgerConfig;
use crate::record::{Record, StackOrigin};

fn sample(detail: u64, kernel: &[u64], weight: u64) -> Record {
    let mut sample = KernelSampleRecord::zeroed();
    sample.header = header(10);
    sample.account = account(1 + detail as u32, 0x100, 5, 1, 0);
    sample.account.key.detail = detail;
    sample.weight = weight;
    sample.kernel_frames = kernel.len() as u32;
    sample.kernel[..kernel.len()].copy_from_slice(kernel);
    Record::KernelSample(Box::new(sample))
}

#[test]
fn a_netted_account_is_one_site_with_samples_and_exact_ones_are_sites_of_their_own() {
    let mut world = world();
    world.start(None, false, Arrives);
    world.tell(sample(0, &[7, 8, 0x100, 0x10], 10));
    world.tell(sample(0, &[7, 8, 0x100, 0x20], 90));
    let picture = world.snapshot();
    let row = &process(&picture, 1_001).sites[0];
    assert!(row.frames_sampled);
    assert_eq!(row.samples.len(), 2);
    assert_eq!(row.samples[0].weight_bytes, 90, "heaviest first");
    let names: Vec<_> = row.frames.iter().map(|frame| frame.symbol.as_deref().unwrap()).collect();
    assert_eq!(names, ["f256", "f32"], "the tracer's own frames are cut off");
    let netted = row.id;

    let mut world = World::new(LedgerConfig::default());
    world.start(None, false, Arrives);
    world.tell(sample(1, &[7, 8, 0x100, 0x10], 10));
    world.tell(sample(2, &[7, 8, 0x100, 0x20], 90));
    let picture = world.snapshot();
    let rows = &process(&picture, 1_001).sites;
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| !row.frames_sampled && row.id.is_some() && row.id != netted));
    tell_account(
        &mut world,
        Account {
            key: AccountKey { detail: 9, ..account(9, 0x100, 5, 1, 0).key },
            ..account(9, 0x100, 5, 1, 0)
        },
    );
    let picture = world.snapshot();
    let unseen = site(process(&picture, 1_001), Some("its stack was not seen"));
    assert_eq!((unseen.id, unseen.frames.len()), (None, 1), "its call site is all that is known");
}

#[test]
fn a_stack_is_asked_for_once_and_has_a_reason_until_it_has_a_name() {
    let world = world();
    let mut core = world.core;
    let first = core.apply(&sample(0, &[7, 0x100, 0x10], 10));
    assert_eq!(first.stacks.len(), 2, "the call site and the whole stack");
    assert!(first.stacks.iter().all(|stack| stack.origin == StackOrigin::Kernel));
    assert_eq!(core.apply(&sample(0, &[7, 0x100, 0x10], 20)).stacks.len(), 0);
    assert_eq!(core.unnamed().count(), 2);
    let picture = core.snapshot(20, &setting());
    let row = &named(&picture, "[unknown]").sites[0];
    assert_eq!(row.id, None);
    assert_eq!(row.frames[0].reason.as_deref(), Some("not resolved yet"));
    for stack in &first.stacks {
        core.apply(&Record::Stack(label(stack)));
    }
    assert_eq!(core.unnamed().count(), 0);
    let picture = core.snapshot(20, &setting());
    assert!(named(&picture, "[unknown]").sites[0].id.is_some());
}

#[test]
fn stacks_are_bounded_and_what_finds_no_room_is_unattributed_and_counted() {
    let mut world = World::new(LedgerConfig { max_stacks: 4, ..LedgerConfig::default() });
    let app = world.start(None, false, Arrives);
    for caller in 0..10 {
        world.call(app, cuda_malloc(), 2 * caller, 10, true, Arrives);
    }
    world.totals(Arrives);
    let picture = world.snapshot();
    let app = process(&picture, 1_001);
    assert_eq!(app.sites.len(), 5);
    assert_eq!(site(app, Some("unattributed")).live_bytes, 60);
    assert_eq!(picture.loss["stack_budget"].count, 6);
}

#[test]
fn one_process_leaves_room_for_the_stacks_of_others() {
    let mut world = World::new(LedgerConfig { max_stacks: 16, ..LedgerConfig::default() });
    let greedy = world.start(None, false, Arrives);
    for caller in 0..20 {
        world.call(greedy, cuda_malloc(), 2 * caller, 10, true, Arrives);
    }
    let other = world.start(None, false, Arrives);
    world.call(other, cuda_malloc(), 0, 10, true, Arrives);
    world.totals(Arrives);
    let picture = world.snapshot();
    assert_eq!(process(&picture, 1_001).sites.len(), 14 + 1);
    assert_eq!(process(&picture, 1_002).sites.len(), 1);
    assert_eq!(picture.loss["stack_budget"].count, 6);
}
