//! What history and judgement cost: 10,000 rows with an hour of history each.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use memtrace_common::{AGE_CLASSES, AccountKey, Amount, Context, Domain, KMALLOC};
use memtrace_daemon::ledger::{FoldedKey, FreedAges, RowKey, RowSample};
use memtrace_daemon::verdict::{RowFacts, Rule, Surroundings, VerdictConfig, Verdicts};

const ROWS: u64 = 10_000;
const SECOND: u64 = 1_000_000_000;

/// A row at a time: some grow, some hold, some swing.
fn sample(row: u64, now_ns: u64) -> RowSample<'static> {
    let second = now_ns / SECOND;
    let bytes = (8 << 20)
        + match row % 3 {
            0 => second * 4_096,
            1 => row * 512,
            _ => second * 7_919 % 101 * 65_536,
        };
    let count = second * 10 + 1;
    RowSample {
        key: RowKey::Account {
            serial: u32::try_from(row % 1_000 + 1).unwrap_or(1),
            context_and_function: AccountKey::pack(Context::Process, KMALLOC),
            call_site: 0xffff_ffff_8100_0000 + row,
            detail: 0,
        },
        domain: Domain::Kernel,
        owner: u32::try_from(row % 1_000 + 1).unwrap_or(1),
        service: FoldedKey::default(),
        owner_ended_ns: None,
        low_bytes: bytes,
        live: Amount { count: 100 + second / 10, bytes },
        allocated: Amount { count, bytes: count * 8_192 },
        freed: Amount { count: count / 2, bytes: count * 4_096 },
        ages: FreedAges::of([count / 2; AGE_CLASSES]),
        cohorts: None,
        live_ages: None,
        first_ns: SECOND,
        frozen: false,
    }
}

fn observe(verdicts: &mut Verdicts, now_ns: u64) {
    verdicts.observe(now_ns, Surroundings::default(), &mut |each| {
        for row in 0..ROWS {
            each(&sample(row, now_ns));
        }
    });
}

fn costs(criterion: &mut Criterion) {
    let mut verdicts = Verdicts::new(VerdictConfig::default());
    let mut now_ns = SECOND;
    for _ in 0..360 {
        now_ns += 10 * SECOND;
        observe(&mut verdicts, now_ns);
    }
    criterion.bench_function("append a tick, 10,000 rows (bar 10 ms)", |bencher| {
        bencher.iter(|| {
            now_ns += 1;
            observe(&mut verdicts, now_ns);
        });
    });
    criterion.bench_function("end a window, 10,000 rows (bar 500 ms)", |bencher| {
        bencher.iter(|| {
            now_ns += 10 * SECOND;
            observe(&mut verdicts, now_ns);
        });
    });
    let mut row = 0;
    criterion.bench_function("evaluate one row (bar 50 us)", |bencher| {
        bencher.iter(|| {
            row = (row + 1) % ROWS;
            let sample = sample(row, now_ns);
            let facts = RowFacts {
                now_ns,
                live_bytes: sample.live.bytes,
                allocated: sample.allocated,
                freed: sample.freed,
                first_ns: sample.first_ns,
                ..RowFacts::default()
            };
            black_box(verdicts.judge(&sample.key, &facts))
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = costs
}
criterion_main!(benches);
