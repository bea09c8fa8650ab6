//! Rows of part A that rest on what the host observes: no call tells of this memory, so that it
//! is never called a leak.
//!
//! Beside it is traffic that is on the books. What is page-locked explains as much growth as has
//! come of it, on purpose: so none comes in the same process, and none that is registered where
//! something is to be said of the host.

use memtrace_common::Domain;
use memtrace_daemon::record::ProcessMemory;

use super::{Case, none};
use crate::expect::{BOUNDED, FRAGMENTATION, GROWING, ORPHANED, PLATEAU, STEADY, Target};
use crate::load::{Load, Shape};
use crate::stage::Stage;
use crate::workload::{Burst, Grows, Life, Noise, Sizes, Swell, Traffic};
use crate::world::{Kind, ProcessId, SiteId};

pub(super) const CASES: [Case; 10] = [
    none("A5", "grows and is swapped out, so that less and less is resident", a5),
    none("A7", "a driver keeps the page-locked memory of who has ended", a7),
    none("A7 steady", "a driver's pages swing, and all that comes has an owner", a7_steady),
    none("A7 pool", "a pool of huge pages is made larger, and nobody uses it", a7_pool),
    none("A7 rising", "a driver takes more and more pages for nobody", a7_rising),
    none("A11", "little is live and much is resident, of malloc's segment or of mappings", a11),
    none("A13", "huge pages come where nothing was allocated", a13),
    none("A14", "weights are read through mapped files, and evicted again", a14),
    none("A28", "shared memory that is not unlinked, and its maker ends", a28),
    none("A39", "threads that never end, or end and are never joined", a39),
];

/// A size of huge pages, bytes.
const HUGE: u64 = 2 << 20;

/// A process with so much memory at first, and with traffic that explains none of it.
fn process(stage: &mut Stage) -> (ProcessId, f64) {
    let process = stage.service();
    let bytes = stage.random().log_between(100e6, 4e9);
    change(stage, process, |memory| {
        memory.anonymous_bytes = bytes as u64;
        memory.virtual_bytes = memory.anonymous_bytes * 4;
    });
    for _ in 0..stage.random().whole(0, 3) {
        let kind = stage.random().pick(&[Kind::DEVICE, Kind::DRIVER, Kind::Kernel], Kind::DEVICE);
        let site = stage.site(process, kind);
        let traffic = stage.balanced(site);
        stage.play(traffic);
    }
    (process, bytes)
}

/// Another process of the host, with traffic of any kind.
fn neighbour(stage: &mut Stage) -> ProcessId {
    let process = stage.service();
    stage.others(process);
    process
}

/// Sets what a process has when watching begins.
fn change(stage: &mut Stage, process: ProcessId, how: impl FnOnce(&mut ProcessMemory)) {
    if let Some(memory) = stage.world.memory(process) {
        how(memory);
    }
}

/// Noise of so many bytes or less: a standard deviation.
fn noise(stage: &mut Stage, process: Option<ProcessId>, bytes: f64) {
    let bytes = bytes * stage.random().unit();
    stage.play(Noise { process, bytes, now: 0 });
}

/// So many bytes in steps, to the very end and not ever slower.
fn goes_on(stage: &mut Stage, bytes: f64, step: f64, grows: Grows) {
    let seconds = stage.seconds as f64;
    let random = stage.random();
    let shape = match random.whole(0, 4) {
        0 => Shape::Ramp {
            from: random.between(0.6, 1.0),
            to: random.between(1.0, 1.6),
            over: random.between(0.2, 1.0) * seconds,
        },
        1 => Shape::OnOff { on: random.between(5.0, 30.0), off: random.between(2.0, 15.0) },
        _ => Shape::Constant,
    };
    let load = Load { noise: random.between(0.0, 0.4), ..Load::of(shape) };
    stage.play(Swell { grows, rate: bytes / step / seconds, step: step as u64, load });
}

/// So many bytes in steps from one second to another.
fn comes(stage: &mut Stage, bytes: f64, step: u64, (from, until): (u64, u64), grows: Grows) {
    let seconds = until.saturating_sub(from).max(1) as f64;
    let load = Load::constant().from(from).until(until);
    stage.play(Swell { grows, rate: bytes / step as f64 / seconds, step, load });
}

