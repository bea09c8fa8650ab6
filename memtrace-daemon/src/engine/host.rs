//! What is known of the host, as observed. It decides nothing.

use std::collections::BTreeMap;

use memtrace_common::{Domain, FunctionId, Latency, LossCause, LossCounter};

use crate::record::{CgroupLimit, DeviceMemory, Observation};
use crate::snapshot::{CoverageRow, Loss, RECORDING_GAP, STOPPED, Terms};

/// Growth below this says nothing about what share of it is explained, bytes.
const WORTH_EXPLAINING: u64 = 1 << 20;

/// The latest observations, and the first of each kind that growth is measured from.
#[derive(Debug, Default)]
pub(super) struct HostFacts {
    slab: Option<Gauge>,
    unreclaimable: Option<Gauge>,
    pub(super) available_bytes: Option<u64>,
    pub(super) devices: BTreeMap<u32, Device>,
    /// What limits running processes most, by thread group id.
    pub(super) limits: BTreeMap<u32, CgroupLimit>,
    loss: Vec<LossCounter>,
    /// Records that a recording lacks.
    unrecorded: u64,
    /// Since when tracing is stopped, monotonic ns, and how often it was.
    pub(super) stopped_ns: Option<u64>,
    stops: u64,
    pub(super) coverage: Vec<CoverageRow>,
    pub(super) latency: Vec<(FunctionId, Latency)>,
}

/// Something that was measured at first and now, and what the books had at first.
#[derive(Clone, Copy, Debug)]
struct Gauge {
    first: u64,
    now: u64,
    traced_first: u64,
}

/// One GPU.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) now: DeviceMemory,
    used: Gauge,
}

impl Device {
    /// What it can still give. Older recordings know only what is not in use.
    pub(super) fn free_bytes(&self) -> u64 {
        let unused = self.now.total_bytes.saturating_sub(self.now.used_bytes);
        self.now.free_bytes.unwrap_or(unused)
    }
}

impl Gauge {
    fn growth(&self) -> u64 {
        self.now.saturating_sub(self.first)
    }
}

impl HostFacts {
    pub(super) fn observe(
        &mut self,
        now_ns: u64,
        observation: &Observation,
        terms: impl Fn() -> BTreeMap<Domain, Terms>,
    ) {
        let live = |domain| terms().get(&domain).map_or(0, |terms| terms.live.bytes);
        match observation {
            Observation::Memory(memory) => {
                let note = |gauge: &mut Option<Gauge>, now: u64| {
                    let new = || Gauge { first: now, now, traced_first: live(Domain::Kernel) };
                    gauge.get_or_insert_with(new).now = now;
                };
                note(&mut self.slab, memory.slab_bytes);
                note(&mut self.unreclaimable, memory.unreclaimable_bytes);
                self.available_bytes = Some(memory.available_bytes);
            }
            Observation::Device(device) => {
                let now = device.used_bytes;
                let new = || Device {
                    now: DeviceMemory::default(),
                    used: Gauge { first: now, now, traced_first: live(Domain::Cuda) },
                };
                let known = self.devices.entry(device.index).or_insert_with(new);
                known.used.now = now;
                known.now.clone_from(device);
            }
            Observation::Tracing { stopped } => {
                self.stops += u64::from(*stopped && self.stopped_ns.is_none());
                self.stopped_ns = stopped.then(|| self.stopped_ns.unwrap_or(now_ns));
            }
            Observation::DeviceLost { index } => drop(self.devices.remove(index)),
            Observation::Loss(counters) => self.loss.clone_from(counters),
            Observation::Coverage(rows) => self.coverage.clone_from(rows),
            Observation::Latency(all) => self.latency.clone_from(all),
            Observation::ProcessFacts { .. }
            | Observation::ProcessMemory(_)
            | Observation::UnusedShared(_)
            | Observation::LiveIds { .. } => {}
        }
    }

    fn lost(&self, cause: LossCause) -> LossCounter {
        self.loss.get(cause as usize).copied().unwrap_or_default()
    }

    /// Takes in that a recording lacks so many records here.
    pub(super) fn missing(&mut self, records: u64) {
        self.unrecorded = self.unrecorded.saturating_add(records);
    }

