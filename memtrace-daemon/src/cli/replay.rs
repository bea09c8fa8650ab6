//! `memtrace replay`: read a recording and report as if its last moment were now. Needs no
//! privilege and asks nothing of this host.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;

use anyhow::Context;
use jiff::Timestamp;

use super::{args::ReplayArgs, line::one_line, output::Output, recording::Header};
use crate::{
    engine::Core,
    human,
    intake::recording::{Part, Recording, RecordingError},
    record::{Anchor, Record},
    report::{self, Filter},
    snapshot::Snapshot,
};

/// Bytes read at a time.
const READ: usize = 256 << 10;

/// What a recording comes to.
#[derive(Debug)]
pub struct Replayed {
    /// The last moment.
    pub snapshot: Snapshot,
    /// Records that were replayed.
    pub records: u64,
    /// What a reader should know of the recording itself, a line each.
    pub notes: Vec<String>,
}

/// Reports on a recording.
///
/// # Errors
/// One line: what is wrong with the file, or that the report cannot be written.
pub fn replay(arguments: &ReplayArgs) -> anyhow::Result<()> {
    let ReplayArgs { file, output } = arguments;
    let mut out = Output::open(output.output.as_deref(), output.format)?;
    let Replayed { snapshot, records: _, notes } = replay_file(file)?;
    for note in notes {
        eprintln!("memtrace: {}: {}", one_line(&file.display().to_string()), one_line(&note));
    }
    let width = out.width();
    let written = report::render(&snapshot, output.format, &Filter::default(), width, &mut out)
        .and_then(|()| out.flush());
    Ok(out.finished(written)?)
}

/// Replays a file.
///
/// # Errors
/// One line: what is wrong with it.
pub fn replay_file(path: &Path) -> anyhow::Result<Replayed> {
    let what = || format!("cannot replay {}", path.display());
    let file = File::open(path).with_context(what)?;
    replay_from(BufReader::with_capacity(READ, file)).with_context(what)
}

/// Replays a file, and looks at each tick's picture on the way: once a second.
///
/// # Errors
/// One line: what is wrong with it.
pub fn watch_file(path: &Path, look: &mut dyn FnMut(&Snapshot)) -> anyhow::Result<Replayed> {
    let what = || format!("cannot replay {}", path.display());
    let file = File::open(path).with_context(what)?;
    watch_from(BufReader::with_capacity(READ, file), Some(look)).with_context(what)
}

/// Replays what is read.
///
/// # Errors
/// What is wrong with it.
pub fn replay_from(from: impl Read) -> Result<Replayed, RecordingError> {
    watch_from(from, None)
}

fn watch_from(
    from: impl Read,
    mut look: Option<&mut dyn FnMut(&Snapshot)>,
) -> Result<Replayed, RecordingError> {
    let mut recording = Recording::open(from)?;
    let header: Header = serde_json::from_slice(recording.header()).map_err(|error| {
        RecordingError::Damaged { at: 0, what: format!("its header is not understood: {error}") }
    })?;
    let mut replay = Replay::new(header);
    while let Some(part) = recording.next_part()? {
        let now_ns = match &part {
            Part::Record(Record::Tick { now_ns }) => Some(*now_ns),
            _ => None,
        };
        replay.take(part);
        if let (Some(look), Some(now_ns)) = (&mut look, now_ns) {
            look(&replay.picture(now_ns));
        }
    }
    Ok(replay.finish())
}

/// A replay under way.
pub(crate) struct Replay {
    header: Header,
    core: Core,
    records: u64,
    /// Monotonic ns of the last record.
    last_ns: u64,
    missing: u64,
    gaps: u64,
    first_gap: Option<Timestamp>,
    /// The clocks at the end, where recording was ended.
    end: Option<Anchor>,
    notes: Vec<String>,
}

