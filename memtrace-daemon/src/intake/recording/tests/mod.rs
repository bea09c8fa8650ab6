//! Recordings in memory and in files: exact, whole up to where they were cut off, and safe to
//! read whatever is in them.

mod any;

use std::io::{Read, Seek, SeekFrom, Write};

use proptest::prelude::*;

use super::format::{self, HEAD, Head, Kind, LONGEST};
use memtrace_common::Domain;

use super::{MAGIC, Part, Recorder, Recording, RecordingError, VERSION};
use crate::cli::recording::Header;
use crate::cli::replay::{Replay, Replayed};
use crate::engine::CoreConfig;
use crate::record::{Anchor, Observation, Record};
use crate::snapshot::HostInfo;

const HEADER: &[u8] = b"what a replay needs";
const START: usize = MAGIC.len() + 4;

fn anchor() -> Anchor {
    Anchor { monotonic_ns: 5, boot_ns: 6, wall: "2026-11-01T00:00:00Z".parse().unwrap() }
}

/// Records through a file, flushed after every so many.
fn recorded(records: &[Record], flush_every: usize, ended: bool) -> Vec<u8> {
    let mut file = tempfile::tempfile().unwrap();
    let (mut recorder, writing) = Recorder::start(file.try_clone().unwrap(), HEADER).unwrap();
    for (index, record) in records.iter().enumerate() {
        recorder.record(record);
        if (index + 1) % flush_every == 0 {
            recorder.flush();
        }
    }
    if ended {
        recorder.end(anchor());
    } else {
        recorder.flush();
        drop(recorder);
    }
    let written = writing.wait();
    assert!(written.failed.is_none());
    assert_eq!((written.records, written.missing), (records.len() as u64, 0));
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(written.bytes, bytes.len() as u64);
    bytes
}

/// What a replay is told, and how it ends.
#[derive(Debug)]
struct Told {
    records: Vec<String>,
    missing: Vec<(usize, u64)>,
    /// The last part, or what is wrong.
    last: Result<Part, RecordingError>,
}

fn told(bytes: &[u8]) -> Result<Told, RecordingError> {
    let mut recording = Recording::open(bytes)?;
    assert_eq!(recording.header(), HEADER);
    let (mut records, mut missing) = (Vec::new(), Vec::new());
    let last = loop {
        match recording.next_part() {
            Ok(Some(Part::Record(record))) => records.push(format!("{record:?}")),
            Ok(Some(Part::Gap(number))) => missing.push((records.len(), number)),
            Ok(Some(last)) => break Ok(last),
            Ok(None) => panic!("no end"),
            Err(error) => break Err(error),
        }
    };
    assert!(matches!(recording.next_part(), Ok(None)), "nothing comes after the last");
    Ok(Told { records, missing, last })
}

fn printed(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| format!("{record:?}")).collect()
}

