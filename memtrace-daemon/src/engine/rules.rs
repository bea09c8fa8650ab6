//! One test a rule of contracts §2 that user space decides, each on a story short enough to
//! be followed by hand.

use memtrace_common::{
    Account, AccountKey, Amount, Context, FreeReason, FreeRecord, KMALLOC, LossCause, LossCounter,
    Totals, TotalsKey, UNATTRIBUTED_SLOT,
};

use super::simulation::{Fate::Arrives, Fate::IsLost, SECOND, World, allocators, hasty};
use crate::ledger::LedgerConfig;
use crate::record::{DeviceMemory, Observation, Record};
use crate::snapshot::{Process, Site, Snapshot};

pub(super) fn world() -> World {
    World::new(LedgerConfig::default())
}

pub(super) fn cuda_malloc() -> u16 {
    allocators()[0]
}

pub(super) fn process(picture: &Snapshot, pid: u32) -> &Process {
    picture.processes.iter().find(|process| process.pid == pid).unwrap()
}

pub(super) fn named<'a>(picture: &'a Snapshot, comm: &str) -> &'a Process {
    picture.processes.iter().find(|process| process.comm == comm).unwrap()
}

pub(super) fn site<'a>(process: &'a Process, note: Option<&str>) -> &'a Site {
    process.sites.iter().find(|site| site.note == note).unwrap()
}

pub(super) fn account(
    slot: u32,
    call_site: u64,
    first_ns: u64,
    allocated: u64,
    freed: u64,
) -> Account {
    let amount = |count| Amount { count, bytes: 64 * count };
    Account {
        key: AccountKey {
            call_site,
            detail: 0,
            serial: 1,
            context_and_function: AccountKey::pack(Context::Process, KMALLOC),
        },
        slot,
        seen: amount(allocated),
        allocated: amount(allocated),
        freed: amount(freed),
        first_ns,
        last_ns: first_ns,
        ..Account::default()
    }
}

pub(super) fn tell_account(world: &mut World, account: Account) {
    let time_ns = world.now_ns;
    world.tell(Record::Account { time_ns, account });
}

#[test]
fn rule_4_an_address_handed_out_again_closes_the_old_entry() {
    let mut world = world();
    let app = world.start(None, false, Arrives);
    world.call(app, cuda_malloc(), 1, 100, true, Arrives);
    world.call(app, cuda_malloc(), 1, 100, true, Arrives);
    world.free(1, FreeReason::FreedUnseen, Arrives);
    world.totals(Arrives);
    let picture = world.snapshot();
    let terms = picture.domains["cuda"];
    assert_eq!(terms.freed_unseen, Amount { count: 1, bytes: 100 });
    assert_eq!(terms.live, Amount { count: 1, bytes: 100 });
    let row = site(process(&picture, 1_001), None);
    assert_eq!((row.live_count, row.frees), (1, 0), "only frees that were seen are frees");
}

#[test]
fn rule_5_a_free_that_is_on_no_books_moves_nothing() {
    let mut world = world();
    let app = world.start(None, false, Arrives);
    world.call(app, cuda_malloc(), 1, 100, true, Arrives);
    let stray = FreeRecord { id: 77, bytes: 1 << 40, space: 1, reason: 1, ..FreeRecord::default() };
    world.tell(Record::Free(stray));
    world.totals(Arrives);
    let picture = world.snapshot();
    assert_eq!(picture.domains["cuda"].live.bytes, 100);
    assert!(picture.domains["cuda"].conserved());
}

#[test]
fn rule_5_a_late_state_never_takes_anything_back() {
    let mut world = world();
    world.start(None, false, Arrives);
    tell_account(&mut world, account(1, 0x100, 5, 10, 4));
    tell_account(&mut world, account(1, 0x100, 5, 9, 4));
    assert_eq!(world.snapshot().domains["kernel"].live.count, 6);
    let key = TotalsKey { space: 1, function: u32::from(cuda_malloc()) };
    let now_ns = world.now_ns;
    for (count, failed_frees) in [(3, 7), (3, 5), (2, 7)] {
        let seen = Amount { count, bytes: count };
        let totals = Totals { seen, allocated: seen, failed_frees, ..Totals::default() };
        world.tell(Record::Totals { time_ns: now_ns, key, totals });
    }
    let picture = world.snapshot();
    let terms = &process(&picture, 1_001).domains["cuda"];
    assert_eq!((terms.terms.seen.count, terms.failed_frees), (3, 7));
}

