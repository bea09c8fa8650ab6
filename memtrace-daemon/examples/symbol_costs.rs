//! What naming costs, for `cargo xtask bench`: 200 processes that map files as large as
//! libtorch, some the same and some their own: the anonymous memory that all symbol caches took
//! at most and in the end, the time of the first names, and the time of 10,000 addresses once
//! they are known.
//!
//! Arguments: a folder (/tmp) and a number of processes (200). The files are generated (sparse,
//! 1 GB each) in the folder for the time of the run; the processes are mapping events. Needs
//! 1 GB of disk, no root, and an optimised build if the times are to mean anything.

#[path = "shared/memory.rs"]
mod memory;

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use memory::{anonymous, mebibytes};
use memtrace_common::{Step, StepKey};
use memtrace_daemon::record::{RawStack, StackKey, StackOrigin};
use memtrace_daemon::snapshot::Taken;
use memtrace_daemon::stacks::{Mapping, Stacks, StacksOptions, StepSink};

/// Addresses that are asked for a second time.
const WARM: u64 = 10_000;
/// Frames of a stack.
const FRAMES: u64 = 25;
/// Bytes of code of every generated function.
const FUNCTION: u64 = 64;
/// Size of every file.
const SIZE: u64 = 1 << 30;
/// Files that are one process' in eight, each with a table of 12 MB.
const OWN: u32 = 25;
/// Addresses that were named before.
const WARM_BUDGET: Duration = Duration::from_secs(1);
/// What names may take of the daemon's 64 MiB, beside 16 MiB for unwinding.
const MEMORY_BUDGET: u64 = 48 << 20;
/// Ids that no process has.
const FIRST_ID: u32 = 0x4000_0000;
const BASE: u64 = 0x7f00_0000_0000;

/// Nothing is unwound here.
struct NoSteps;

impl StepSink for NoSteps {
    fn put(&mut self, _: StepKey, _: Step) -> bool {
        true
    }

