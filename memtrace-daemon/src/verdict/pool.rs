//! What PyTorch's pool holds beside what its live tensors take: the pool caches, or it is
//! fragmented. That tensors are kept is for their own sites to say.
//!
//! A caching allocator never gives back by itself, so that its cudaMallocs alone look like a leak
//! whenever it grows. The tensors inside tell: what they took at most at a time explains the pool;
//! what it grew by beyond that, again and again, is memory in pieces that nothing fits into.

use rustc_hash::FxHashMap;

use super::measured::Said;
use super::{Judgement, VerdictConfig};
use crate::human::bytes;
use crate::snapshot::{Evidence, Pool, Verdict};

/// What is not explained is nobody's concern below this, bytes: a pool takes 20 MiB for a tensor of
/// 1 MiB, and has one pool for each stream and size.
const WORTH_BYTES: u64 = 64 << 20;
/// A share of what tensors took that splitting blocks costs any pool.
const USUAL: u64 = 4;
/// So often it must have grown beyond what explains it: once or twice may be another stream.
const STEPS: u32 = 3;
/// Growth of what is not explained below this is no step, bytes: the smallest segment.
const STEP_BYTES: u64 = 2 << 20;

/// Where growth of a pool's own calls is said.
const KEEPS: &str = "PyTorch's pool keeps what it took: the sites of domain torch say whether \
                     tensors are kept";

/// What the books have of a process' pool at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolBooks {
    /// Its address space: after an exec another program is looked at.
    pub space: u32,
    /// Device memory that the pool took and has not given back, bytes.
    pub held_bytes: u64,
    /// Live tensors, bytes.
    pub tensor_bytes: u64,
    /// Live tensors.
    pub tensors: u64,
    /// What they take with rounding, bytes, and the most that this ever was.
    pub rounded_bytes: u64,
    /// See `rounded_bytes`.
    pub most_bytes: u64,
    /// Whether all its tensors are on the books, those from its start included.
    pub whole: bool,
}

impl PoolBooks {
    /// As a picture shows it.
    #[must_use]
    pub const fn pool(&self) -> Pool {
        let Self { space: _, held_bytes, tensor_bytes, tensors, rounded_bytes: _, .. } = *self;
        Pool {
            held_bytes,
            tensor_bytes,
            tensors,
            most_bytes: self.most_bytes,
            cached_bytes: held_bytes.saturating_sub(tensor_bytes),
            whole: self.whole,
        }
    }
}

/// What is known of one pool.
#[derive(Debug)]
struct Known {
    first: PoolBooks,
    first_ns: u64,
    now: PoolBooks,
    /// The most that was not explained, how often it rose, and in which window last.
    highest: u64,
    steps: u32,
    window: u64,
    /// Since when too much is not explained.
    above_ns: Option<u64>,
    /// Since when that is said.
    said_ns: Option<u64>,
}

impl Known {
    fn new(now_ns: u64, now: PoolBooks) -> Self {
        // Of one whose whole life is on the books, all is explained by it.
        let first = if now.whole {
            PoolBooks { space: now.space, whole: true, ..PoolBooks::default() }
        } else {
            now
        };
        Self {
            first,
            first_ns: now_ns,
            now,
            highest: 0,
            steps: 0,
            window: 0,
            above_ns: None,
            said_ns: None,
        }
    }

    fn grown(&self) -> u64 {
        self.now.held_bytes.saturating_sub(self.first.held_bytes)
    }

    /// What tensors need at most of that.
    fn explained(&self) -> u64 {
        self.now.most_bytes.saturating_sub(self.first.rounded_bytes)
    }

    fn gap(&self) -> u64 {
        self.grown().saturating_sub(self.explained())
    }

    fn observe(&mut self, config: &VerdictConfig, now_ns: u64, now: PoolBooks) {
        self.now = now;
        let (gap, window) = (self.gap(), now_ns / config.window_ns().max(1));
        if gap < self.highest / 2 {
            // It gave back.
            (self.highest, self.steps) = (gap, 0);
        } else if gap >= self.highest.saturating_add(STEP_BYTES) && window != self.window {
            (self.highest, self.window) = (gap, window);
            self.steps = self.steps.saturating_add(1);
        }
        let worth = WORTH_BYTES.max(config.min_bytes).max(self.explained() / USUAL);
        if gap < worth || self.steps < STEPS {
            (self.above_ns, self.said_ns) = (None, None);
            return;
        }
        let since_ns = *self.above_ns.get_or_insert(now_ns);
        let patience_ns = config.window_ns().saturating_mul(u64::from(config.plateau_windows));
        if now_ns.saturating_sub(since_ns) >= patience_ns {
            self.said_ns.get_or_insert(now_ns);
        }
    }

