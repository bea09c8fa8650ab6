//! Measurements in virtual time: the cases that they are for, and those that must stay silent.

use super::*;
use crate::record::Parent;
use crate::snapshot::Verdict;

const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// One process, measured every 5 s.
struct World {
    levels: ProcessLevels,
    now_ns: u64,
    memory: ProcessMemory,
    booked: Booked,
}

impl World {
    fn new() -> Self {
        let memory = ProcessMemory {
            serial: 7,
            parent: Some(Parent { tgid: 50, comm: "vllm".into() }),
            anonymous_bytes: 100 * MIB,
            file_bytes: 50 * MIB,
            virtual_bytes: 2 * GIB,
            threads: 4,
            huge_bytes: Some(0),
            brk_bytes: Some(MIB),
            ..ProcessMemory::default()
        };
        let booked = Booked { space: 3, calls: 10, ..Booked::default() };
        let levels = ProcessLevels::new(VerdictConfig::default());
        Self { levels, now_ns: 100 * SECOND, memory, booked }
    }

    /// One whose malloc and mappings are traced, from its start.
    fn traced() -> Self {
        let mut world = Self::new();
        world.booked.heap_bytes = Some(20 * MIB);
        world.booked.heap_calls = 1_000;
        world.booked.mmap_bytes = Some(10 * MIB);
        world
    }

    /// So many windows of 10 s, in each of which `each` is done twice.
    fn windows(&mut self, windows: u32, mut each: impl FnMut(&mut Self)) {
        for _ in 0..windows * 2 {
            self.levels.observe(self.now_ns, &self.memory, self.booked.clone());
            each(self);
            self.now_ns += 5 * SECOND;
        }
    }

    fn said(&self) -> Vec<Said> {
        let mut all = Vec::new();
        self.levels.said(self.now_ns, &mut |said| all.push(said));
        all
    }

    fn words(&self) -> Vec<(Verdict, &'static str)> {
        self.said().iter().map(|said| (said.judgement.verdict, said.domain)).collect()
    }

    /// The only thing that is said, its words joined.
    fn one(&self, verdict: Verdict, domain: &str) -> String {
        let said = self.said();
        assert_eq!(said.len(), 1, "{said:?}");
        assert_eq!(
            (said[0].judgement.verdict, said[0].domain, said[0].serial),
            (verdict, domain, Some(7))
        );
        said[0].judgement.decided_by.join("; ")
    }
}

#[test]
fn a5_growth_is_seen_although_it_is_swapped_out() {
    let mut world = World::new();
    world.windows(30, |world| {
        world.memory.swap_bytes += 20 * MIB;
        world.memory.anonymous_bytes = world.memory.anonymous_bytes.saturating_sub(MIB);
    });
    let words = world.one(Verdict::Growing, "heap");
    assert!(words.contains("swapped out") && words.contains("not traced"), "{words}");
    assert!(words.contains("--domains heap,mmap"), "{words}");
    let said = world.said().remove(0).judgement;
    assert!(said.growth_bytes_per_second.unwrap() > 0.0, "{said:?}");
    // However long it goes on: nobody knows whether it is in use.
    world.windows(60, |world| world.memory.swap_bytes += 20 * MIB);
    world.one(Verdict::Growing, "heap");
}

#[test]
fn a5_memory_that_is_only_swapped_out_or_given_back_is_no_growth() {
    let mut world = World::new();
    world.memory.anonymous_bytes = 4 * GIB;
    world.windows(60, |world| {
        world.memory.swap_bytes += 30 * MIB;
        world.memory.anonymous_bytes -= 30 * MIB;
    });
    assert!(world.said().is_empty(), "{:?}", world.said());
    world.windows(20, |world| world.memory.swap_bytes -= 50 * MIB);
    assert!(world.said().is_empty(), "{:?}", world.said());
}

#[test]
fn growth_that_the_books_explain_is_theirs_to_report() {
    let mut world = World::traced();
    world.windows(60, |world| {
        world.memory.anonymous_bytes += 5 * MIB;
        world.booked.heap_bytes = world.booked.heap_bytes.map(|bytes| bytes + 5 * MIB);
    });
    assert!(world.said().is_empty(), "{:?}", world.said());
    let mut pinned = World::new();
    pinned.windows(60, |world| {
        world.memory.anonymous_bytes += 5 * MIB;
        world.booked.locked_bytes += 5 * MIB;
    });
    assert!(pinned.said().is_empty(), "{:?}", pinned.said());
}