    /// Events lost by these causes, and those that a recording lacks: nobody knows of which path
    /// they were, so they count in both.
    fn lost_events(&self, causes: &[LossCause]) -> u64 {
        let counts = causes.iter().map(|cause| self.lost(*cause).count);
        counts.fold(self.unrecorded, u64::saturating_add)
    }

    /// Events that may make kernel books wrong. A full ring only makes them late.
    pub(super) fn lost_of_kernel(&self) -> u64 {
        self.lost_events(&[LossCause::AccountMapFull, LossCause::Recursion])
    }

    /// Events that may make call-path books wrong.
    pub(super) fn lost_of_calls(&self) -> u64 {
        self.lost_events(&[
            LossCause::InflightFull,
            LossCause::MissedReturn,
            LossCause::UnreadablePointer,
            LossCause::RateCeiling,
        ])
    }

    /// All causes, those that never happened included; that a recording lacks records, or
    /// that tracing was stopped, only where that is so.
    pub(super) fn losses(&self, refused_stacks: u64) -> BTreeMap<&'static str, Loss> {
        let row = |cause: LossCause| {
            let LossCounter { count, bytes } = self.lost(cause);
            let refused = if cause == LossCause::StackBudget { refused_stacks } else { 0 };
            let bytes = cause.bytes_known().then_some(bytes);
            (cause.name(), Loss { count: count + refused, bytes })
        };
        let gap = Loss { count: self.unrecorded, bytes: None };
        let gap = (self.unrecorded > 0).then_some((RECORDING_GAP, gap));
        let stops = Loss { count: self.stops, bytes: None };
        let stops = (self.stops > 0).then_some((STOPPED, stops));
        LossCause::ALL.into_iter().map(row).chain(gap).chain(stops).collect()
    }

    /// Device memory of a process as NVML sees it, on all devices; `None` where there is none, or
    /// NVML does not tell of one.
    pub(super) fn device_bytes(&self, pid: u32) -> Option<u64> {
        let mut own = self.devices.values().map(|device| device.now.bytes_of(pid));
        let first = own.next()??;
        own.try_fold(first, |sum, bytes| Some(sum.saturating_add(bytes?)))
    }

    /// By how much the slab has grown since it was first looked at, bytes.
    pub(super) fn slab_growth_bytes(&self, named_caches: bool) -> Option<u64> {
        self.traced_slab(named_caches).map(|slab| slab.growth())
    }

    /// What of the slab the books are to explain. Caches of inodes and dentries come and go by
    /// themselves: where they are not traced they are nothing that kmalloc has to explain.
    fn traced_slab(&self, named_caches: bool) -> Option<Gauge> {
        if named_caches { self.slab } else { self.unreclaimable }
    }

    /// By how much live kernel memory on the books has grown since the slab was first looked at,
    /// bytes.
    pub(super) fn kernel_growth_bytes(&self, host: &BTreeMap<Domain, Terms>) -> u64 {
        let live = host.get(&Domain::Kernel).map_or(0, |terms| terms.live.bytes);
        live.saturating_sub(self.slab.map_or(live, |slab| slab.traced_first))
    }

    /// Traced growth over observed growth, where there is growth worth explaining.
    pub(super) fn explained(
        &self,
        host: &BTreeMap<Domain, Terms>,
        named_caches: bool,
    ) -> BTreeMap<&'static str, f64> {
        let live = |domain| host.get(&domain).map_or(0, |terms: &Terms| terms.live.bytes);
        let ratio = |traced_first: u64, observed: u64, domain: Domain| {
            let traced = live(domain).saturating_sub(traced_first);
            (observed >= WORTH_EXPLAINING).then(|| (domain.name(), traced as f64 / observed as f64))
        };
        let slab = self.traced_slab(named_caches);
        let kernel = slab.and_then(|slab| ratio(slab.traced_first, slab.growth(), Domain::Kernel));
        let observed = self.devices.values().map(|device| device.used.growth()).sum();
        let first = self.devices.values().map(|device| device.used.traced_first).min();
        let cuda = first.and_then(|first| ratio(first, observed, Domain::Cuda));
        kernel.into_iter().chain(cuda).collect()
    }
}