    fn words(&self) -> String {
        let Pool { held_bytes, tensor_bytes, cached_bytes, whole, .. } = self.now.pool();
        let from_before = if whole { "" } else { " that were made since the probes came" };
        format!(
            "PyTorch's pool holds {}, live tensors{from_before} {}: torch.cuda.empty_cache() would \
             give back up to {}",
            bytes(held_bytes),
            bytes(tensor_bytes),
            bytes(cached_bytes)
        )
    }

    fn fragmentation(&self, config: &VerdictConfig, now_ns: u64) -> Option<Judgement> {
        let since_ns = self.said_ns?;
        let (grown, explained) = (self.grown(), self.explained());
        let evidence = Evidence {
            floor_first_bytes: Some(self.first.held_bytes),
            floor_last_bytes: Some(self.now.held_bytes),
            window_seconds: config.window_seconds as f32,
            explained_ratio: Some(explained.min(grown) as f32 / grown.max(1) as f32),
            new_maxima: self.steps,
            watched_seconds: Evidence::seconds(now_ns.saturating_sub(self.first_ns)),
            ..Evidence::default()
        };
        let decided_by = vec![
            format!(
                "PyTorch's pool grew by {}, its tensors never took more than {} of that at a time: \
                 what they gave back is in pieces that new ones do not fit into",
                bytes(grown),
                bytes(explained)
            ),
            format!(
                "it grew beyond its tensors in {} windows; it is not the tensors that are kept",
                self.steps
            ),
            self.words(),
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets the pool grow segments instead \
             of taking new ones; sizes in few steps (padded batches) reuse what was given back"
                .to_owned(),
        ];
        Some(Judgement {
            verdict: Verdict::Fragmentation,
            confidence: Some(if self.now.whole { 0.9 } else { 0.7 }),
            growth_bytes_per_second: None,
            since_ns,
            evidence,
            decided_by,
        })
    }
}

/// All pools that tensors are booked in.
#[derive(Debug)]
pub struct Pools {
    config: VerdictConfig,
    all: FxHashMap<u32, Known>,
}

impl Pools {
    /// None yet.
    #[must_use]
    pub fn new(config: VerdictConfig) -> Self {
        Self { config, all: FxHashMap::default() }
    }

    /// Takes a look at the pool of a running process, by its serial.
    pub fn observe(&mut self, now_ns: u64, serial: u32, now: PoolBooks) {
        let config = &self.config;
        match self.all.get_mut(&serial) {
            Some(known) if known.now.space == now.space => known.observe(config, now_ns, now),
            _ => {
                let mut known = Known::new(now_ns, now);
                known.observe(config, now_ns, now);
                self.all.insert(serial, known);
            }
        }
    }

