//! How old what is live in the kernel is, as the kernel side tells it: messages that are kept move
//! through the classes of age all together, to the byte.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_common::{AGE_CLASSES, Account, AccountAgesRecord, AccountKey, Domain};
use memtrace_daemon::attach::options::Options;
use memtrace_daemon::attach::tracer::Tracer;
use memtrace_daemon::intake::recording::{Part, Recording};
use memtrace_daemon::record::Record;
use memtrace_tests::ipc::Left;
use memtrace_tests::memtrace::{self, LIMIT};
use memtrace_tests::process;
use memtrace_tests::scratch::Scratch;

const KERNEL: &str = env!("CARGO_BIN_EXE_fixture-kernel");
/// What the slab gives for a message of 1,000 bytes: 48 bytes of head, rounded up.
const SLAB: u64 = 2_048;
const MESSAGES: u64 = 1_000;
/// A window of a second: class 0 ends at 2^29 ns.
const AGE_SHIFT: u32 = 29;

type Key = (AccountKey, u64);
type Ages = HashMap<Key, Vec<AccountAgesRecord>>;
type Accounts = HashMap<Key, Account>;

/// What a recording says of ages, and the last state of each account.
fn told(file: &Path) -> Result<(Ages, Accounts)> {
    let mut recording = Recording::open(BufReader::new(File::open(file)?))?;
    let (mut ages, mut accounts) = (Ages::new(), Accounts::new());
    while let Some(part) = recording.next_part()? {
        match part {
            Part::Record(Record::AccountAges(told)) => {
                ages.entry((told.key, told.first_ns)).or_default().push(told);
            }
            Part::Record(Record::Account { account, .. }) => {
                accounts.insert((account.key, account.first_ns), account);
            }
            Part::Record(Record::KernelSample(sample)) => {
                accounts.insert((sample.account.key, sample.account.first_ns), sample.account);
            }
            _ => {}
        }
    }
    Ok((ages, accounts))
}

fn class(age_ns: u64) -> usize {
    let class = (age_ns >> AGE_SHIFT).checked_ilog2().map_or(0, |class| class as usize + 1);
    class.min(AGE_CLASSES - 1)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn kept_messages_move_through_the_classes_of_age_to_the_byte() -> Result<()> {
    let scratch = Scratch::new()?;
    let file = scratch.join("recording");
    let mut command = memtrace::command(["record", "--domains", "kernel", "-o"])?;
    let script = "\"$0\" keep \"$1\" 1000 && sleep 12";
    command.arg(&file).args(["--", "sh", "-c", script, KERNEL, &MESSAGES.to_string()]);
    command.env("MEMTRACE_TUNE_VERDICT", "window_seconds = 1\nmin_age_seconds = 1");
    let said = process::run(&mut command, LIMIT)?.expect_status(0)?;
    let _queues = Left::parse(&said.last_json()?)?;

    let (ages, accounts) = told(&file)?;
    let of_messages = |told: &AccountAgesRecord| told.bytes.iter().sum::<u64>() == MESSAGES * SLAB;
    let (key, told) = ages
        .iter()
        .find(|(_, told)| told.iter().any(of_messages))
        .with_context(|| format!("no account of {} bytes: {ages:#?}", MESSAGES * SLAB))?;
    let account = accounts.get(key).context("an account that nobody told of")?;
    // A scan that came while messages were sent saw a part of them.
    let whole: Vec<_> = told.iter().filter(|told| told.scanned_ns > account.last_ns).collect();
    // One a second, or fewer on a busy machine.
    ensure!(whole.len() >= 5, "in 12 s: {told:#?}");
    for told in &whole {
        let oldest = class(told.scanned_ns.saturating_sub(account.first_ns));
        let newest = class(told.scanned_ns.saturating_sub(account.last_ns));
        let sum: u64 = told.bytes[newest..=oldest].iter().sum();
        ensure!(sum == MESSAGES * SLAB, "classes {newest} to {oldest}: {told:?}");
        ensure!(of_messages(told), "nothing else is live there: {told:?}");
    }
    let classes = whole.iter().map(|told| class(told.scanned_ns.saturating_sub(account.first_ns)));
    let last = classes.max().unwrap_or(0);
    ensure!(last >= 4, "after 12 s what is kept is older than 4 s: {told:#?}");
    Ok(())
}

/// Live objects for the scan to walk over: as many as fit into the live map, but for what the
/// host does meanwhile.
const MANY: u64 = 400_000;

/// What this thread has run for.
fn ran() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec, which lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_scan_over_a_full_live_map_has_room_for_every_account_and_says_what_it_took() -> Result<()> {
    let options = Options::new(vec![Domain::Kernel], 2);
    let mut tracer = Tracer::load(&options)?;
    tracer.attach_kernel(&options)?;
    let many = MANY.to_string();
    let mut keeper = process::Running::start(Command::new(KERNEL).args(["keep", &many, "1"]))?;
    let _queues = Left::parse(&keeper.finish(LIMIT)?.expect_status(0)?.last_json()?)?;
    let mut scan = |min_bytes: u64| {
        let mut took = Vec::new();
        for _ in 0..5 {
            let before = ran();
            ensure!(tracer.scan_ages(min_bytes)? == 0, "an account found no room");
            took.push(ran() - before);
        }
        took.sort_unstable();
        Ok(took)
    };
    let (oldest, ages) = (scan(u64::MAX)?, scan(256 << 10)?);
    println!("scans of {MANY} objects: oldest alone {oldest:?}, with ages {ages:?}");
    Ok(())
}