#[test]
fn growth_that_stops_is_not_growing_any_more() {
    let mut world = World::new();
    world.windows(20, |world| world.memory.anonymous_bytes += 20 * MIB);
    world.one(Verdict::Growing, "heap");
    world.windows(40, |_| {});
    assert!(world.said().is_empty(), "{:?}", world.said());
}

#[test]
fn a11_memory_that_live_allocations_do_not_explain_is_fragmentation() {
    let mut world = World::traced();
    let mut round = 0;
    world.windows(20, |world| {
        round += 1;
        world.memory.anonymous_bytes += 20 * MIB;
        world.memory.virtual_bytes += 20 * MIB;
        // A round's own blocks come and go.
        let live = if round % 2 == 0 { 20 } else { 40 };
        world.booked.heap_bytes = Some(live * MIB);
    });
    let words = world.one(Verdict::Fragmentation, "heap");
    assert!(words.contains("live allocations by"), "{words}");
    assert!(!words.contains("AnonHugePages"), "{words}");
    // And on, long after a leak would be called one.
    world.windows(60, |world| world.memory.anonymous_bytes += 20 * MIB);
    world.one(Verdict::Fragmentation, "heap");
}

#[test]
fn a11_what_was_once_needed_and_is_kept_is_no_fragmentation() {
    let mut world = World::traced();
    world.windows(5, |_| {});
    // A burst that was live once, and an allocator that keeps what it was.
    world.memory.anonymous_bytes += 800 * MIB;
    world.booked.heap_bytes = Some(800 * MIB);
    world.windows(5, |_| {});
    world.booked.heap_bytes = Some(20 * MIB);
    world.windows(60, |_| {});
    assert!(world.said().is_empty(), "{:?}", world.said());
}

#[test]
fn a11_what_comes_back_soon_is_no_fragmentation() {
    let mut world = World::traced();
    for _ in 0..20 {
        world.memory.anonymous_bytes += 300 * MIB;
        world.windows(3, |_| {});
        world.memory.anonymous_bytes -= 300 * MIB;
        world.windows(1, |_| {});
        assert!(world.said().is_empty(), "{:?}", world.said());
    }
}

#[test]
fn fragmentation_is_not_said_where_other_memory_may_be_behind_it() {
    // Another allocator than the one that is traced.
    let mut other = World::traced();
    other.booked.heap_calls = 0;
    other.windows(40, |world| world.memory.anonymous_bytes += 5 * MIB);
    assert!(other.words().iter().all(|(verdict, _)| *verdict == Verdict::Growing));
    // Reserved before attach, used only now.
    let mut reserved = World::traced();
    reserved.booked.before_attach = true;
    reserved.windows(40, |world| world.memory.anonymous_bytes += 5 * MIB);
    let words = reserved.one(Verdict::Growing, "heap");
    assert!(words.contains("before attach"), "{words}");
    // Mappings of its own that nobody traces.
    let mut mapped = World::traced();
    mapped.booked.mmap_bytes = None;
    mapped.windows(40, |world| {
        world.memory.anonymous_bytes += 5 * MIB;
        world.memory.virtual_bytes += 5 * MIB;
    });
    let words = mapped.one(Verdict::Growing, "heap");
    assert!(words.contains("mmap is not traced"), "{words}");
    // The same, where malloc's own segment grew.
    let mut segment = World::traced();
    segment.booked.mmap_bytes = None;
    segment.windows(40, |world| {
        world.memory.anonymous_bytes += 5 * MIB;
        world.memory.virtual_bytes += 5 * MIB;
        world.memory.brk_bytes = world.memory.brk_bytes.map(|bytes| bytes + 5 * MIB);
    });
    let words = segment.one(Verdict::Fragmentation, "heap");
    assert!(words.contains("malloc's own segment"), "{words}");
}

#[test]
fn a13_huge_pages_without_an_allocation_are_named() {
    let mut world = World::traced();
    world.windows(5, |_| {});
    world.windows(4, |world| {
        world.memory.anonymous_bytes += 16 * MIB;
        world.memory.huge_bytes = world.memory.huge_bytes.map(|bytes| bytes + 16 * MIB);
    });
    world.windows(14, |_| {});
    let words = world.one(Verdict::Fragmentation, "heap");
    assert!(words.contains("128 MiB of it are transparent huge pages (AnonHugePages)"), "{words}");
    assert!(world.levels.wants_closer(7), "they are looked at again");
}

