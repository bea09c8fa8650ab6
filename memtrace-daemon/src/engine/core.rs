//! The pure core: it owns the ledger, the verdicts and what is known of the host.

use std::collections::BTreeMap;

use jiff::Timestamp;
use memtrace_common::{Domain, FunctionId, Latency, RecordKind};

use super::host::HostFacts;
use crate::ledger::{Effects, Ledger, LedgerConfig};
use crate::record::{Anchor, Observation, RawStack, Record};
use crate::snapshot::{HostInfo, Snapshot, Verdict};
use crate::verdict::{
    DeviceLevels, HostLevels, Pools, ProcessLevels, Rule, Subject, Surroundings, Traffic,
    VerdictConfig, Verdicts,
};

/// What the core is asked to do.
#[derive(Clone, Debug, Default)]
pub struct CoreConfig {
    /// The domains that are on.
    pub domains: Vec<Domain>,
    /// Whether named slab caches are followed.
    pub named_caches: bool,
    /// Whether frees by kfree_rcu are seen.
    pub sees_rcu_frees: bool,
    /// Bounds of the books.
    pub ledger: LedgerConfig,
    /// Numbers of the verdict.
    pub verdict: VerdictConfig,
}

/// What a snapshot says beside the books.
#[derive(Clone, Debug)]
pub struct Setting {
    /// How the clocks lie to each other.
    pub anchor: Anchor,
    /// When the probes were attached.
    pub attached_at: Timestamp,
    /// The host.
    pub host: HostInfo,
}

/// The pure part of the engine.
#[derive(Debug)]
pub struct Core {
    pub(super) config: CoreConfig,
    pub(super) ledger: Ledger,
    pub(super) verdicts: Verdicts,
    pub(super) processes: ProcessLevels,
    pub(super) host_levels: HostLevels,
    pub(super) device_levels: DeviceLevels,
    pub(super) pools: Pools,
    pub(super) host: HostFacts,
    records: [u64; KINDS.len()],
    news: u64,
}

impl Core {
    /// Empty books.
    #[must_use]
    pub fn new(config: CoreConfig) -> Self {
        Self {
            ledger: Ledger::new(config.ledger.clone()),
            verdicts: Verdicts::new(config.verdict.clone()),
            processes: ProcessLevels::new(config.verdict.clone()),
            host_levels: HostLevels::new(config.verdict.clone()),
            device_levels: DeviceLevels::new(config.verdict.clone()),
            pools: Pools::new(config.verdict.clone()),
            host: HostFacts::default(),
            records: [0; KINDS.len()],
            news: 0,
            config,
        }
    }

    /// Takes one record in, and says what it asks for. Ticks (one a second) are what makes
    /// windows end and the ended be let go.
    pub fn apply(&mut self, record: &Record) -> Effects {
        if let Some(count) = self.records.get_mut(kind(record)) {
            *count += 1;
        }
        self.news += u64::from(is_news(record));
        let mut effects = Effects::default();
        self.ledger.apply(record, &mut effects);
        match record {
            Record::Observation { now_ns, observation } => {
                self.host.observe(*now_ns, observation, || self.ledger.host_terms());
                if let Observation::Tracing { stopped: false } = observation {
                    // What came and went meanwhile is in no history: all of them begin anew.
                    self.verdicts.begin_again();
                }
            }
            Record::Tick { now_ns } => {
                self.judge(*now_ns);
                self.look_at_pools(*now_ns);
            }
            _ => {}
        }
        self.measure(record);
        effects
    }

    /// Takes in that so many records are missing here, because a recording lacks them: they are
    /// lost events like all others, and make everything that is watched by now less sure.
    pub fn missing(&mut self, records: u64) {
        self.host.missing(records);
    }

    fn judge(&mut self, now_ns: u64) {
        let terms = self.ledger.host_terms();
        let kernel = terms.get(&Domain::Kernel).map_or(0, |terms| terms.seen.count);
        let all: u64 = terms.values().map(|terms| terms.seen.count).sum();
        let surroundings = Surroundings {
            kernel: Traffic { seen: kernel, lost: self.host.lost_of_kernel() },
            calls: Traffic { seen: all.saturating_sub(kernel), lost: self.host.lost_of_calls() },
            slab_growth_bytes: self.host.slab_growth_bytes(self.config.named_caches),
            kernel_growth_bytes: self.host.kernel_growth_bytes(&terms),
        };
        let Self { verdicts, ledger, .. } = self;
        verdicts.observe(now_ns, surroundings, &mut |each| ledger.sample_rows(each));
    }

    /// A picture of everything.
    #[must_use]
    pub fn snapshot(&self, now_ns: u64, setting: &Setting) -> Snapshot {
        super::picture::paint(self, now_ns, setting)
    }

    /// What the verdict says now of each row, process and service that it says anything about;
    /// cheaper than a picture.
    pub fn said(&self, each: &mut dyn FnMut(Subject, Verdict)) {
        self.verdicts.said(each);
    }

    /// How many rows, processes and services have a history.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.verdicts.watched()
    }

    /// Records that can change the books, so far. Where this stands still a picture differs
    /// from the one before by the host's memory and by ages only.
    #[must_use]
    pub const fn news(&self) -> u64 {
        self.news
    }

    /// Records consumed, by kind.
    pub(super) fn record_counts(&self) -> BTreeMap<&'static str, u64> {
        KINDS.into_iter().zip(self.records).collect()
    }

    /// The books.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Windows of the verdict that are over: with each the ages of what is live are wanted.
    #[must_use]
    pub const fn windows(&self) -> u64 {
        self.verdicts.windows()
    }

    /// Kernel accounts that hold less than this are not worth asking for ages, bytes.
    #[must_use]
    pub fn watch_bytes(&self) -> u64 {
        self.verdicts.watch_bytes(Domain::Kernel)
    }

    /// How long calls took, as was said last.
    pub(super) fn latency(&self) -> &[(FunctionId, Latency)] {
        &self.host.latency
    }

    /// Calls whose stacks are still to be unwound.
    #[must_use]
    pub fn awaited(&self) -> usize {
        self.ledger.awaited()
    }

    /// Calls whose stacks came after them, since the start.
    #[must_use]
    pub fn unwound(&self) -> u64 {
        self.ledger.unwound()
    }

    /// Stacks that were asked for and have no name yet, to be asked for again.
    pub fn unnamed(&self) -> impl Iterator<Item = &RawStack> {
        self.ledger.stacks().unnamed()
    }
}

/// Whether a record says more than that time has passed and how much memory the host has.
const fn is_news(record: &Record) -> bool {
    match record {
        Record::Tick { .. } | Record::AccountAges(_) => false,
        Record::Observation { observation, .. } => !matches!(
            observation,
            Observation::Memory(_)
                | Observation::ProcessMemory(_)
                | Observation::Device(_)
                | Observation::DeviceLost { .. }
                | Observation::Latency(_)
        ),
        _ => true,
    }
}

/// Names of the kinds of records in metrics, in the order of [`kind`].
const KINDS: [&str; 12] = [
    RecordKind::Process.name(),
    RecordKind::Account.name(),
    RecordKind::KernelSample.name(),
    RecordKind::Totals.name(),
    RecordKind::Allocation.name(),
    RecordKind::Failure.name(),
    RecordKind::Free.name(),
    RecordKind::Duplicate.name(),
    "stack",
    "tick",
    "observation",
    RecordKind::AccountAges.name(),
];

fn kind(record: &Record) -> usize {
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
        Record::Observation { .. } => 10,
        Record::AccountAges(_) => 11,
    }
}