/// Traffic of the heap of which about so many bytes are live.
fn heap(stage: &mut Stage, process: ProcessId, live: f64) {
    let site = stage.site(process, Kind::HEAP);
    let rate = stage.random().log_between(1.0, 4.0);
    let lives = stage.random().log_between(2.0, 10.0);
    let each = live / (rate * lives);
    let (sizes, life) = (around(each), Life::Exponential(lives));
    let load = Load::constant();
    stage.play(Traffic { site, rate, sizes, life, lost: 0.0, lost_from: 0, load });
    stage.label(site, BOUNDED);
}

fn around(bytes: f64) -> Sizes {
    Sizes::Log((bytes / 2.0) as u64, (bytes * 2.0) as u64)
}

/// Nothing is said of what is measured of a process.
fn silent(stage: &mut Stage, process: ProcessId) {
    for domain in [Domain::Heap, Domain::Mmap] {
        stage.label_of(Target::Measured(process, domain), STEADY);
    }
}

fn a5(stage: &mut Stage) {
    let seconds = stage.minutes(25.0, 60.0);
    let (service, first) = process(stage);
    let bytes = first * stage.random().between(1.0, 3.0) + 128e6;
    let steps = stage.random().log_between(400.0, 5_000.0);
    goes_on(stage, bytes, bytes / steps, Grows::Process(service, grow_into_swap));
    noise(stage, Some(service), bytes / 300.0);
    stage.label_in_words(Target::Measured(service, Domain::Heap), GROWING, "swapped out");
    stage.label_of(Target::Measured(service, Domain::Mmap), STEADY);
    // What is only swapped out does not grow.
    let other = neighbour(stage);
    let bytes = stage.random().between(20e6, 200e6);
    comes(stage, bytes, 1 << 20, (0, seconds), Grows::Process(other, swap_out));
    silent(stage, other);
}

fn grow_into_swap(memory: &mut ProcessMemory, count: u64, bytes: u64) {
    memory.virtual_bytes += bytes;
    memory.swap_bytes += bytes;
    swap_out(memory, count, bytes / 8);
}

fn swap_out(memory: &mut ProcessMemory, _: u64, bytes: u64) {
    let out = memory.anonymous_bytes.min(bytes);
    memory.anonymous_bytes -= out;
    memory.swap_bytes += out;
}

fn a7(stage: &mut Stage) {
    let seconds = stage.minutes(25.0, 60.0);
    let (owner, _) = process(stage);
    let (other, _) = process(stage);
    stage.world.ownerless.keeps_pinned = true;
    let site = pins(stage, owner, (10, 120));
    let end = stage.random().whole(300, seconds - 600);
    stage.end_at(end, owner);
    noise(stage, None, 8e6);
    stage.label_in_words(Target::Host, ORPHANED, "page-locked memory ended with their processes");
    // No process is blamed, neither who took it, while it runs, nor who still does.
    stage.label(site, STEADY);
    silent(stage, owner);
    silent(stage, other);
    // What a neighbour keeps page-locked explains nothing that is left over.
    if stage.random().chance(0.5) {
        let site = pins(stage, other, (90, 240));
        stage.label(site, STEADY);
    }
}

/// Page-locked memory that a process takes once and keeps: between which seconds it begins.
fn pins(stage: &mut Stage, process: ProcessId, (from, to): (u64, u64)) -> SiteId {
    let site = stage.site(process, Kind::PINNED);
    let count = stage.random().whole(4, 40);
    let bytes = stage.random().log_between(400e6, 16e9);
    let sizes = Sizes::Fixed((bytes / count as f64) as u64);
    let (first, over) = (stage.random().whole(from, to), stage.random().between(1.0, 30.0));
    let burst = Burst::new(site, (1.0, 1.0), count, sizes, Life::Ever);
    stage.play(Burst { first, bursts: 1, over, ..burst });
    site
}

fn a7_steady(stage: &mut Stage) {
    stage.minutes(25.0, 60.0);
    let (owner, first) = process(stage);
    // Half of what is worth a word on a host of this size.
    noise(stage, None, 128e6);
    pool(stage, Grows::Host(|ownerless, _, bytes| ownerless.huge_used_bytes += bytes));
    // Memory that it has already is registered for a while, again and again.
    let site = stage.site(owner, Kind::REGISTERED);
    let random = stage.random();
    let count = random.whole(4, 40);
    let bytes = first * random.between(0.3, 0.9);
    let every = random.between(120.0, 300.0);
    let life = Life::Fixed(every * random.between(0.3, 0.6));
    let sizes = Sizes::Fixed((bytes / count as f64) as u64);
    let burst = Burst::new(site, (every, every * 1.2), count, sizes, life);
    stage.play(Burst { first: 60, ..burst });
    stage.label_of(Target::Host, STEADY);
    silent(stage, owner);
}