impl Replay {
    pub(crate) fn new(mut header: Header) -> Self {
        // Whoever made the file, a window has a length.
        header.core.ledger.window_ns = header.core.ledger.window_ns.max(1);
        let mut notes = Vec::new();
        if header.memtrace != env!("CARGO_PKG_VERSION") {
            notes.push(format!(
                "memtrace {} recorded it; the verdicts are those of this version, {}",
                header.memtrace,
                env!("CARGO_PKG_VERSION")
            ));
        }
        Self {
            core: Core::new(header.core.clone()),
            records: 0,
            last_ns: header.anchor.monotonic_ns,
            missing: 0,
            gaps: 0,
            first_gap: None,
            end: None,
            notes,
            header,
        }
    }

    pub(crate) fn take(&mut self, part: Part) {
        match part {
            Part::Record(record) => {
                // What the books ask for then was done when it was recorded: the answers follow.
                drop(self.core.apply(&record));
                self.records += 1;
                self.last_ns = self.last_ns.max(time_ns(&record).unwrap_or(0));
            }
            Part::Gap(missing) => {
                self.core.missing(missing);
                self.missing = self.missing.saturating_add(missing);
                self.gaps += 1;
                self.first_gap.get_or_insert(self.header.anchor.wall_of_monotonic(self.last_ns));
            }
            Part::End(anchor) => self.end = Some(anchor),
            Part::CutOff(at) => self.notes.push(format!(
                "recording was not ended: this is the state after {}, at {}; what is whole of the \
                 file ends at byte {at}",
                human::counted(self.records, "record"),
                self.header.anchor.wall_of_monotonic(self.last_ns),
            )),
        }
    }

    /// The picture at a moment on the way, by the clocks of the beginning.
    fn picture(&self, now_ns: u64) -> Snapshot {
        self.core.snapshot(now_ns, &self.header.setting(self.header.anchor))
    }

    pub(crate) fn finish(self) -> Replayed {
        let Self { header, core, records, last_ns, missing, gaps, first_gap, end, mut notes } =
            self;
        let (now_ns, anchor) = end.map_or((last_ns, header.anchor), |end| (end.monotonic_ns, end));
        let snapshot = core.snapshot(now_ns, &header.setting(anchor));
        if let Some(first) = first_gap {
            notes.push(format!(
                "{} are missing, at {}, the first after {first}: the disk was too slow when it was \
                 recorded",
                human::counted(missing, "record"),
                human::counted(gaps, "place"),
            ));
        }
        Replayed { snapshot, records, notes }
    }
}

