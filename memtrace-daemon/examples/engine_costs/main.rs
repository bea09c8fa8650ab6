//! What memtrace's user side costs, for `cargo xtask bench`: records a second through intake
//! and ledger on one core, the time of a snapshot, memory.
//!
//! Everything is synthetic and in this process: no root, no programs, no clock in the records.
//! Times stand beside the budgets of the design and fail nothing: they are those of whatever
//! machine this is. Memory is the same everywhere, and above a bar it fails.

mod held;
#[path = "../shared/memory.rs"]
mod memory;
mod replay;
mod world;

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use memory::mebibytes;
use memtrace_daemon::engine::Core;
use memtrace_daemon::intake::{Item, decode};
use memtrace_daemon::report::{self, Filter, Format};

use self::world::{Draft, PROCESSES, SITES, World, setting};

const USAGE: &str = "usage: engine_costs engine     records a second, live and from a recording, time of a snapshot and of
                               a dump in each format
       engine_costs memory     of 10,000 sites in 1,000 processes after days, and of the
                               kernel's maps; fails above its bars";

/// Records a second on one core.
const RATE_BUDGET: f64 = 5e6;
/// A dump of 10,000 sites.
const DUMP_BUDGET: Duration = Duration::from_secs(1);
/// How long each rate is measured; the fastest pass counts.
const MEASURE: Duration = Duration::from_secs(2);
/// Pictures that are painted; the fastest counts.
const PICTURES: u32 = 20;
/// Dumps that are written in each format; the fastest counts.
const DUMPS: u32 = 5;
/// Frames of the sites that are dumped.
const DEEP: usize = 30;

fn main() -> anyhow::Result<()> {
    // As the daemon has it.
    memtrace_daemon::heap::set_up();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["engine"] => engine(),
        ["memory"] => held::memory(),
        _ => bail!("{USAGE}"),
    }
}

fn engine() -> anyhow::Result<()> {
    let mut world = World::new();
    println!("intake and ledger, one core, books of {SITES} sites in {PROCESSES} processes");
    for (name, mut drafts) in [
        ("calls, allocation and free", world.calls()),
        ("kernel accounts", world.accounts()),
        ("kernel accounts with a stack", world.samples()),
    ] {
        let rate = rate(&mut world, &mut drafts)?;
        let ratio = rate / RATE_BUDGET;
        println!("  {name:32}{:8.2} million records/s   ×{ratio:.2} of 5", rate / 1e6);
    }
    let paint = fastest(PICTURES, || {
        black_box(world.core.snapshot(world.now_ns, &setting()));
    });
    println!("  {:32}{:8.1} ms", "a snapshot", milliseconds(paint));
    replay::replay()?;
    dumps(paint)
}

/// What a dump takes once everything has a name, in each format.
fn dumps(paint: Duration) -> anyhow::Result<()> {
    let world = World::with_frames(DEEP);
    let snapshot = world.core.snapshot(world.now_ns, &setting());
    println!("a dump of {SITES} sites of {DEEP} frames, into memory");
    for format in Format::ALL {
        let mut bytes = Vec::new();
        let mut result = Ok(());
        let time = fastest(DUMPS, || {
            bytes.clear();
            result = report::render(&snapshot, format, &Filter::default(), None, &mut bytes);
        });
        result.with_context(|| format!("a dump as {format}"))?;
        let ratio = (paint + time).as_secs_f64() / DUMP_BUDGET.as_secs_f64();
        println!(
            "  {:32}{:8.1} ms, {:.1} MiB; with the snapshot ×{ratio:.2} of 1 s",
            format!("as {format}"),
            milliseconds(time),
            mebibytes(bytes.len() as u64),
        );
    }
    Ok(())
}

/// Records a second of the fastest pass over some records.
fn rate(world: &mut World, drafts: &mut [Draft]) -> anyhow::Result<f64> {
    let start = Instant::now();
    let mut best = 0.0_f64;
    while start.elapsed() < MEASURE {
        let (records, bytes) = world.encoded(drafts);
        let begin = Instant::now();
        feed(&mut world.core, &bytes)?;
        best = best.max(f64::from(records) / begin.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Takes in records that lie one behind the other, each with its length.
fn feed(core: &mut Core, mut bytes: &[u8]) -> anyhow::Result<()> {
    while let Some(length) = bytes.get(size_of::<u32>()..2 * size_of::<u32>()) {
        let length = u32::from_ne_bytes(length.try_into()?);
        let (record, rest) = bytes.split_at(usize::try_from(length)?.min(bytes.len()));
        if let (_, Item::Record(record)) = decode(record).context("a record of our own")? {
            black_box(core.apply(&record));
        }
        bytes = rest;
    }
    Ok(())
}

fn fastest(times: u32, mut what: impl FnMut()) -> Duration {
    let once = |_| {
        let begin = Instant::now();
        what();
        begin.elapsed()
    };
    (0..times).map(once).min().unwrap_or_default()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
