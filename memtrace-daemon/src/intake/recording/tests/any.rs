//! Records of every kind, with anything in them.

use std::sync::Arc;

use memtrace_common::bytemuck::{AnyBitPattern, Zeroable, cast_slice, pod_read_unaligned};
use memtrace_common::{
    Account, FreeRecord, KernelSampleRecord, Latency, LossCounter, MAX_KERNEL_FRAMES,
    MAX_USER_FRAMES, ProcessEntry, RecordHeader, Totals, TotalsKey,
};
use proptest::array::{uniform2, uniform4};
use proptest::prelude::*;

use crate::record::{
    Call, CgroupLimit, DeviceMemory, HostMemory, Observation, Parent, ProcessMemory, Record,
    StackKey, StackLabel, Stage, UnusedShared,
};
use crate::snapshot::{CoverageRow, Frame, FrameKind, Taken, TakenBy};

/// Which numbers: these bits of any.
pub(super) type Bits = u64;

/// Any numbers at all.
pub(super) const ALL: Bits = u64::MAX;
/// Numbers whose sums are numbers: times, bytes and counts that can be.
pub(super) const MODEST: Bits = (1 << 48) - 1;

fn number64(bits: Bits) -> impl Strategy<Value = u64> {
    any::<u64>().prop_map(move |number| number & bits)
}

/// Any value of a type that any bytes are a value of.
fn pod<T: AnyBitPattern + std::fmt::Debug>(bits: Bits) -> impl Strategy<Value = T> {
    prop::collection::vec(number64(bits), size_of::<T>().div_ceil(8))
        .prop_map(|words| pod_read_unaligned(&cast_slice::<u64, u8>(&words)[..size_of::<T>()]))
}

fn text() -> impl Strategy<Value = Option<Arc<str>>> {
    prop::option::of(".{0,20}".prop_map(Arc::from))
}

fn string() -> impl Strategy<Value = Option<String>> {
    prop::option::of(".{0,20}")
}

fn taken() -> impl Strategy<Value = Taken> {
    let by = prop_oneof![
        Just(TakenBy::Kernel),
        Just(TakenBy::Copy),
        Just(TakenBy::Walk),
        Just(TakenBy::FramePointers)
    ];
    (by, text()).prop_map(|(by, incomplete)| Taken { by, incomplete })
}

fn call(bits: Bits) -> impl Strategy<Value = Box<Call>> {
    let stage = prop_oneof![Just(Stage::Whole), Just(Stage::Pending), Just(Stage::Unwound)];
    let stack = prop::collection::vec(any::<u64>(), 0..20);
    (uniform4(number64(bits)), any::<[u32; 5]>(), stage, stack, taken()).prop_map(
        |(
            [time_ns, id, pointer, bytes],
            [space, function, tgid, tid, serial],
            stage,
            stack,
            taken,
        )| {
            let stack = stack.into();
            Box::new(Call {
                time_ns,
                id,
                pointer,
                bytes,
                space,
                function,
                tgid,
                tid,
                serial,
                stage,
                stack,
                taken,
            })
        },
    )
}

/// An account without the kernel side's own note of a scan, which is not recorded.
fn told(account: Account) -> Account {
    Account { age_row: 0, ..account }
}

fn sample(bits: Bits) -> impl Strategy<Value = Box<KernelSampleRecord>> {
    let kernel = prop::collection::vec(any::<u64>(), 0..=MAX_KERNEL_FRAMES);
    let user = prop::collection::vec(any::<u64>(), 0..=MAX_USER_FRAMES);
    (
        pod::<RecordHeader>(bits),
        pod(bits),
        (number64(bits), any::<u32>(), any::<u32>()),
        kernel,
        user,
    )
        .prop_map(|(header, account, (weight, tgid, tid), kernel, user)| {
            let mut sample = Box::new(KernelSampleRecord {
                header,
                account: told(account),
                weight,
                tgid,
                tid,
                kernel_frames: kernel.len() as u32,
                user_frames: user.len() as u32,
                ..KernelSampleRecord::zeroed()
            });
            sample.kernel[..kernel.len()].copy_from_slice(&kernel);
            sample.user[..user.len()].copy_from_slice(&user);
            sample
        })
}

fn frame() -> impl Strategy<Value = Frame> {
    let kind =
        prop_oneof![Just(FrameKind::Kernel), Just(FrameKind::Native), Just(FrameKind::Python)];
    let texts = (text(), text(), text(), text(), text());
    let numbers = any::<(Option<u64>, Option<u32>, bool, bool)>();
    (kind, texts, numbers).prop_map(
        |(kind, (symbol, module, build_id, file, reason), (offset, line, inlined, allocator))| {
            Frame { kind, symbol, module, build_id, offset, file, line, inlined, allocator, reason }
        },
    )
}