/// When a record is of, monotonic ns.
fn time_ns(record: &Record) -> Option<u64> {
    match record {
        Record::Process { time_ns, .. }
        | Record::Account { time_ns, .. }
        | Record::Totals { time_ns, .. } => Some(*time_ns),
        Record::KernelSample(sample) => Some(sample.header.time_ns),
        Record::Allocation(call) | Record::Failure(call) => Some(call.time_ns),
        Record::Free(free) => Some(free.header.time_ns),
        Record::Duplicate(duplicate) => Some(duplicate.header.time_ns),
        Record::Tick { now_ns } | Record::Observation { now_ns, .. } => Some(*now_ns),
        Record::AccountAges(ages) => Some(ages.header.time_ns),
        Record::Stack(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtrace_common::{
        Account, AccountKey, Amount, Context, KMALLOC, ProcessEntry, ProcessKey,
    };

    use crate::engine::CoreConfig;
    use crate::snapshot::{HostInfo, Loss, RECORDING_GAP, Verdict};

    const SECOND: u64 = 1_000_000_000;

    fn header() -> Header {
        let wall = "2026-11-01T00:00:00Z".parse().unwrap();
        let anchor = Anchor { monotonic_ns: 10 * SECOND, boot_ns: 0, wall };
        let host = HostInfo { name: "h".into(), kernel: "6".into(), arch: "x86_64".into() };
        Header::new(anchor, host, CoreConfig::default())
    }

    fn tick(second: u64) -> Part {
        Part::Record(Record::Tick { now_ns: second * SECOND })
    }

    #[test]
    fn what_is_missing_is_counted_and_said() {
        let mut replay = Replay::new(header());
        for part in [tick(11), Part::Gap(5), tick(12), Part::Gap(2), tick(13)] {
            replay.take(part);
        }
        let end = Anchor { monotonic_ns: 20 * SECOND, ..header().anchor };
        replay.take(Part::End(end));
        let Replayed { snapshot, records, notes } = replay.finish();
        assert_eq!(records, 3);
        assert_eq!(snapshot.loss[RECORDING_GAP], Loss { count: 7, bytes: None });
        // The clocks at the end are those of the last picture.
        assert_eq!(snapshot.generated_at, end.wall);
        assert_eq!(
            notes,
            ["7 records are missing, at 2 places, the first after 2026-11-01T00:00:01Z: the disk \
              was too slow when it was recorded"]
        );
    }

    #[test]
    fn a_recording_that_was_cut_off_says_until_when_it_tells() {
        let mut replay = Replay::new(Header { memtrace: "0.0.1".into(), ..header() });
        replay.take(tick(15));
        replay.take(Part::CutOff(99));
        let Replayed { snapshot, notes, .. } = replay.finish();
        assert!(!snapshot.loss.contains_key(RECORDING_GAP));
        assert_eq!(snapshot.generated_at, "2026-11-01T00:00:05Z".parse().unwrap());
        let [version, cut] = notes.as_slice() else { panic!("{notes:?}") };
        assert!(version.starts_with("memtrace 0.0.1 recorded it"), "{version}");
        assert_eq!(
            cut,
            "recording was not ended: this is the state after 1 record, at 2026-11-01T00:00:05Z; \
             what is whole of the file ends at byte 99"
        );
    }

    /// A site of the kernel that frees nothing for ten minutes, of which a hundred allocations a
    /// second are told, with a gap in the middle.
    fn with_a_gap(missing: u64) -> (Verdict, Option<f64>, Replayed) {
        let mut replay = Replay::new(header());
        let key = ProcessKey { tgid: 7, start_ns: 1, ..ProcessKey::default() };
        let entry = ProcessEntry { key, serial: 1, ..ProcessEntry::default() };
        let record = |record| Part::Record(record);
        replay.take(record(Record::Process { time_ns: 10 * SECOND, entry }));
        for second in 11..611 {
            let count = 100 * (second - 10);
            let taken = Amount { count, bytes: 1_000 * count };
            let account = Account {
                key: AccountKey {
                    call_site: 99,
                    detail: 0,
                    serial: 1,
                    context_and_function: AccountKey::pack(Context::Process, KMALLOC),
                },
                seen: taken,
                allocated: taken,
                first_ns: 11 * SECOND,
                last_ns: second * SECOND,
                ..Account::default()
            };
            replay.take(record(Record::Account { time_ns: second * SECOND, account }));
            if second == 300 && missing > 0 {
                replay.take(Part::Gap(missing));
            }
            replay.take(tick(second));
        }
        let replayed = replay.finish();
        let mut sites = replayed.snapshot.processes.iter().flat_map(|process| &process.sites);
        let site = sites.find(|site| site.live_bytes > 1 << 20).unwrap();
        (site.verdict, site.confidence, replayed)
    }

    #[test]
    fn a_gap_is_loss_and_makes_verdicts_less_sure() {
        let (verdict, sure, whole) = with_a_gap(0);
        assert_eq!(verdict, Verdict::Leak);
        assert!(!whole.snapshot.loss.contains_key(RECORDING_GAP));
        // 600 of 60,000 events, and a third.
        let (verdict, less_sure, gap) = with_a_gap(600);
        assert_eq!(verdict, Verdict::Leak);
        let (sure, less_sure) = (sure.unwrap(), less_sure.unwrap());
        assert!(less_sure < sure * 0.995 && less_sure > sure * 0.98, "{sure}, {less_sure}");
        assert_eq!(gap.snapshot.loss[RECORDING_GAP], Loss { count: 600, bytes: None });
        let (verdict, nothing, gap) = with_a_gap(30_000);
        assert_eq!((verdict, nothing), (Verdict::Unreliable, None));
        let finding = gap.snapshot.findings.iter().find(|one| one.verdict == verdict).unwrap();
        assert!(finding.decided_by.concat().contains("30000 events lost"), "{finding:?}");
    }
}
