//! What the books hold once they are as large as they get: histories of every site, process and
//! service, all tiers and cohorts full; and the kernel's maps.

use anyhow::{Context, bail};
use memtrace_daemon::attach::memory::{BUDGET_BYTES, plan, possible_cpus, total_bytes};
use memtrace_daemon::attach::object::OBJECT;
use memtrace_daemon::attach::options::Sizes;

use crate::memory::{anonymous, mebibytes};
use crate::world::{PROCESSES, SITES, World, setting};

/// Anonymous memory of the daemon.
const ANONYMOUS_BAR: u64 = 64 << 20;
/// Of it: all histories together.
const HISTORIES_BAR: u64 = 40 << 20;

/// Live allocations of library functions, and what they may take on both sides together.
const LIVE_CALLS: u32 = 100_000;
const LIVE_CALLS_BAR: u64 = 32 << 20;

/// The map that holds them in the kernel.
const LIVE_MAP: &str = "mt_clive";

/// Prints what is held, and what the kernel's maps are planned to take.
///
/// # Errors
///
/// When something is above its bar.
pub fn memory() -> anyhow::Result<()> {
    // First: later on, freed memory would be used again.
    let live_calls = live_calls()?;
    let before = anonymous()?;
    let mut world = World::of_large_sites();
    let young = anonymous()?;
    let days = world.grow_old();
    let old = anonymous()?;
    // What is published, and the next one while readers still hold it.
    let pictures = [0, 1].map(|_| world.core.snapshot(world.now_ns, &setting()));
    let with_pictures = anonymous()?;
    println!(
        "anonymous memory, {SITES} sites in {PROCESSES} processes, after {days:.1} days in which \
         all of them were used"
    );
    let mut over = Vec::new();
    let mut row = |name: &str, bytes: u64, bar: Option<u64>| {
        print!("  {name:32}{:8.1} MiB", mebibytes(bytes));
        if let Some(bar) = bar {
            let word = if bytes <= bar { "holds" } else { "OVER" };
            print!("   ×{:.2} of {}, {word}", bytes as f64 / bar as f64, bar >> 20);
            if bytes > bar {
                let (took, bar) = (mebibytes(bytes), bar >> 20);
                over.push(format!("{name}: {took:.1} MiB, the bar is {bar} MiB"));
            }
        }
        println!();
    };
    row("books, names", young.saturating_sub(before), None);
    let subjects = world.core.watched();
    row("histories", old.saturating_sub(young), Some(HISTORIES_BAR));
    row("two snapshots", with_pictures.saturating_sub(old), None);
    row("this process", with_pictures, Some(ANONYMOUS_BAR));
    println!(
        "  {subjects} subjects have a history; symbols and the server take memory of their own"
    );
    drop(pictures);

    let cpus = possible_cpus()?;
    let plan = plan(OBJECT, &Sizes::default(), cpus)?;
    println!("kernel maps, {cpus} possible CPUs");
    let mut largest: Vec<_> = plan.iter().map(|map| (map.bytes(cpus), &map.name)).collect();
    largest.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    for (bytes, name) in largest.iter().take(6) {
        row(name, *bytes, None);
    }
    let held = plan.iter().find(|map| map.name == LIVE_MAP).context("no map of live calls")?;
    let name = format!("{LIVE_CALLS} live calls, both sides");
    row(&name, live_calls + held.bytes(cpus), Some(LIVE_CALLS_BAR));
    row("all maps", total_bytes(&plan, cpus), Some(BUDGET_BYTES));
    if !over.is_empty() {
        bail!("{}", over.join("; "));
    }
    Ok(())
}

/// What so many live calls of one process take in user space, beside the books of its sites.
fn live_calls() -> anyhow::Result<u64> {
    let mut world = World::new();
    let before = anonymous()?;
    world.hold(LIVE_CALLS);
    Ok(anonymous()?.saturating_sub(before))
}