fn label() -> impl Strategy<Value = StackLabel> {
    let frames = prop::collection::vec(frame(), 0..6);
    let identity = prop::collection::vec(".{0,20}", 0..6);
    (any::<u64>(), frames, identity).prop_map(|(key, frames, identity)| StackLabel {
        key: StackKey(key),
        frames: frames.into(),
        identity: identity.into(),
    })
}

fn coverage() -> impl Strategy<Value = CoverageRow> {
    let words = prop::collection::vec(".{0,12}", 0..4);
    let by = prop_oneof![Just(None), Just(Some("uprobe_multi")), Just(Some("perf_event"))];
    let texts = (string(), string(), string(), string(), string());
    let at = prop::option::of(0..4_000_000_000_000_000_000_i128);
    let numbers = any::<(Option<u32>, bool)>();
    (any::<bool>(), texts, by, words.clone(), words, at, numbers).prop_map(
        |(library, (name, path, build_id, file, reason), by, functions, missing, at, numbers)| {
            CoverageRow {
                layers: functions.clone(),
                kind: if library { "library" } else { "process" },
                library: name,
                path,
                build_id,
                file,
                pid: numbers.0,
                attached: numbers.1,
                attached_at: at.map(|ns| jiff::Timestamp::from_nanosecond(ns).unwrap()),
                by,
                functions,
                missing,
                reason,
            }
        },
    )
}

fn observation(bits: Bits) -> impl Strategy<Value = Observation> {
    let facts =
        ((any::<u32>(), prop::option::of(number64(bits)), any::<bool>()), string(), string());
    prop_oneof![
        facts.prop_map(|((serial, rss_bytes, before_attach), cmdline, cgroup)| {
            Observation::ProcessFacts { serial, cmdline, cgroup, rss_bytes, before_attach }
        }),
        uniform4(number64(bits)).prop_map(
            |[total_bytes, available_bytes, slab_bytes, unreclaimable_bytes]| {
                Observation::Memory(HostMemory {
                    total_bytes,
                    available_bytes,
                    slab_bytes,
                    unreclaimable_bytes,
                    page_lists_bytes: (slab_bytes % 2 == 0).then_some(slab_bytes),
                    ..HostMemory::default()
                })
            }
        ),
        (any::<u32>(), uniform2(number64(bits)), string(), any::<bool>()).prop_map(
            |(serial, [anonymous_bytes, limit_bytes], text, known)| {
                let text = text.unwrap_or_default();
                Observation::ProcessMemory(ProcessMemory {
                    serial,
                    parent: known.then(|| Parent { tgid: serial, comm: text.clone() }),
                    anonymous_bytes,
                    huge_bytes: known.then_some(limit_bytes),
                    limit: Some(CgroupLimit { cgroup: text, limit_bytes, used_bytes: 1 }),
                    ..ProcessMemory::default()
                })
            }
        ),
        (number64(bits), prop::collection::vec(".{0,12}", 0..4)).prop_map(|(bytes, largest)| {
            Observation::UnusedShared(UnusedShared { bytes, largest, ..UnusedShared::default() })
        }),
        (
            (any::<u32>(), uniform2(number64(bits))),
            prop::option::of(number64(bits)),
            prop::collection::vec((any::<u32>(), number64(bits)), 0..4),
            prop::collection::vec(any::<u32>(), 0..2),
        )
            .prop_map(
                |((index, [total_bytes, used_bytes]), free_bytes, processes, gone)| {
                    let memory = DeviceMemory {
                        index,
                        total_bytes,
                        used_bytes,
                        free_bytes,
                        processes,
                        untold: gone.clone(),
                        unlisted: free_bytes.is_none(),
                        gone,
                    };
                    Observation::Device(memory)
                }
            ),
        any::<u32>().prop_map(|index| Observation::DeviceLost { index }),
        any::<bool>().prop_map(|stopped| Observation::Tracing { stopped }),
        prop::collection::vec(pod::<LossCounter>(bits), 0..12).prop_map(Observation::Loss),
        prop::collection::vec(coverage(), 0..4).prop_map(Observation::Coverage),
        prop::collection::vec((any::<u16>(), pod(bits)), 0..4).prop_map(Observation::Latency),
        (any::<u64>(), prop::collection::vec(any::<u64>(), 0..20))
            .prop_map(|(next_id, ids)| Observation::LiveIds { next_id, ids }),
    ]
}

