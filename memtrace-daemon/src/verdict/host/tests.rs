//! The host in virtual time: memory that nobody owns, and shared memory that was left over; each
//! with what looks like it and must stay silent.

use super::*;

const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A host with 24 GiB, looked at every 10 s.
struct World {
    levels: HostLevels,
    now_ns: u64,
    memory: HostMemory,
    books: HostBooks,
}

impl World {
    fn new() -> Self {
        let memory = HostMemory {
            total_bytes: 24 * GIB,
            available_bytes: 20 * GIB,
            free_bytes: 10 * GIB,
            cached_bytes: 12 * GIB,
            anonymous_bytes: GIB,
            shared_bytes: 100 * MIB,
            slab_bytes: 700 * MIB,
            vmalloc_bytes: 60 * MIB,
            kernel_stack_bytes: 20 * MIB,
            page_lists_bytes: Some(64 * MIB),
            ..HostMemory::default()
        };
        let books = HostBooks { locked_bytes: Some(0), ..HostBooks::default() };
        let levels = HostLevels::new(VerdictConfig::default());
        Self { levels, now_ns: 100 * SECOND, memory, books }
    }

    fn looks(&mut self, looks: u32, mut each: impl FnMut(&mut Self)) {
        for _ in 0..looks {
            self.levels.observe(self.now_ns, &self.memory, self.books);
            each(self);
            self.now_ns += 10 * SECOND;
        }
    }

    /// Takes free memory for nobody.
    fn take(&mut self, bytes: u64) {
        self.memory.free_bytes -= bytes;
    }

    fn said(&self) -> Vec<Said> {
        let mut all = Vec::new();
        self.levels.said(self.now_ns, &mut |said| all.push(said));
        all
    }

    fn one(&self, verdict: Verdict) -> String {
        let said = self.said();
        assert_eq!(said.len(), 1, "{said:?}");
        assert_eq!((said[0].judgement.verdict, said[0].domain), (verdict, "host"));
        assert_eq!(said[0].serial, None, "no process is blamed");
        said[0].judgement.decided_by.join("; ")
    }

    fn silent(&self) {
        assert!(self.said().is_empty(), "{:?}", self.said());
    }
}

#[test]
fn a7_pages_that_outlive_their_process_are_the_hosts() {
    let mut world = World::new();
    world.looks(8, |_| {});
    // While it runs its books explain what is missing.
    world.take(500 * MIB);
    world.books.locked_bytes = Some(500 * MIB);
    world.looks(20, |_| {});
    world.silent();
    world.books =
        HostBooks { locked_bytes: Some(0), locked_closed_bytes: 500 * MIB, ..HostBooks::default() };
    world.looks(6, |_| {});
    world.silent();
    world.looks(20, |_| {});
    let words = world.one(Verdict::Orphaned);
    assert!(words.contains("500 MiB more than at first belong to no process"), "{words}");
    assert!(words.contains("page-locked memory ended with their processes"), "{words}");
    world.memory.free_bytes += 500 * MIB;
    world.looks(2, |_| {});
    world.silent();
}

#[test]
fn a7_what_is_left_over_grows_by_more_than_noise_or_not_at_all() {
    let mut world = World::new();
    world.looks(8, |_| {});
    world.take(2 * GIB);
    world.books.locked_closed_bytes = 2 * GIB;
    world.looks(40, |_| {});
    world.looks(20, |world| world.take(MIB));
    world.one(Verdict::Orphaned);
    world.looks(40, |world| world.take(8 * MIB));
    world.one(Verdict::Growing);
}

#[test]
fn a7_a_pool_of_huge_pages_that_nobody_uses_is_named() {
    let mut world = World::new();
    world.looks(8, |_| {});
    world.take(64 * MIB);
    (world.memory.huge_pool_bytes, world.memory.huge_free_bytes) = (64 * MIB, 64 * MIB);
    world.looks(20, |_| {});
    let words = world.one(Verdict::Plateau);
    assert!(words.contains("64.0 MiB of it are huge pages that nobody uses"), "{words}");
    // Somebody uses them.
    world.memory.huge_free_bytes = 0;
    world.looks(2, |_| {});
    world.silent();
}

#[test]
fn a7_ownerless_memory_that_rises_and_rises_is_growing_and_never_a_leak() {
    let mut world = World::new();
    world.books.locked_bytes = None;
    world.looks(8, |_| {});
    world.looks(100, |world| world.take(8 * MIB));
    let words = world.one(Verdict::Growing);
    assert!(words.contains("--domains pinned"), "{words}");
    let judgement = world.said().remove(0).judgement;
    let growth = judgement.growth_bytes_per_second.unwrap();
    assert!((growth - 0.8 * MIB as f64).abs() < 0.2 * MIB as f64, "{growth}");
}