#[test]
fn rule_7_a_pid_that_is_used_again_has_books_of_its_own() {
    let mut world = world();
    let first = world.start(None, false, Arrives);
    world.call(first, cuda_malloc(), 1, 100, true, Arrives);
    world.end(first, Arrives);
    let second = world.start(None, false, Arrives);
    world.processes[second].key.tgid = world.processes[first].key.tgid;
    let entry = world.processes[second];
    let time_ns = world.now_ns;
    world.tell(Record::Process { time_ns, entry });
    world.call(second, cuda_malloc(), 1, 7, true, Arrives);
    world.totals(Arrives);
    let picture = world.snapshot();
    let both: Vec<_> = picture.processes.iter().filter(|process| process.pid == 1_001).collect();
    assert_eq!(both.len(), 2);
    assert_eq!((both[0].ended, both[0].sites[0].live_bytes), (true, 100));
    assert_eq!((both[1].ended, both[1].sites[0].live_bytes), (false, 7));
    assert_eq!(both[0].sites[0].id, both[1].sites[0].id, "one site, two processes");
}

#[test]
fn rule_8_exec_closes_the_user_books_and_the_rows_say_so() {
    let mut world = world();
    let app = world.start(None, false, Arrives);
    world.call(app, cuda_malloc(), 1, 100, true, Arrives);
    world.exec(app, Arrives);
    world.call(app, cuda_malloc(), 4, 5, true, Arrives);
    world.flush();
    let picture = world.snapshot();
    let terms = picture.domains["cuda"];
    assert_eq!((terms.closed.bytes, terms.live.bytes), (100, 5));
    let app = process(&picture, 1_001);
    let old = site(app, Some("closed by exec"));
    assert_eq!((old.live_bytes, old.allocated_bytes), (0, 100));
    assert_eq!(site(app, None).live_bytes, 5);
}

#[test]
fn rule_8_a_vfork_child_uses_its_parents_books_and_closes_nothing() {
    let mut world = world();
    let parent = world.start(None, false, Arrives);
    let child = world.start(Some(parent), true, Arrives);
    world.call(child, cuda_malloc(), 1, 100, true, Arrives);
    world.exec(child, Arrives);
    world.end(child, Arrives);
    world.totals(Arrives);
    let picture = world.snapshot();
    assert_eq!(picture.domains["cuda"].live.bytes, 100);
    assert_eq!(process(&picture, 1_001).sites[0].live_bytes, 100);
    assert!(picture.processes.iter().all(|process| process.pid != 1_002), "it has no books");
}

#[test]
fn rule_8_memory_that_a_child_still_runs_in_outlives_its_owner() {
    let mut world = world();
    let parent = world.start(None, false, Arrives);
    let child = world.start(Some(parent), true, Arrives);
    world.call(parent, cuda_malloc(), 1, 100, true, Arrives);
    world.end(parent, Arrives);
    world.totals(Arrives);
    assert_eq!(world.snapshot().domains["cuda"].live.bytes, 100);
    world.end(child, Arrives);
    assert_eq!(world.snapshot().domains["cuda"].closed.bytes, 100);
}

#[test]
fn rule_8_kernel_accounts_stay_current_after_the_end() {
    let mut world = world();
    let app = world.start(None, false, Arrives);
    for _ in 0..3 {
        world.kmalloc(1, 0x100, 64, Arrives);
    }
    world.end(app, Arrives);
    let picture = world.snapshot();
    assert!(process(&picture, 1_001).ended);
    assert_eq!(picture.domains["kernel"].live, Amount { count: 3, bytes: 192 });
    assert_eq!(picture.domains["kernel"].closed, Amount::default());
    world.kfree(0, Arrives);
    world.kfree(0, Arrives);
    assert_eq!(world.snapshot().domains["kernel"].live.count, 1);
}