/// Any record.
pub(super) fn record(bits: Bits) -> impl Strategy<Value = Record> {
    prop_oneof![
        (number64(bits), pod(bits)).prop_map(|(time_ns, entry)| Record::Process { time_ns, entry }),
        (number64(bits), pod(bits))
            .prop_map(|(time_ns, account)| Record::Account { time_ns, account: told(account) }),
        sample(bits).prop_map(Record::KernelSample),
        (number64(bits), pod(bits), pod(bits)).prop_map(|(time_ns, key, totals)| Record::Totals {
            time_ns,
            key,
            totals
        }),
        call(bits).prop_map(Record::Allocation),
        call(bits).prop_map(Record::Failure),
        pod(bits).prop_map(Record::Free),
        pod(bits).prop_map(Record::Duplicate),
        label().prop_map(Record::Stack),
        number64(bits).prop_map(|now_ns| Record::Tick { now_ns }),
        (number64(bits), observation(bits))
            .prop_map(|(now_ns, observation)| Record::Observation { now_ns, observation }),
        pod(bits).prop_map(Record::AccountAges),
    ]
}

/// A record's number in a recording. Names every kind and every observation: a new one has no
/// number, and belongs to the strategies above and to [`each`].
pub(super) fn number(record: &Record) -> u8 {
    match record {
        Record::Process { .. } => 0,
        Record::Account { .. } => 1,
        Record::KernelSample(_) => 2,
        Record::Totals { .. } => 3,
        Record::Allocation(_) => 4,
        Record::Failure(_) => 5,
        Record::Free(_) => 6,
        Record::Duplicate(_) => 7,
        Record::Stack(_) => 8,
        Record::Tick { .. } => 9,
        Record::Observation { observation, .. } => {
            match observation {
                Observation::ProcessFacts { .. }
                | Observation::Memory(_)
                | Observation::ProcessMemory(_)
                | Observation::UnusedShared(_)
                | Observation::Device(_)
                | Observation::DeviceLost { .. }
                | Observation::Tracing { .. }
                | Observation::Loss(_)
                | Observation::Coverage(_)
                | Observation::Latency(_)
                | Observation::LiveIds { .. } => {}
            }
            10
        }
        Record::AccountAges(_) => 11,
    }
}

/// One record of every kind, in the order of their numbers.
pub(super) fn each() -> Vec<Record> {
    let call = Call {
        time_ns: 1,
        id: 2,
        pointer: 3,
        bytes: 4,
        space: 5,
        function: 6,
        tgid: 7,
        tid: 8,
        serial: 9,
        stage: Stage::Unwound,
        stack: [0x7f00_0000_1234, 5].into(),
        taken: Taken { by: TakenBy::Copy, incomplete: Some("cut".into()) },
    };
    let label = StackLabel {
        key: StackKey(u64::MAX),
        frames: [Frame { symbol: Some("main".into()), ..Frame::default() }].into(),
        identity: ["a+1".to_owned()].into(),
    };
    let observations = [
        Observation::ProcessFacts {
            serial: 1,
            cmdline: Some("a b".into()),
            cgroup: None,
            rss_bytes: Some(7),
            before_attach: true,
        },
        Observation::Memory(HostMemory { total_bytes: u64::MAX, ..HostMemory::default() }),
        Observation::ProcessMemory(ProcessMemory { serial: 3, ..ProcessMemory::default() }),
        Observation::UnusedShared(UnusedShared { bytes: 4, ..UnusedShared::default() }),
        Observation::Device(DeviceMemory { processes: vec![(3, 4)], ..DeviceMemory::default() }),
        Observation::DeviceLost { index: 1 },
        Observation::Tracing { stopped: true },
        Observation::Loss(vec![LossCounter { count: 1, bytes: 2 }]),
        Observation::Coverage(vec![]),
        Observation::LiveIds { next_id: 9, ids: vec![1, 5] },
        Observation::Latency(vec![(3, Latency { sum_ns: 4, ..Latency::default() })]),
    ];
    let free = FreeRecord {
        header: RecordHeader { kind: 7, length: 48, time_ns: 1 },
        id: 2,
        bytes: 3,
        space: 4,
        function: 5,
        reason: 6,
        tid: 7,
    };
    let records = [
        Record::Process { time_ns: 1, entry: ProcessEntry::default() },
        Record::Account { time_ns: 2, account: Zeroable::zeroed() },
        Record::KernelSample(Box::new(Zeroable::zeroed())),
        Record::Totals { time_ns: 3, key: TotalsKey::default(), totals: Totals::default() },
        Record::Allocation(Box::new(call.clone())),
        Record::Failure(Box::new(call)),
        Record::Free(free),
        Record::Duplicate(Zeroable::zeroed()),
        Record::Stack(label),
        Record::Tick { now_ns: 4 },
    ];
    let now_ns = 5;
    let observed = observations.map(|observation| Record::Observation { now_ns, observation });
    let ages = Record::AccountAges(Zeroable::zeroed());
    records.into_iter().chain(observed).chain([ages]).collect()
}