/// A pool of huge pages is made larger.
fn pool(stage: &mut Stage, grows: Grows) {
    let bytes = stage.random().log_between(0.6e9, 8e9);
    let from = stage.random().whole(120, 600);
    let until = from + stage.random().whole(5, 50);
    comes(stage, bytes, HUGE, (from, until), grows);
}

fn a7_pool(stage: &mut Stage) {
    stage.minutes(25.0, 60.0);
    let (other, _) = process(stage);
    pool(stage, Grows::Host(|ownerless, _, bytes| ownerless.huge_bytes += bytes));
    noise(stage, None, 8e6);
    stage.label_in_words(Target::Host, PLATEAU, "huge pages that nobody uses");
    silent(stage, other);
}

fn a7_rising(stage: &mut Stage) {
    stage.minutes(25.0, 60.0);
    let (other, _) = process(stage);
    let bytes = stage.random().log_between(4e9, 40e9);
    let steps = stage.random().log_between(400.0, 5_000.0);
    let grows = Grows::Host(|ownerless, _, bytes| ownerless.driver_bytes += bytes);
    goes_on(stage, bytes, bytes / steps, grows);
    noise(stage, None, 8e6);
    stage.label_in_words(Target::Host, GROWING, "belong to no process");
    silent(stage, other);
}

fn a11(stage: &mut Stage) {
    let seconds = stage.minutes(25.0, 60.0) as f64;
    stage.domains = vec![Domain::Heap];
    let (service, first) = process(stage);
    let segment = stage.random().chance(0.5);
    if !segment {
        stage.domains.push(Domain::Mmap);
    }
    change(stage, service, |memory| memory.brk_bytes = segment.then_some(1 << 20));
    let bytes = first * stage.random().between(1.0, 3.0) + 128e6;
    // Each round takes blocks and gives back all but a few; their pages stay.
    let until = seconds * stage.random().between(0.4, 0.8);
    let every = stage.random().between(5.0, 30.0);
    let each = bytes * every / until;
    comes(stage, bytes, each as u64, (0, until as u64), Grows::Process(service, leave_holes));
    let site = stage.site(service, Kind::HEAP);
    let life = Life::Fixed(stage.random().between(0.5, 4.0));
    let sizes = Sizes::Fixed((each / 64.0) as u64);
    stage.play(Burst::new(site, (every, every * 1.2), 64, sizes, life));
    noise(stage, Some(service), bytes / 500.0);
    let target = Target::Measured(service, Domain::Heap);
    stage.label_in_words(target, FRAGMENTATION, "live allocations by");
    stage.label_of(Target::Measured(service, Domain::Mmap), STEADY);
    stage.label(site, BOUNDED);
    let live = bytes * stage.random().between(0.005, 0.03);
    heap(stage, service, live);
    neighbour(stage);
}

fn leave_holes(memory: &mut ProcessMemory, _: u64, bytes: u64) {
    memory.anonymous_bytes += bytes;
    memory.virtual_bytes += bytes;
    memory.brk_bytes = memory.brk_bytes.map(|brk| brk + bytes);
}

fn a13(stage: &mut Stage) {
    let seconds = stage.minutes(20.0, 50.0);
    stage.domains = vec![Domain::Heap, Domain::Mmap];
    let (service, first) = process(stage);
    change(stage, service, |memory| memory.huge_bytes = Some(0));
    let bytes = first * stage.random().between(0.5, 2.0) + 64e6;
    let from = stage.random().whole(30, seconds / 4);
    let until = from + stage.random().whole(20, seconds / 2);
    comes(stage, bytes, HUGE, (from, until), Grows::Process(service, put_together));
    noise(stage, Some(service), bytes / 500.0);
    let target = Target::Measured(service, Domain::Heap);
    stage.label_in_words(target, FRAGMENTATION, "AnonHugePages");
    stage.label_of(Target::Measured(service, Domain::Mmap), STEADY);
    let live = bytes * stage.random().between(0.005, 0.03);
    heap(stage, service, live);
    neighbour(stage);
}

fn put_together(memory: &mut ProcessMemory, _: u64, bytes: u64) {
    memory.anonymous_bytes += bytes;
    memory.huge_bytes = memory.huge_bytes.map(|huge| huge + bytes);
}