fn ticks(number: u64) -> Vec<Record> {
    (0..number).map(|now_ns| Record::Tick { now_ns }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn records_come_back_as_they_were_and_in_order(
        records in prop::collection::vec(any::record(any::ALL), 0..40),
        flush_every in 1..50_usize,
    ) {
        let told = told(&recorded(&records, flush_every, true)).unwrap();
        prop_assert_eq!(told.records, printed(&records));
        prop_assert!(matches!(told.last, Ok(Part::End(end)) if end == anchor()));
    }

    #[test]
    fn any_bytes_are_a_recording_or_an_error(
        version in 0..3_u32,
        known in any::<bool>(),
        bytes in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut file = Vec::new();
        if known {
            file.extend_from_slice(&MAGIC);
            file.extend_from_slice(&version.to_le_bytes());
            format::write(Kind::Header, HEADER, &mut file);
        }
        // As bytes of a file, and as records in a frame whose checksums are right.
        let mut framed = file.clone();
        file.extend_from_slice(&bytes);
        format::write(Kind::Records, &bytes, &mut framed);
        format::write(Kind::End, &bytes, &mut framed);
        for file in [file, framed] {
            let _ = told(&file);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn records_that_no_kernel_sends_are_replayed_and_harm_nobody(
        records in prop::collection::vec(any::record(any::MODEST), 0..60),
    ) {
        let core = CoreConfig { domains: Domain::ALL.to_vec(), ..CoreConfig::default() };
        let host = HostInfo { name: "h".into(), kernel: "6".into(), arch: "x86_64".into() };
        let mut replay = Replay::new(Header::new(anchor(), host, core));
        for record in records {
            replay.take(Part::Record(record));
        }
        let Replayed { snapshot, .. } = replay.finish();
        prop_assert!(serde_json::to_string(&snapshot).is_ok());
    }
}

#[test]
fn every_kind_of_record_was_among_those() {
    // `any::record` names them all; this fails where a new one is missing there.
    let records = any::each();
    let told = told(&recorded(&records, 3, true)).unwrap();
    assert_eq!(told.records, printed(&records));
}

#[test]
fn a_recording_that_is_cut_off_anywhere_is_whole_up_to_there() {
    let records = any::each();
    let all = printed(&records);
    let bytes = recorded(&records, 1, true);
    let mut longest = 0;
    for length in 0..bytes.len() {
        match told(&bytes[..length]) {
            Ok(Told { records, missing, last: Ok(Part::CutOff(at)) }) => {
                assert_eq!(records, all[..records.len()]);
                assert!(missing.is_empty() && at <= length as u64);
                longest = longest.max(records.len());
            }
            Err(RecordingError::Empty) => assert_eq!(length, 0),
            Err(RecordingError::NoHeader) => {}
            other => panic!("{length}: {other:?}"),
        }
    }
    assert_eq!(longest, all.len(), "a cut behind the last record loses none");
}

#[test]
fn a_bit_that_flips_anywhere_is_noticed() {
    let records = ticks(8);
    let bytes = recorded(&records, 2, true);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            match told(&damaged) {
                Err(RecordingError::Foreign) => assert!(at < MAGIC.len()),
                Err(RecordingError::Version(_)) => assert!((MAGIC.len()..START).contains(&at)),
                Err(RecordingError::Damaged { at: frame, .. }) => assert!(frame <= at as u64),
                Ok(Told { records, last, .. }) => {
                    assert_eq!(records, printed(&ticks(8))[..records.len()]);
                    match last {
                        Err(RecordingError::Damaged { at: frame, .. }) => {
                            assert!(frame <= at as u64 && at as u64 <= frame + 200);
                        }
                        // A frame that is wrong and the last was not written as a whole.
                        Ok(Part::CutOff(frame)) => assert!(frame <= at as u64),
                        other => panic!("byte {at}, bit {bit}: {other:?}"),
                    }
                }
                other => panic!("byte {at}, bit {bit}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_frame_that_claims_too_much_is_refused() {
    for (stored, bytes) in [(u32::MAX, u32::MAX), (5, u32::MAX), (6, 5), (5, LONGEST as u32 + 1)] {
        let mut head = Vec::new();
        head.extend_from_slice(&stored.to_le_bytes());
        head.extend_from_slice(&bytes.to_le_bytes());
        head.extend_from_slice(&2_u32.to_le_bytes());
        head.extend_from_slice(&crc32fast::hash(&head).to_le_bytes());
        let read = Head::read(head.clone().try_into().unwrap());
        assert_eq!(read, Err("a frame is longer than any that memtrace writes"));
        let mut file = recorded(&ticks(2), 1, false);
        file.extend_from_slice(&head);
        let told = told(&file).unwrap();
        assert_eq!(told.records.len(), 2);
        let said = told.last.unwrap_err().to_string();
        let at = file.len() - HEAD;
        assert!(said.starts_with(&format!("it is damaged at byte {at}: ")), "{said}");
    }
}

#[test]
fn what_is_no_recording_is_told_as_what_it_is() {
    let said = |bytes: &[u8]| told(bytes).unwrap_err().to_string();
    assert_eq!(said(b""), "it is empty: nothing was recorded");
    assert_eq!(said(b"PK\x03\x04 an archive"), "it is no recording of memtrace");
    assert_eq!(said(b"\x89"), "it was cut off before its first record: nothing was recorded");
    let mut newer = recorded(&[], 1, true);
    newer[MAGIC.len()] = 9;
    assert!(said(&newer).starts_with("it is a recording of format 9, and this memtrace reads"));
}

#[test]
fn zeros_at_the_end_are_what_a_host_that_went_down_left() {
    let mut bytes = recorded(&ticks(3), 1, false);
    let whole = bytes.len() as u64;
    bytes.resize(bytes.len() + 10_000, 0);
    let told_of = told(&bytes).unwrap();
    assert_eq!(told_of.records.len(), 3);
    assert!(matches!(told_of.last, Ok(Part::CutOff(at)) if at == whole));
    bytes.push(1);
    assert!(matches!(told(&bytes).unwrap().last, Err(RecordingError::Damaged { .. })));
}

#[test]
fn what_follows_the_end_is_damage() {
    let mut bytes = recorded(&ticks(3), 1, true);
    bytes.push(0);
    let told = told(&bytes).unwrap();
    assert!(told.last.unwrap_err().to_string().ends_with("something follows the end"));
}

#[test]
fn a_crash_costs_no_more_than_what_was_not_flushed() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let (mut recorder, writing) = Recorder::start(file.reopen().unwrap(), HEADER).unwrap();
    ticks(10).iter().for_each(|record| recorder.record(record));
    recorder.flush();
    ticks(5).iter().for_each(|record| recorder.record(record));
    // The engine is gone without a word.
    drop(recorder);
    assert_eq!(writing.wait().records, 10);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(told(&bytes).unwrap().records, printed(&ticks(10)));
}

#[test]
fn what_nobody_writes_in_time_is_dropped_and_said_where_it_is_missing() {
    // A pipe that nobody reads: the thread stands in the middle of a write.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let file = std::fs::File::from(std::os::fd::OwnedFd::from(writer));
    let (mut recorder, writing) = Recorder::with_room(file, HEADER, 200_000).unwrap();
    let long = |id: u64| {
        // Does not get smaller: numbers without order.
        let numbers = (0..20_000_u64).map(|n| (n ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let observation = Observation::LiveIds { next_id: id, ids: numbers.collect() };
        Record::Observation { now_ns: id, observation }
    };
    let before = recorder.dropped();
    for id in 0..20 {
        recorder.record(&long(id));
        recorder.flush();
    }
    assert!(!before && recorder.dropped() && !recorder.dropped());
    let read = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    });
    recorder.end(anchor());
    let written = writing.wait();
    let bytes = read.join().unwrap();
    assert!(written.failed.is_none() && written.gaps > 0);
    assert_eq!(written.records + written.missing, 20);
    let told = told(&bytes).unwrap();
    assert_eq!(told.records.len() as u64, written.records);
    assert_eq!(told.missing.iter().map(|(_, number)| number).sum::<u64>(), written.missing);
    assert!(matches!(told.last, Ok(Part::End(_))));
}

#[test]
fn a_record_that_is_longer_than_any_frame_is_missing() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let (mut recorder, writing) = Recorder::start(file.reopen().unwrap(), HEADER).unwrap();
    recorder.record(&Record::Tick { now_ns: 1 });
    let ids = vec![u64::MAX; LONGEST / 20];
    let observation = Observation::LiveIds { next_id: 1, ids };
    recorder.record(&Record::Observation { now_ns: 2, observation });
    recorder.record(&Record::Tick { now_ns: 3 });
    recorder.end(anchor());
    let written = writing.wait();
    assert_eq!((written.records, written.missing, written.gaps), (2, 1, 1));
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(told(&bytes).unwrap().missing, [(1, 1)]);
}

#[test]
fn a_full_disk_ends_the_recording_and_nothing_else() {
    let mut full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    assert!(full.write_all(b"x").is_err());
    assert!(Recorder::start(full, HEADER).is_err());
    // A pipe whose reader leaves fails later than that.
    let (reader, writer) = std::io::pipe().unwrap();
    let file = std::fs::File::from(std::os::fd::OwnedFd::from(writer));
    let (mut recorder, mut writing) = Recorder::start(file, HEADER).unwrap();
    drop(reader);
    recorder.record(&Record::Tick { now_ns: 1 });
    recorder.flush();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(writing.failed());
    recorder.record(&Record::Tick { now_ns: 2 });
    recorder.end(anchor());
    assert!(writing.wait().failed.is_some());
}

#[test]
fn the_format_is_the_one_that_its_version_says() {
    assert_eq!(VERSION, 2);
    // What changes this makes recordings unreadable that exist: it is another version then.
    for record in any::each() {
        let bytes = postcard::to_stdvec(&record).unwrap();
        assert_eq!(bytes[0], any::number(&record), "{record:?}");
    }
    let fixed = postcard::to_stdvec(&any::each()[6]).unwrap();
    assert_eq!(fixed, [6, 7, 48, 1, 2, 3, 4, 5, 6, 7]);
}