#[test]
fn rule_9_an_ended_process_says_what_it_still_held() {
    let mut world = world();
    let app = world.start(None, false, Arrives);
    world.call(app, cuda_malloc(), 1, 100, true, Arrives);
    world.call(app, cuda_malloc(), 1, 50, true, Arrives);
    world.free(1, FreeReason::Freed, Arrives);
    world.end(app, Arrives);
    world.tick(10);
    let picture = world.snapshot();
    let app = process(&picture, 1_001);
    assert!(app.ended && app.ended_at.is_some());
    let row = &app.sites[0];
    assert_eq!((row.live_bytes, row.live_count, row.frees), (50, 1, 1));
    assert!(row.oldest_age_seconds.unwrap() < 1.0, "its age stands still");
    assert_eq!(app.domains["cuda"].terms.closed.bytes, 50);
    assert_eq!(picture.domains["cuda"].live.bytes, 0, "history, outside the equation");
    assert!(picture.domains["cuda"].conserved());
    assert!(picture.findings.is_empty());
}

#[test]
fn rule_9_a_crowd_that_keeps_nothing_does_not_push_out_who_kept_something() {
    let mut world = World::new(hasty());
    let [kernel, cuda] = [(); 2].map(|()| {
        let app = world.start(None, false, Arrives);
        (app, world.processes[app].serial)
    });
    world.kmalloc(kernel.1, 0x100, 64, Arrives);
    world.call(cuda.0, cuda_malloc(), 1, 100, true, Arrives);
    world.end(kernel.0, Arrives);
    world.end(cuda.0, Arrives);
    for _ in 0..5 {
        let app = world.start(None, false, Arrives);
        let serial = world.processes[app].serial;
        world.kmalloc(serial, 0x100, 64, Arrives);
        world.kfree(world.objects.len() - 1, Arrives);
        world.end(app, Arrives);
    }
    world.tick(4);
    let picture = world.snapshot();
    let pids: Vec<u32> = picture.processes.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [1_001, 1_002], "as many as may stay, and the right ones");
}

#[test]
fn rule_9_after_its_time_only_live_kernel_memory_is_left_and_frees_still_find_it() {
    let mut world = World::new(hasty());
    for _ in 0..2 {
        let app = world.start(None, false, Arrives);
        let serial = world.processes[app].serial;
        world.kmalloc(serial, 0x100, 64, Arrives);
        world.kmalloc(serial, 0x100, 64, Arrives);
        world.kmalloc(serial, 0x200, 32, Arrives);
        world.call(app, cuda_malloc(), 1, 100, true, Arrives);
        world.end(app, Arrives);
    }
    world.kfree(2, Arrives); // the first one's 32 bytes
    world.flush();
    let before = world.snapshot().domains;
    world.tick(10);
    let picture = world.snapshot();
    assert_eq!(picture.domains, before, "letting go changes no sum");
    assert_eq!(picture.processes.len(), 1);
    let folded = named(&picture, "app");
    assert_eq!((folded.pid, folded.ended, folded.start_ns), (0, true, 0));
    assert!(folded.ended_at.is_some());
    assert_eq!(folded.sites[0].live_count, 4, "both processes' memory of one site");
    assert_eq!(folded.domains["kernel"].terms.live.bytes, 4 * 64 + 32);
    while !world.objects.is_empty() {
        world.kfree(0, Arrives);
    }
    world.tick(3);
    let picture = world.snapshot();
    assert!(picture.processes.is_empty());
    assert_eq!(picture.domains["kernel"].freed.count, 6);
    assert_eq!(picture.domains["kernel"].live.count, 0);
}

#[test]
fn rule_9_beyond_the_limit_the_oldest_go_first() {
    let mut world = World::new(LedgerConfig { linger_ns: None, ..hasty() });
    for _ in 0..5 {
        let app = world.start(None, false, Arrives);
        world.call(app, cuda_malloc(), 1, 100, true, Arrives);
        world.end(app, Arrives);
    }
    world.tick(20);
    let picture = world.snapshot();
    let pids: Vec<u32> = picture.processes.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [1_004, 1_005]);
    assert_eq!(picture.domains["cuda"].closed.bytes, 500);
}