    fn remove(&mut self, _: StepKey) {}
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().unwrap_or_else(|| "/tmp".into()))
        .join(format!("memtrace-symbol-costs-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let processes = arguments.next().map_or(Ok(200), |number| number.parse())?;
    let result = measure(&folder, processes);
    std::fs::remove_dir_all(&folder)?;
    result
}

fn measure(folder: &Path, processes: u32) -> anyhow::Result<()> {
    // Beyond what gets an index; with debug information; and many of the processes' own.
    let huge = generate(&folder.join("libhuge.so"), &Tables::of(4_400_000)?, 0)?;
    let debug = generate(&folder.join("libdebug.so"), &Tables::of(1_000_000)?, 10_000)?;
    let tables = Tables::of(500_000)?;
    let own: Vec<_> = (0..OWN)
        .map(|number| generate(&folder.join(format!("libown{number}.so")), &tables, 0))
        .collect::<anyhow::Result<_>>()?;
    drop(tables);
    #[cfg(target_env = "gnu")]
    // SAFETY: gives free memory back to the system, so that it hides none; always allowed.
    unsafe {
        libc::malloc_trim(0);
    }
    let (send, labels) = channel();
    // An unoptimised build takes its time; what it takes of memory is the same.
    let options = StacksOptions { deadline: Duration::from_secs(120), ..StacksOptions::default() };
    let deliver = move |label| send.send(label).is_ok();
    let stacks = Stacks::start(options, deliver, drop, Box::new(NoSteps))?;
    let watch = Watch::start()?;
    for process in 0..processes {
        let own = own.iter().cycle().nth(process as usize).context("no files")?;
        let files = [&huge, &debug, own];
        for (file, base) in files.into_iter().zip([BASE, BASE + SIZE, BASE + 2 * SIZE]) {
            stacks.mapping(&mapping(FIRST_ID + process, file, base)?);
        }
    }
    // The same 60 places of the huge file, and places of their own in the others.
    let address = |process: u32, frame: u64| {
        let own = u64::from(process) * FRAMES + frame;
        match frame {
            0..3 => BASE + (own % 60) * 70_000 * FUNCTION + 9,
            3..14 => BASE + SIZE + own * 190 * FUNCTION + 9,
            _ => BASE + 2 * SIZE + own * 99 * FUNCTION + 9,
        }
    };
    let mut frames = 0_usize;
    let mut name = |process: u32, key: u64, addresses: Vec<u64>| -> anyhow::Result<()> {
        let (tgid, space) = (FIRST_ID + process, process + 1);
        let origin = StackOrigin::User { tgid, serial: space, space };
        let taken = Taken::default();
        let stack = RawStack { key: StackKey(key), origin, addresses: addresses.into(), taken };
        stacks.request(stack).ok().context("the queue is full")?;
        let label = labels.recv_timeout(Duration::from_secs(240))?;
        let nameless = label.frames.iter().find(|frame| frame.symbol.is_none());
        ensure!(nameless.is_none(), "{nameless:?}");
        frames += label.frames.len();
        Ok(())
    };
    let start = Instant::now();
    for process in 0..processes {
        let addresses = (0..FRAMES).map(|frame| address(process, frame)).collect();
        name(process, u64::from(process), addresses)?;
    }
    let cold = start.elapsed();
    let places: Vec<u64> = (0..WARM).map(|n| BASE + SIZE + (n * 90 + 7) * FUNCTION + 9).collect();
    let mut all = |first: u64| -> anyhow::Result<Duration> {
        let start = Instant::now();
        for (number, addresses) in (first..).zip(places.chunks(FRAMES as usize)) {
            name(0, number, addresses.to_vec())?;
        }
        Ok(start.elapsed())
    };
    let (first, second) = (all(1 << 20)?, all(2 << 20)?);
    let before = watch.before;
    let (peak, settled) = watch.end()?;
    println!("naming stacks of {processes} processes that map {} files of 1 GiB", OWN + 2);
    let seconds = |what: &str, time: Duration| println!("  {what:32}{:8.2} s", time.as_secs_f64());
    seconds(&format!("{frames} frames, all new"), cold);
    seconds(&format!("{WARM} addresses of one, new"), first);
    seconds("the same once more", second);
    let row = |what: &str, bytes: u64| println!("  {what:32}{:8.1} MiB", mebibytes(bytes));
    row("anonymous memory before", before);
    row("at most", peak);
    row("afterwards", settled);
    ensure!(second <= WARM_BUDGET, "naming takes longer than its budget");
    ensure!(peak.saturating_sub(before) <= MEMORY_BUDGET, "names take more than their budget");
    Ok(())
}

fn mapping(tgid: u32, path: &Path, start: u64) -> anyhow::Result<Mapping> {
    let metadata = path.metadata()?;
    let device = metadata.dev();
    Ok(Mapping {
        tgid,
        start,
        length: SIZE,
        page_offset: 0,
        device: (rustix::fs::major(device), rustix::fs::minor(device)),
        inode: metadata.ino(),
        path: path.as_os_str().as_bytes().to_vec(),
    })
}

/// Watches how much anonymous memory we have, beside everything else.
struct Watch {
    before: u64,
    peak: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
}

impl Watch {
    fn start() -> anyhow::Result<Self> {
        let before = anonymous()?;
        let (peak, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, end) = (Arc::clone(&peak), Arc::clone(&done));
        std::thread::spawn(move || {
            while !end.load(Relaxed) {
                seen.fetch_max(anonymous().unwrap_or(0), Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Ok(Self { before, peak, done })
    }

    /// The most, and what it is now.
    fn end(self) -> anyhow::Result<(u64, u64)> {
        self.done.store(true, Relaxed);
        let peak = self.peak.load(Relaxed);
        Ok((peak, anonymous()?))
    }
}

/// The symbols and the names of so many functions.
struct Tables {
    symbols: Vec<u8>,
    names: Vec<u8>,
}

impl Tables {
    fn of(functions: u64) -> anyhow::Result<Self> {
        let (mut symbols, mut names) = (vec![0; 24], vec![0]);
        for number in 0..functions {
            symbols.extend(u32::try_from(names.len())?.to_le_bytes());
            symbols.extend([0x12, 0, 1, 0]);
            // Not in order, as linkers write them.
            symbols.extend((number * 7_919 % functions * FUNCTION).to_le_bytes());
            symbols.extend(FUNCTION.to_le_bytes());
            writeln!(names, "function_of_a_name_of_some_length_{number:06x}")?;
            if let Some(last) = names.last_mut() {
                *last = 0;
            }
        }
        Ok(Self { symbols, names })
    }
}

/// Writes a sparse library with these functions, and debug information in `units` units, of
/// 100 functions each.
fn generate(path: &Path, tables: &Tables, units: u64) -> anyhow::Result<PathBuf> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let symbols = 600 << 20;
    out.seek(SeekFrom::Start(symbols))?;
    out.write_all(&tables.symbols)?;
    let strings = out.stream_position()?;
    out.write_all(&tables.names)?;
    let info = out.stream_position()?.next_multiple_of(8);
    out.seek(SeekFrom::Start(info))?;
    for unit in 0..units {
        out.write_all(&debug_unit(unit * 100))?;
    }
    let abbreviations = out.stream_position()?;
    // A unit with code, and a function with a name and code.
    out.write_all(&[
        1, 0x11, 1, 0x11, 1, 0x12, 7, 0, 0, 2, 0x2e, 0, 3, 8, 0x11, 1, 0x12, 7, 0, 0, 0,
    ])?;
    let names = out.stream_position()?;
    let texts = b"\0.symtab\0.strtab\0.debug_info\0.debug_abbrev\0.shstrtab\0";
    out.write_all(texts)?;
    let headers = out.stream_position()?.next_multiple_of(8);
    out.seek(SeekFrom::Start(headers))?;
    let ranges = [
        (0, 0, 0, 0),
        (1, 2, symbols, strings),
        (9, 3, strings, info),
        (17, 1, info, abbreviations),
        (29, 1, abbreviations, names),
        (43, 3, names, names + texts.len() as u64),
    ];
    for (name, kind, start, end) in ranges {
        let mut header = [0_u8; 64];
        header[..4].copy_from_slice(&u32::to_le_bytes(name));
        header[4..8].copy_from_slice(&u32::to_le_bytes(kind));
        header[24..32].copy_from_slice(&u64::to_le_bytes(start));
        header[32..40].copy_from_slice(&(end - start).to_le_bytes());
        header[40] = if kind == 2 { 2 } else { 0 };
        out.write_all(&header)?;
    }
    out.seek(SeekFrom::Start(0))?;
    let mut header = [0_u8; 64 + 56];
    header[..8].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]);
    header[16..20].copy_from_slice(&[3, 0, 62, 0]);
    header[20] = 1;
    header[32] = 64;
    header[40..48].copy_from_slice(&headers.to_le_bytes());
    header[52..64].copy_from_slice(&[64, 0, 56, 0, 1, 0, 64, 0, 6, 0, 5, 0]);
    header[64..72].copy_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]);
    header[96..104].copy_from_slice(&symbols.to_le_bytes());
    header[104..112].copy_from_slice(&symbols.to_le_bytes());
    out.write_all(&header)?;
    out.into_inner()?.set_len(SIZE)?;
    Ok(path.to_owned())
}

/// A unit of 100 functions, from this one on.
fn debug_unit(first: u64) -> Vec<u8> {
    let mut unit = vec![4, 0, 0, 0, 0, 0, 8, 1];
    unit.extend((first * FUNCTION).to_le_bytes());
    unit.extend((100 * FUNCTION).to_le_bytes());
    for number in first..first + 100 {
        unit.push(2);
        unit.extend(format!("_ZN4unit8functionEi{number}\0").into_bytes());
        unit.extend((number * FUNCTION).to_le_bytes());
        unit.extend(FUNCTION.to_le_bytes());
    }
    unit.push(0);
    let length = unit.len() as u32;
    [&length.to_le_bytes()[..], &unit].concat()
}
