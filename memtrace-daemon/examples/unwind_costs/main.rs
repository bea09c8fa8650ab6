//! What unwinding copied stacks costs, for `cargo xtask bench`: time for a stack of 30 frames
//! whose rules are known, and whose rules are not; memory with 200 processes that map
//! libraries of 1 GiB.
//!
//! The libraries are made up and their code is never run; the stacks are as they would be.

mod large;
#[path = "../shared/memory.rs"]
mod memory;

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use memory::{anonymous, mebibytes};
use memtrace_daemon::record::{Registers, StackCopy};
use memtrace_daemon::stacks::unwind::own::OwnSpace;
use memtrace_daemon::stacks::unwind::{Unwinder, Unwound};

use self::large::{FRAME, FUNCTIONS, Library};

/// Frames of a stack.
const DEPTH: u64 = 30;
/// Libraries, 1 GiB each.
const LIBRARIES: usize = 8;
/// Processes that map them all.
const PROCESSES: usize = 200;
/// Different stacks in each process.
const STACKS: u64 = 200;
/// How long the warm time is measured; the fastest batch counts.
const MEASURE: Duration = Duration::from_secs(1);
/// A stack whose code is known.
const WARM_BUDGET: Duration = Duration::from_micros(50);
/// What rules and indexes may take of the daemon's 64 MiB.
const MEMORY_BUDGET: u64 = 16 << 20;
/// Unwindings a batch.
const BATCH: u32 = 100;

fn main() -> anyhow::Result<()> {
    let libraries = (0..LIBRARIES).map(|_| large::map()).collect::<anyhow::Result<Vec<_>>>()?;
    let space = OwnSpace::new().context("reading our own mappings")?;
    let warm = warm(libraries.first().context("no library")?.first, &space)?;
    let (cold, memory) = many(&libraries, &space)?;
    let stacks = PROCESSES as u64 * STACKS;
    println!(
        "unwinding copied stacks of {DEPTH} frames, {PROCESSES} processes that map {LIBRARIES} \
         libraries of 1 GiB"
    );
    let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
    let ratio = warm.as_secs_f64() / WARM_BUDGET.as_secs_f64();
    println!("  {:32}{:8.2} µs   ×{ratio:.2} of 50", "code that is known", microseconds(warm));
    println!("  {:32}{:8.2} µs", format!("{stacks} different stacks, each"), microseconds(cold));
    println!("  {:32}{:8.1} MiB", "anonymous memory", mebibytes(memory.anonymous));
    println!(
        "  {:32}{:8.1} MiB, {} rules",
        "of which it counts",
        mebibytes(memory.kept as u64),
        memory.rules
    );
    ensure!(warm <= WARM_BUDGET, "unwinding takes longer than its budget");
    ensure!(memory.anonymous <= MEMORY_BUDGET, "rules take more than their budget");
    Ok(())
}

/// The fastest time for a stack that was unwound before.
fn warm(first: u64, space: &OwnSpace) -> anyhow::Result<Duration> {
    let (mut unwinder, mut space) = (Unwinder::new(), space.clone());
    let copy = copy(first, &mut 1);
    check(&unwinder.unwind(&copy, &mut space))?;
    let (start, mut best) = (Instant::now(), Duration::MAX);
    while start.elapsed() < MEASURE {
        let begin = Instant::now();
        for _ in 0..BATCH {
            std::hint::black_box(unwinder.unwind(&copy, &mut space));
        }
        best = best.min(begin.elapsed() / BATCH);
    }
    Ok(best)
}

struct Memory {
    /// Growth of this process' anonymous memory, bytes.
    anonymous: u64,
    /// What the unwinder says it keeps, bytes.
    kept: usize,
    rules: usize,
}

/// All processes' stacks, each in another library than the one before: the mean time of one,
/// and the most memory at any time.
fn many(libraries: &[Library], space: &OwnSpace) -> anyhow::Result<(Duration, Memory)> {
    let mut spaces = vec![space.clone(); PROCESSES];
    let mut unwinder = Unwinder::new();
    let mut seed = 2;
    let before = anonymous()?;
    let mut memory = Memory { anonymous: 0, kept: 0, rules: 0 };
    let (mut spent, mut count) = (Duration::ZERO, 0_u32);
    for _ in 0..STACKS {
        for (space, library) in spaces.iter_mut().zip(libraries.iter().cycle()) {
            let copy = copy(library.first, &mut seed);
            let begin = Instant::now();
            let unwound = unwinder.unwind(&copy, space);
            spent += begin.elapsed();
            count += 1;
            check(&unwound)?;
        }
        let sizes = unwinder.sizes();
        memory.anonymous = memory.anonymous.max(anonymous()?.saturating_sub(before));
        memory.kept = memory.kept.max(sizes.bytes);
        memory.rules = memory.rules.max(sizes.rules);
    }
    Ok((spent / count, memory))
}

/// A stack of functions chosen at random; the last one is the outermost.
fn copy(first: u64, seed: &mut u64) -> StackCopy {
    let mut function = || {
        // Knuth's linear congruential generator.
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        large::return_address(first, (*seed >> 33) % (FUNCTIONS - 1))
    };
    let rip = function();
    let mut bytes = Vec::with_capacity(DEPTH as usize * FRAME);
    for depth in 1..DEPTH {
        let outer = large::return_address(first, FUNCTIONS - 1);
        let address = if depth == DEPTH - 1 { outer } else { function() };
        bytes.resize(bytes.len() + FRAME - 8, 0);
        bytes.extend(address.to_le_bytes());
    }
    StackCopy {
        registers: Registers { rip, rsp: 0x7ffc_0000_1000, ..Registers::default() },
        slots: Default::default(),
        exec_pages: 0,
        whole: true,
        missing: 0,
        bytes: bytes.into(),
    }
}

fn check(unwound: &Unwound) -> anyhow::Result<()> {
    let depth = unwound.addresses.len();
    ensure!(unwound.incomplete.is_none(), "{:?} after {depth} frames", unwound.incomplete);
    ensure!(depth as u64 == DEPTH, "{depth} frames");
    Ok(())
}