#[test]
fn a13_huge_pages_that_allocations_explain_are_no_news() {
    let mut world = World::traced();
    world.windows(40, |world| {
        world.memory.anonymous_bytes += 2 * MIB;
        world.memory.huge_bytes = world.memory.huge_bytes.map(|bytes| bytes + 2 * MIB);
        world.booked.mmap_bytes = world.booked.mmap_bytes.map(|bytes| bytes + 2 * MIB);
    });
    assert!(world.said().is_empty(), "{:?}", world.said());
    assert!(!world.levels.wants_closer(7));
}

#[test]
fn a14_mapped_files_are_nobodys_use() {
    for mut world in [World::new(), World::traced()] {
        world.windows(60, |world| {
            world.memory.file_bytes += 100 * MIB;
            world.memory.virtual_bytes += 100 * MIB;
            world.memory.shared_bytes += MIB;
        });
        assert!(world.said().is_empty(), "{:?}", world.said());
    }
}

#[test]
fn a14_pages_of_files_that_are_evicted_are_no_unused_address_space() {
    let read = |world: &mut World| {
        world.windows(30, |world| {
            world.memory.file_bytes += 100 * MIB;
            world.memory.virtual_bytes += 100 * MIB;
        });
    };
    for mut world in [World::new(), World::traced()] {
        read(&mut world);
        // Evicted, read again and evicted again, while other memory comes and goes.
        for _ in 0..2 {
            world.windows(30, |world| {
                world.memory.file_bytes -= 50 * MIB;
                world.memory.anonymous_bytes ^= 4 * MIB;
            });
            assert!(world.said().is_empty(), "{:?}", world.said());
            world.windows(20, |world| world.memory.file_bytes += 75 * MIB);
        }
        assert!(world.said().is_empty(), "{:?}", world.said());
    }
    // That hides no threads, nor does what is not mapped any more.
    let mut there = World::new();
    there.memory.file_bytes += 8 * GIB;
    there.memory.virtual_bytes += 8 * GIB;
    there.windows(30, |world| world.memory.file_bytes -= 50 * MIB);
    start_threads(&mut there);
    let mut unmapped = World::new();
    read(&mut unmapped);
    unmapped.memory.file_bytes -= 6_000 * MIB;
    unmapped.memory.virtual_bytes -= 6_000 * MIB;
    start_threads(&mut unmapped);
    let mut evicted = World::new();
    read(&mut evicted);
    evicted.windows(30, |world| world.memory.file_bytes -= 80 * MIB);
    evicted.memory.virtual_bytes -= 3_000 * MIB;
    evicted.memory.file_bytes -= 600 * MIB;
    start_threads(&mut evicted);
}

#[test]
fn a14_files_that_are_read_while_older_pages_are_evicted_are_nobodys_threads() {
    let mut world = World::new();
    world.windows(8, |world| {
        world.memory.file_bytes += GIB;
        world.memory.virtual_bytes += GIB;
    });
    world.windows(120, |world| world.memory.virtual_bytes += GIB);
    assert!(world.said().is_empty(), "{:?}", world.said());
}

/// Threads come that are never joined, and are named.
fn start_threads(world: &mut World) {
    world.windows(20, |world| {
        world.memory.threads += 10;
        world.memory.virtual_bytes += 80 * MIB;
        world.memory.anonymous_bytes += 80 << 10;
    });
    let words = world.one(Verdict::Growing, "mmap");
    assert!(words.contains("thread stacks: ") && words.contains("more threads"), "{words}");
}

#[test]
fn a39_threads_that_are_never_joined_are_named() {
    start_threads(&mut World::new());
    // Threads that ended and were never joined leave their stacks behind.
    let mut ended = World::new();
    ended.windows(20, |world| {
        world.memory.virtual_bytes += 80 * MIB;
        world.memory.anonymous_bytes += 80 << 10;
    });
    let words = ended.one(Verdict::Growing, "mmap");
    assert!(words.contains("never joined") && words.contains("reserved"), "{words}");
}

#[test]
fn a39_threads_for_load_and_a_reservation_are_silent() {
    let mut load = World::new();
    for _ in 0..10 {
        load.memory.threads += 40;
        load.memory.virtual_bytes += 320 * MIB;
        load.windows(3, |_| {});
        load.memory.threads -= 40;
        load.memory.virtual_bytes -= 320 * MIB;
        load.windows(3, |_| {});
        assert!(load.said().is_empty(), "{:?}", load.said());
    }
    let mut reserved = World::new();
    reserved.memory.virtual_bytes += 64 * GIB;
    reserved.windows(60, |_| {});
    assert!(reserved.said().is_empty(), "{:?}", reserved.said());
}