fn a14(stage: &mut Stage) {
    let seconds = stage.minutes(20.0, 50.0);
    let traced = stage.random().chance(0.5);
    if traced {
        stage.domains = vec![Domain::Heap, Domain::Mmap];
    }
    let (service, _) = process(stage);
    let bytes = stage.random().log_between(0.3e9, 60e9);
    let step = stage.random().log_between(1e6, 16e6);
    let from = stage.random().whole(0, seconds / 4);
    let until = from + stage.random().whole(20, seconds - from);
    // Mapped whole when it starts, or file after file.
    let whole = stage.random().chance(0.5);
    let grow: fn(&mut ProcessMemory, u64, u64) = if whole { read } else { map_and_read };
    let mapped = if whole { (bytes * 1.5) as u64 } else { 0 };
    change(stage, service, |memory| memory.virtual_bytes += mapped);
    comes(stage, bytes, step as u64, (from, until), Grows::Process(service, grow));
    noise(stage, Some(service), 3e6);
    silent(stage, service);
    stage.label_of(Target::Host, STEADY);
    if traced {
        let live = stage.random().log_between(20e3, 500e3);
        heap(stage, service, live);
    }
    neighbour(stage);
    // The kernel may take their pages again, when all are read or as fast as others are: they
    // stay mapped.
    let evicted = bytes * stage.random().between(0.3, 1.0);
    let lag = ((until - from) as f64 * stage.random().between(0.15, 0.5)) as u64;
    let (evicted, when) = match stage.random().whole(0, 4) {
        0 | 1 => return,
        2 => (evicted, (until + 10, seconds)),
        _ => (bytes, (from + lag, until + lag)),
    };
    comes(stage, evicted, step as u64, when, Grows::Evicted(service));
}

fn read(memory: &mut ProcessMemory, _: u64, bytes: u64) {
    memory.file_bytes += bytes;
}

fn map_and_read(memory: &mut ProcessMemory, count: u64, bytes: u64) {
    memory.virtual_bytes += bytes;
    read(memory, count, bytes);
}

fn a28(stage: &mut Stage) {
    let seconds = stage.minutes(30.0, 60.0);
    let (maker, _) = process(stage);
    let bytes = stage.random().log_between(150e6, 8e9);
    let from = stage.random().whole(20, 120);
    let until = from + stage.random().whole(5, 240);
    comes(stage, bytes, 1 << 20, (from, until), Grows::Process(maker, share));
    // Nobody asks often why shared memory grew while somebody has it mapped.
    let end = stage.random().whole(420, seconds - 600);
    stage.end_at(end, maker);
    let words = "shared memory of ended processes";
    stage.label_in_words(Target::Host, ORPHANED, words);
    // A store that its owner goes on using.
    let (owner, _) = process(stage);
    let store = stage.random().log_between(50e6, 8e9) as u64;
    change(stage, owner, |memory| share(memory, 1, store));
    silent(stage, owner);
}

fn share(memory: &mut ProcessMemory, _: u64, bytes: u64) {
    memory.shared_bytes += bytes;
    memory.virtual_bytes += bytes;
}

fn a39(stage: &mut Stage) {
    stage.minutes(25.0, 60.0);
    let (service, _) = process(stage);
    let random = stage.random();
    let run = random.chance(0.5);
    // Below 1 GiB nothing but the number of threads is worth a word.
    let (stack, bytes) = if run && random.chance(0.5) {
        (random.pick(&[0.25, 0.5, 1.0], 1.0), random.log_between(0.6e9, 1e9))
    } else {
        (random.pick(&[1.0, 2.0, 8.0, 16.0], 8.0), random.log_between(8e9, 64e9))
    };
    let grow: fn(&mut ProcessMemory, u64, u64) = if run { start } else { start_and_end };
    let words = match run {
        true => "more threads than at first",
        false => "threads that ended and were never joined",
    };
    goes_on(stage, bytes, stack * f64::from(1 << 20), Grows::Process(service, grow));
    noise(stage, Some(service), 3e6);
    stage.label_in_words(Target::Measured(service, Domain::Mmap), GROWING, words);
    let other = neighbour(stage);
    silent(stage, other);
}

fn start(memory: &mut ProcessMemory, count: u64, bytes: u64) {
    let more = u32::try_from(count).unwrap_or(u32::MAX);
    memory.threads = memory.threads.saturating_add(more);
    start_and_end(memory, count, bytes);
}

/// Of its stack a thread has used a few pages.
fn start_and_end(memory: &mut ProcessMemory, count: u64, bytes: u64) {
    memory.virtual_bytes += bytes;
    memory.anonymous_bytes += count * (12 << 10);
}