#[test]
fn rule_11_a_process_that_was_there_before_has_a_baseline() {
    let mut world = world();
    let app = world.start(None, false, Arrives);
    let now_ns = world.now_ns;
    for observation in [
        Observation::ProcessFacts {
            serial: 1,
            cmdline: Some("python3 serve.py".into()),
            cgroup: Some("/system.slice/llm.service".into()),
            rss_bytes: Some(1 << 30),
            before_attach: true,
        },
        Observation::Device(DeviceMemory {
            total_bytes: 80 << 30,
            used_bytes: 9 << 30,
            processes: vec![(1_001, 8 << 30)],
            ..DeviceMemory::default()
        }),
    ] {
        world.tell(Record::Observation { now_ns, observation });
    }
    world.call(app, cuda_malloc(), 1, 100, true, Arrives);
    let picture = world.snapshot();
    let app = process(&picture, 1_001);
    assert!(app.baseline.before_attach);
    assert_eq!(app.baseline.rss_bytes, Some(1 << 30));
    assert_eq!(app.baseline.device_bytes, Some(8 << 30));
    assert_eq!(app.cmdline.as_deref(), Some("python3 serve.py"));
    assert_eq!(app.cgroup.as_deref(), Some("/system.slice/llm.service"));
    assert_eq!(picture.devices[0].used_bytes, 9 << 30);
}