/// A worker that took device memory long ago.
fn worker() -> World {
    let mut world = World::new();
    world.booked.device_bytes = 300 * MIB;
    world.booked.device_since_ns = Some(90 * SECOND);
    world.booked.nvml_bytes = Some(412 * MIB);
    world.windows(3, |world| world.booked.calls += 1);
    world
}

fn parent_ends(world: &mut World, comm: &str) {
    world.booked.parent =
        Some(ParentBooks { tgid: 50, comm: comm.into(), ended_ns: Some(world.now_ns) });
    world.memory.parent = Some(Parent { tgid: 1, comm: "systemd".into() });
}

#[test]
fn a38_a_worker_whose_parent_was_killed_is_orphaned() {
    let mut world = worker();
    parent_ends(&mut world, "python3");
    world.windows(4, |_| {});
    assert!(world.said().is_empty(), "it may still be ending: {:?}", world.said());
    world.windows(10, |_| {});
    let words = world.one(Verdict::Orphaned, "cuda");
    assert!(words.contains("its parent python3 (pid 50) ended"), "{words}");
    assert!(words.contains("300 MiB") && words.contains("412 MiB"), "{words}");
    // The parent's books are not kept for ever.
    world.booked.parent = None;
    world.windows(2, |_| {});
    world.one(Verdict::Orphaned, "cuda");
    // It was only slow.
    world.windows(1, |world| world.booked.calls += 1);
    world.windows(1, |_| {});
    assert!(world.said().is_empty(), "{:?}", world.said());
    world.windows(10, |_| {});
    world.levels.end(7);
    assert!(world.said().is_empty());
}

#[test]
fn a38_a_parent_without_books_is_known_by_its_child() {
    let mut world = worker();
    world.memory.parent = Some(Parent { tgid: 812, comm: "systemd".into() });
    world.windows(14, |_| {});
    let words = world.one(Verdict::Orphaned, "cuda");
    assert!(words.contains("its parent vllm (pid 50) ended"), "{words}");
}

#[test]
fn a38_who_works_or_was_put_into_the_background_is_no_orphan() {
    let mut busy = worker();
    parent_ends(&mut busy, "python3");
    busy.windows(30, |world| world.booked.calls += 1);
    assert!(busy.said().is_empty(), "{:?}", busy.said());
    let mut background = worker();
    parent_ends(&mut background, "bash");
    background.windows(30, |_| {});
    assert!(background.said().is_empty(), "a shell's end: {:?}", background.said());
    let mut service = worker();
    parent_ends(&mut service, "python3");
    service.booked.device_since_ns = Some(service.now_ns + SECOND);
    service.windows(30, |_| {});
    assert!(service.said().is_empty(), "started for good: {:?}", service.said());
    let mut idle = worker();
    idle.windows(60, |_| {});
    assert!(idle.said().is_empty(), "its parent runs: {:?}", idle.said());
    let mut freed = worker();
    parent_ends(&mut freed, "python3");
    freed.booked.device_bytes = 0;
    freed.booked.nvml_bytes = Some(0);
    freed.windows(30, |_| {});
    assert!(freed.said().is_empty(), "it holds nothing: {:?}", freed.said());
}

#[test]
fn a41_device_memory_that_a_pool_keeps_is_no_news() {
    let mut world = World::new();
    world.booked.nvml_bytes = Some(0);
    world.windows(10, |world| {
        world.booked.device_bytes += 50 * MIB;
        world.booked.nvml_bytes = world.booked.nvml_bytes.map(|bytes| bytes + 50 * MIB);
    });
    world.booked.device_bytes = 0;
    world.windows(60, |world| world.booked.calls += 2);
    assert!(world.said().is_empty(), "{:?}", world.said());
}

#[test]
fn another_program_in_the_process_is_measured_anew() {
    let mut world = World::new();
    world.windows(20, |world| world.memory.anonymous_bytes += 20 * MIB);
    world.one(Verdict::Growing, "heap");
    world.booked.space += 1;
    world.windows(1, |_| {});
    assert!(world.said().is_empty());
    assert_eq!(world.levels.end(7), Some(0));
    assert_eq!(world.levels.end(7), None, "told once");
    world.windows(30, |world| world.memory.anonymous_bytes += 20 * MIB);
    assert!(world.said().is_empty(), "it has ended");
    world.levels.retain(|_| false);
    assert!(world.levels.latest(7).is_none());
}
