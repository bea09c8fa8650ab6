//! What a recording takes: records a second from a file's bytes into the books, and bytes a record.

use std::hint::black_box;
use std::io::{Read, Seek};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use memtrace_daemon::host::clock;
use memtrace_daemon::intake::recording::{Part, Recorder, Recording};
use memtrace_daemon::intake::{Item, decode};
use memtrace_daemon::record::Record;
use rustix::time::{ClockId, clock_gettime};

use crate::world::{Draft, World};

/// Records a second on one core.
const RATE_BUDGET: f64 = 1e6;
/// Passes over the drafts that are recorded, a tick after each.
const PASSES: u32 = 40;
/// Replays; the fastest counts.
const REPLAYS: u32 = 10;
/// How long the thread that writes is left behind after a pass: it shares the CPU with this one.
const REST: Duration = Duration::from_millis(20);

/// Records each kind of stream, and replays it into books that know its sites.
pub fn replay() -> anyhow::Result<()> {
    println!("replay of a recording into the same books, one core");
    for (name, drafts) in [
        ("calls, allocation and free", World::calls as fn(&mut World) -> Vec<Draft>),
        ("kernel accounts", World::accounts),
        ("kernel accounts with a stack", World::samples),
    ] {
        let mut world = World::new();
        let mut drafts = drafts(&mut world);
        let (records, file, record_time) = record(&mut world, &mut drafts)?;
        let mut best = Duration::MAX;
        for _ in 0..REPLAYS {
            let mut world = World::new();
            let begin = processor_time()?;
            ensure!(feed(&mut world, &file)? == records, "records are missing");
            best = best.min(processor_time()?.saturating_sub(begin));
        }
        let rate = f64::from(records) / best.as_secs_f64();
        println!(
            "  {name:32}{:8.2} million records/s   ×{:.2} of 1, {}; {:.1} bytes a record; \
             recording costs the engine {:.0} ns a record",
            rate / 1e6,
            rate / RATE_BUDGET,
            if rate > RATE_BUDGET { "holds" } else { "BELOW" },
            file.len() as f64 / f64::from(records),
            record_time.as_secs_f64() * 1e9 / f64::from(records),
        );
    }
    Ok(())
}

/// Time on a CPU that this thread has had: what others do on a shared machine is not in it.
fn processor_time() -> anyhow::Result<Duration> {
    Ok(clock_gettime(ClockId::ThreadCPUTime).try_into()?)
}

/// The records of all passes, how many, and the time that handing them over took.
fn record(world: &mut World, drafts: &mut [Draft]) -> anyhow::Result<(u32, Vec<u8>, Duration)> {
    let mut file = tempfile::tempfile().context("a file for the recording")?;
    let (mut recorder, writing) = Recorder::start(file.try_clone()?, b"{}")?;
    let (mut records, mut time) = (0, Duration::ZERO);
    for _ in 0..PASSES {
        let (number, bytes) = world.encoded(drafts);
        let mut told = decoded(&bytes)?;
        told.push(Record::Tick { now_ns: world.now_ns });
        records += number + 1;
        let begin = Instant::now();
        told.iter().for_each(|record| recorder.record(record));
        recorder.flush();
        time += begin.elapsed();
        std::thread::sleep(REST);
    }
    recorder.end(clock::anchor());
    let written = writing.wait();
    ensure!(written.missing == 0, "{} records could not be written in time", written.missing);
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok((records, bytes, time))
}

/// Records that lie one behind the other, each with its length.
fn decoded(mut bytes: &[u8]) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    while let Some(length) = bytes.get(size_of::<u32>()..2 * size_of::<u32>()) {
        let length = u32::from_ne_bytes(length.try_into()?);
        let (record, rest) = bytes.split_at(usize::try_from(length)?.min(bytes.len()));
        match decode(record).context("a record of our own")? {
            (_, Item::Record(record)) => records.push(record),
            (_, Item::Copied(_)) => bail!("a walk is no copy"),
        }
        bytes = rest;
    }
    Ok(records)
}

/// Replays a recording; how many records it had.
fn feed(world: &mut World, file: &[u8]) -> anyhow::Result<u32> {
    let mut recording = Recording::open(file)?;
    let mut records = 0;
    while let Some(part) = recording.next_part()? {
        match part {
            Part::Record(record) => {
                black_box(world.core.apply(&record));
                records += 1;
            }
            Part::End(_) => {}
            other => bail!("{other:?}"),
        }
    }
    Ok(records)
}