    /// Forgets all but these.
    pub fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        self.all.retain(|serial, _| keep(*serial));
    }

    /// What the pool's own calls are to be said of: growth of them is no leak, whatever it looks
    /// like, because a pool keeps what it took.
    pub fn temper(&self, serial: u32, judgement: &mut Judgement) {
        let Some(known) = self.all.get(&serial) else { return };
        match judgement.verdict {
            Verdict::Leak | Verdict::Growing | Verdict::Plateau => {}
            _ => return,
        }
        judgement.decided_by.push(known.words());
        if judgement.verdict != Verdict::Plateau {
            judgement.verdict = Verdict::Growing;
            judgement.decided_by.push(KEEPS.to_owned());
        }
    }

    /// The same of a service, by the serials of its processes.
    pub fn temper_service(&self, serials: impl Iterator<Item = u32>, judgement: &mut Judgement) {
        let mut serials = serials;
        if judgement.verdict == Verdict::Leak && serials.any(|one| self.all.contains_key(&one)) {
            judgement.verdict = Verdict::Growing;
            judgement.decided_by.push(KEEPS.to_owned());
        }
    }

    /// What is said now, in no particular order.
    pub fn said(&self, now_ns: u64, each: &mut dyn FnMut(Said)) {
        for (serial, known) in &self.all {
            if let Some(judgement) = known.fragmentation(&self.config, now_ns) {
                each(Said { serial: Some(*serial), gone: None, domain: "cuda", judgement });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    /// A pool, looked at each second.
    struct World {
        pools: Pools,
        now_ns: u64,
        books: PoolBooks,
    }

    impl World {
        fn new(whole: bool) -> Self {
            let pools = Pools::new(VerdictConfig::default());
            let books = PoolBooks { space: 3, whole, ..PoolBooks::default() };
            Self { pools, now_ns: 1_000 * SECOND, books }
        }

        fn seconds(&mut self, seconds: u64, mut each: impl FnMut(&mut PoolBooks, u64)) {
            for second in 0..seconds {
                each(&mut self.books, second);
                self.books.rounded_bytes = self.books.tensor_bytes + 512 * self.books.tensors;
                self.books.most_bytes = self.books.most_bytes.max(self.books.rounded_bytes);
                self.pools.observe(self.now_ns, 7, self.books);
                self.now_ns += SECOND;
            }
        }

        fn said(&self) -> Vec<Said> {
            let mut all = Vec::new();
            self.pools.said(self.now_ns, &mut |said| all.push(said));
            all
        }

        fn tempered(&self, verdict: Verdict) -> Judgement {
            let mut judgement = Judgement { verdict, ..Judgement::default() };
            self.pools.temper(7, &mut judgement);
            judgement
        }
    }

    #[test]
    fn a_pool_that_grows_with_its_tensors_is_not_fragmented() {
        let mut world = World::new(true);
        world.seconds(3_600, |books, _| {
            books.tensors += 4;
            books.tensor_bytes += 2 * MIB;
            books.held_bytes = books.tensor_bytes + books.tensor_bytes / 8;
        });
        assert!(world.said().is_empty(), "{:?}", world.said());
        let words = world.tempered(Verdict::Leak);
        assert_eq!(words.verdict, Verdict::Growing);
        assert!(words.decided_by[0].contains("holds 7.9 GiB, live tensors 7.0 GiB"), "{words:?}");
        assert!(words.decided_by[1].contains("domain torch"), "{words:?}");
    }

    #[test]
    fn a_pool_that_keeps_what_a_request_needed_caches() {
        let mut world = World::new(true);
        world.seconds(600, |books, second| {
            books.tensor_bytes = if second == 100 { 4_096 * MIB } else { 512 * MIB };
            books.held_bytes = if second >= 100 { 4_300 * MIB } else { 600 * MIB };
        });
        assert!(world.said().is_empty(), "{:?}", world.said());
        let pool = world.books.pool();
        assert_eq!((pool.cached_bytes, pool.most_bytes), ((4_300 - 512) * MIB, 4_096 * MIB));
        let words = world.tempered(Verdict::Plateau);
        assert_eq!(words.verdict, Verdict::Plateau);
        assert!(words.decided_by[0].contains("empty_cache() would give back up to 3.7 GiB"));
        assert_eq!(world.tempered(Verdict::Steady).decided_by, Vec::<String>::new());
    }

    #[test]
    fn a_pool_that_grows_while_its_tensors_are_flat_is_fragmented() {
        for whole in [true, false] {
            let mut world = World::new(whole);
            world.seconds(600, |books, second| {
                books.tensors = 100;
                books.tensor_bytes = 1_024 * MIB;
                books.held_bytes = 1_100 * MIB + second / 30 * 64 * MIB;
            });
            let [said] = &world.said()[..] else { panic!("{:?}", world.said()) };
            assert_eq!((said.serial, said.domain), (Some(7), "cuda"));
            let judgement = &said.judgement;
            assert_eq!(judgement.verdict, Verdict::Fragmentation);
            let words = judgement.decided_by.join("; ");
            assert!(words.contains("pieces that new ones do not fit into"), "{words}");
            assert!(words.contains("expandable_segments"), "{words}");
            // What gives back ends it.
            world.seconds(60, |books, _| books.held_bytes = 1_100 * MIB);
            assert!(world.said().is_empty());
        }
    }

    #[test]
    fn one_step_beyond_the_tensors_is_another_stream() {
        let mut world = World::new(true);
        world.seconds(900, |books, second| {
            books.tensor_bytes = 256 * MIB;
            books.held_bytes = if second < 300 { 300 * MIB } else { 600 * MIB };
        });
        assert!(world.said().is_empty(), "{:?}", world.said());
    }

    #[test]
    fn tensors_from_before_explain_themselves() {
        let mut world = World::new(false);
        world.books.held_bytes = 20_000 * MIB;
        world.seconds(900, |books, second| {
            books.tensors = second;
            books.tensor_bytes = second * MIB;
        });
        assert!(world.said().is_empty(), "{:?}", world.said());
        let words = world.tempered(Verdict::Growing).decided_by.join("; ");
        assert!(words.contains("since the probes came"), "{words}");
    }

    #[test]
    fn another_program_is_another_pool() {
        let mut world = World::new(true);
        world.seconds(600, |books, second| books.held_bytes = second * 8 * MIB);
        assert_eq!(world.said().len(), 1);
        world.books.space = 4;
        world.seconds(10, |_, _| {});
        assert!(world.said().is_empty());
        for (serials, verdict) in [([6, 7], Verdict::Growing), ([5, 6], Verdict::Leak)] {
            let mut judgement = Judgement { verdict: Verdict::Leak, ..Judgement::default() };
            world.pools.temper_service(serials.into_iter(), &mut judgement);
            assert_eq!(judgement.verdict, verdict);
        }
        world.pools.retain(|_| false);
        assert!(world.tempered(Verdict::Leak).decided_by.is_empty());
    }
}