#[test]
fn rule_14_failed_frees_and_failures_are_counted_and_move_nothing() {
    let mut world = world();
    let app = world.start(None, false, Arrives);
    world.fail(app, cuda_malloc(), 1, Arrives);
    world.fail(app, cuda_malloc(), 1, IsLost);
    world.totals(Arrives);
    let picture = world.snapshot();
    let app = process(&picture, 1_001);
    let terms = &app.domains["cuda"];
    assert_eq!((terms.failures, terms.terms.seen.count), (2, 0));
    assert_eq!(app.sites.iter().map(|site| site.failures).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(site(app, Some("unattributed")).failures, 1, "its record was lost");
}

#[test]
fn rule_15_what_is_not_seen_and_what_was_lost_is_always_said() {
    let mut world = world();
    let picture = world.snapshot();
    assert_eq!(picture.loss.len(), LossCause::ALL.len());
    assert_eq!(picture.loss["ring_full"].bytes, None);
    assert_eq!(picture.loss["live_map_full"].bytes, Some(0));
    let unprobed = "heap, mmap (no probes in this version)";
    for part in ["before memtrace", "page allocator", "vmalloc", "named slab", unprobed] {
        assert!(picture.not_seen.iter().any(|row| row.contains(part)), "{part}");
    }
    let names: Vec<&str> = picture.domains.keys().copied().collect();
    assert_eq!(names, ["cuda", "kernel", "managed", "pinned"], "zero is a figure too");
    let mut counters = vec![LossCounter::default(); LossCause::ALL.len()];
    counters[LossCause::LiveMapFull as usize] = LossCounter { count: 2, bytes: 4_096 };
    let observation = Observation::Loss(counters);
    world.tell(Record::Observation { now_ns: 1, observation });
    let loss = world.snapshot().loss["live_map_full"];
    assert_eq!((loss.count, loss.bytes), (2, Some(4_096)));
}

#[test]
fn a_lost_call_is_unattributed_until_its_free_and_a_lost_free_is_found_in_the_live_map() {
    let mut world = world();
    let app = world.start(None, false, Arrives);
    world.call(app, cuda_malloc(), 1, 100, true, Arrives);
    world.call(app, cuda_malloc(), 1, 30, true, IsLost);
    world.totals(Arrives);
    let row = |world: &World| {
        let picture = world.snapshot();
        let row = site(process(&picture, 1_001), Some("unattributed")).clone();
        (row.id, row.live_bytes, row.allocations, row.frees)
    };
    assert_eq!(row(&world), (None, 30, 1, 0));
    world.free(2, FreeReason::Freed, Arrives);
    world.totals(Arrives);
    assert_eq!(row(&world), (None, 0, 1, 1));
    world.free(1, FreeReason::Freed, IsLost);
    world.flush();
    let picture = world.snapshot();
    let known = site(process(&picture, 1_001), None);
    assert_eq!((known.live_bytes, known.frees), (0, 1));
}

#[test]
fn a_slot_that_is_used_again_keeps_both_accounts() {
    let mut world = world();
    world.start(None, false, Arrives);
    tell_account(&mut world, account(1, 0x100, 5, 10, 10));
    tell_account(&mut world, account(1, 0x200, 9, 3, 0));
    tell_account(&mut world, account(1, 0x100, 5, 10, 10)); // late, of the one before
    let terms = world.snapshot().domains["kernel"];
    assert_eq!((terms.seen.count, terms.freed.count, terms.live.count), (13, 10, 3));
    assert_eq!(world.core.ledger().faults().replaced_live, 0);
    tell_account(&mut world, account(1, 0x300, 12, 1, 0));
    assert_eq!(world.core.ledger().faults().replaced_live, 1, "that one was live");
    let terms = world.snapshot().domains["kernel"];
    assert_eq!(terms.live.count, 4, "and is not dropped");
    // The same call site once more in the same slot.
    tell_account(&mut world, account(2, 0x400, 5, 10, 10));
    tell_account(&mut world, account(2, 0x400, 20, 1, 0));
    let terms = world.snapshot().domains["kernel"];
    assert_eq!((terms.seen.count, terms.live.count), (25, 5));
}

#[test]
fn interrupts_and_what_found_no_account_are_nobodys() {
    let mut world = world();
    world.kmalloc(0, 0x100, 64, Arrives);
    let dropped = Amount { count: 2, bytes: 96 };
    let lost = Account { slot: UNATTRIBUTED_SLOT, seen: dropped, dropped, ..Account::default() };
    tell_account(&mut world, lost);
    let picture = world.snapshot();
    let interrupt = named(&picture, "[interrupt]");
    assert_eq!((interrupt.pid, interrupt.sites[0].context), (0, "interrupt"));
    let unknown = named(&picture, "[unknown]");
    assert_eq!(unknown.sites[0].note, Some("unattributed"));
    assert_eq!(unknown.domains["kernel"].terms.dropped, dropped);
    assert!(picture.domains["kernel"].conserved());
}

#[test]
fn what_the_kernel_may_let_go_is_asked_for_once() {
    let mut world = World::new(LedgerConfig::default());
    let app = world.start(None, false, Arrives);
    world.kmalloc(1, 0x100, 64, Arrives);
    world.kfree(0, Arrives);
    world.call(app, cuda_malloc(), 1, 100, true, Arrives);
    world.end(app, Arrives);
    let mut core = world.core;
    let mut asked = Vec::new();
    for second in 1..10 {
        let effects = core.apply(&Record::Tick { now_ns: world.now_ns + second * SECOND });
        if !effects.is_empty() {
            asked.push(effects);
        }
    }
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].delete_accounts.len(), 1);
    assert_eq!(asked[0].forget_processes[0].1, 1);
    assert_eq!(asked[0].settle_spaces, [1]);
    assert_eq!(asked[1].sweep_spaces, [1], "after its last state was asked for");
}

#[test]
fn a_leak_is_found_named_and_timed() {
    let mut world = world();
    let app = world.start(None, false, Arrives);
    let now_ns = world.now_ns;
    // The driver keeps 2 GiB for itself.
    let observation = Observation::Device(DeviceMemory {
        index: 3,
        total_bytes: 12 << 30,
        free_bytes: Some(10 << 30),
        processes: vec![(1_001, 1)],
        ..DeviceMemory::default()
    });
    world.tell(Record::Observation { now_ns, observation });
    for _ in 0..700 {
        world.call(app, cuda_malloc(), 1, 1 << 20, true, Arrives);
        world.tick(1);
    }
    world.totals(Arrives);
    let picture = world.snapshot();
    let finding = &picture.findings[0];
    assert_eq!((finding.level, finding.verdict.name()), ("site", "leak"));
    assert_eq!(finding.processes, [1_001]);
    assert_eq!(finding.function.as_deref(), Some("f4096"));
    assert_eq!(finding.site, process(&picture, 1_001).sites[0].id);
    let exhaustion = finding.exhaustion.as_ref().unwrap();
    assert_eq!(exhaustion.of, "cuda:3");
    assert!((exhaustion.seconds - 10_240.0).abs() < 200.0, "{exhaustion:?}");
}