#[test]
fn a7_memory_with_an_owner_is_no_residue() {
    let mut world = World::new();
    world.looks(60, |world| {
        world.memory.free_bytes -= 90 * MIB;
        world.memory.cached_bytes += 20 * MIB;
        world.memory.anonymous_bytes += 10 * MIB;
        world.memory.slab_bytes += 10 * MIB;
        world.memory.vmalloc_bytes += 10 * MIB;
        world.memory.kernel_stack_bytes += 10 * MIB;
        world.memory.page_table_bytes += 10 * MIB;
        world.memory.per_cpu_bytes += 10 * MIB;
        world.memory.other_bytes += 10 * MIB;
        world.memory.page_lists_bytes = world.memory.page_lists_bytes.map(|bytes| bytes + 10 * MIB);
    });
    world.silent();
}

#[test]
fn a7_noise_and_a_short_rise_are_silent() {
    let mut world = World::new();
    let mut look = 0_u64;
    world.looks(120, |world| {
        look += 1;
        // Up to 24 MiB, and now and then a burst of I/O buffers that is gone soon.
        let noise = look * 7 % 25 * MIB;
        let burst = if look % 20 < 5 { 300 * MIB } else { 0 };
        world.memory.free_bytes = 10 * GIB - noise - burst;
    });
    world.silent();
    // Memory that a process registered is its own: it explains nothing, and hides nothing later.
    let mut registered = World::new();
    registered.books.locked_bytes = Some(8 * GIB);
    registered.looks(10, |_| {});
    registered.books.locked_bytes = Some(0);
    registered.books.locked_closed_bytes = 8 * GIB;
    registered.looks(40, |_| {});
    registered.silent();
    registered.take(8 * GIB);
    registered.books.locked_bytes = Some(8 * GIB);
    registered.looks(40, |_| {});
    registered.silent();
}

fn left(bytes: u64) -> UnusedShared {
    UnusedShared {
        bytes,
        count: 50,
        new_bytes: bytes,
        new_count: 50,
        largest: vec!["/dev/shm/a".into(), "/dev/shm/b".into()],
        unseen: 0,
        unseen_bytes: 0,
    }
}

#[test]
fn a28_shared_memory_of_an_ended_process_is_the_hosts() {
    let mut world = World::new();
    world.looks(4, |_| {});
    assert!(!world.levels.wants_unused(world.now_ns), "nothing has risen");
    world.memory.shared_bytes += 50 * MIB;
    world.looks(1, |_| {});
    assert!(!world.levels.wants_unused(world.now_ns), "not yet");
    world.levels.observe_end(Ended {
        tgid: 77,
        comm: "triton".into(),
        ended_ns: world.now_ns,
        shared_bytes: 50 * MIB,
    });
    world.looks(4, |_| {});
    assert!(world.levels.wants_unused(world.now_ns));
    assert!(!world.levels.wants_unused(world.now_ns), "asked already");
    world.levels.observe_unused(world.now_ns, &left(50 * MIB));
    world.silent();
    world.looks(7, |_| {});
    assert!(world.levels.wants_unused(world.now_ns));
    world.levels.observe_unused(world.now_ns, &left(50 * MIB));
    let words = world.one(Verdict::Orphaned);
    assert!(words.contains("50.0 MiB in 50 files or segments"), "{words}");
    assert!(words.contains("/dev/shm/a, /dev/shm/b"), "{words}");
    assert!(
        words.contains("ended meanwhile: triton (pid 77, 50.0 MiB of shared memory)"),
        "{words}"
    );
    // Somebody removed them.
    world.looks(7, |_| {});
    assert!(world.levels.wants_unused(world.now_ns));
    world.levels.observe_unused(world.now_ns, &left(0));
    world.silent();
}

#[test]
fn a28_shared_memory_that_somebody_uses_is_silent() {
    let mut world = World::new();
    world.memory.shared_bytes += 2 * GIB;
    world.looks(4, |_| {});
    // There at first.
    assert!(!world.levels.wants_unused(world.now_ns));
    // A store that its owner has mapped is looked at rarely.
    world.memory.shared_bytes += 2 * GIB;
    world.books.shared_bytes += 2 * GIB;
    let mut asked = 0;
    world.looks(120, |world| {
        if world.levels.wants_unused(world.now_ns) {
            asked += 1;
            world.levels.observe_unused(world.now_ns, &left(0));
        }
    });
    assert!((3..=5).contains(&asked), "{asked}");
    world.silent();
    // Who cannot be looked at may use it.
    let uncertain = UnusedShared { unseen: 1, unseen_bytes: 2 * GIB, ..left(2 * GIB) };
    world.levels.observe_unused(world.now_ns, &uncertain);
    world.levels.observe_unused(world.now_ns, &uncertain);
    world.silent();
    let few = UnusedShared { unseen: 2, unseen_bytes: GIB, ..left(2 * GIB) };
    world.levels.observe_unused(world.now_ns, &few);
    world.levels.observe_unused(world.now_ns, &few);
    assert!(world.one(Verdict::Orphaned).contains("2 processes could not be looked at"));
    // What was left before memtrace is old news.
    let old = UnusedShared { new_bytes: 0, new_count: 0, ..left(2 * GIB) };
    world.levels.observe_unused(world.now_ns, &old);
    world.levels.observe_unused(world.now_ns, &old);
    world.silent();
}
