//! What is known of the host, as observed. It decides nothing.

use std::collections::BTreeMap;

use memtrace_common::{Domain, LossCause, LossCounter};

use crate::record::Observation;
use crate::snapshot::{CoverageRow, Loss, Terms};

/// Growth below this says nothing about what share of it is explained, bytes.
const WORTH_EXPLAINING: u64 = 1 << 20;

/// The latest observations, and the first of each kind that growth is measured from.
#[derive(Debug, Default)]
pub(super) struct HostFacts {
    slab: Option<Gauge>,
    pub(super) available_bytes: Option<u64>,
    pub(super) devices: BTreeMap<u32, Device>,
    loss: Vec<LossCounter>,
    pub(super) coverage: Vec<CoverageRow>,
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
    pub(super) total_bytes: u64,
    used: Gauge,
    pub(super) processes: Vec<(u32, u64)>,
}

impl Device {
    pub(super) fn used_bytes(&self) -> u64 {
        self.used.now
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.used.now)
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
        observation: &Observation,
        terms: impl Fn() -> BTreeMap<Domain, Terms>,
    ) {
        let live = |domain| terms().get(&domain).map_or(0, |terms| terms.live.bytes);
        match observation {
            Observation::Slab { slab_bytes: now, unreclaimable_bytes: _ } => {
                let new = || Gauge { first: *now, now: *now, traced_first: live(Domain::Kernel) };
                self.slab.get_or_insert_with(new).now = *now;
            }
            Observation::Memory { total_bytes: _, available_bytes } => {
                self.available_bytes = Some(*available_bytes);
            }
            Observation::Device { index, total_bytes, used_bytes: now, processes } => {
                let new = || Device {
                    total_bytes: *total_bytes,
                    used: Gauge { first: *now, now: *now, traced_first: live(Domain::Cuda) },
                    processes: Vec::new(),
                };
                let device = self.devices.entry(*index).or_insert_with(new);
                device.used.now = *now;
                device.processes.clone_from(processes);
            }
            Observation::Loss(counters) => self.loss.clone_from(counters),
            Observation::Coverage(rows) => self.coverage.clone_from(rows),
            Observation::ProcessFacts { .. } | Observation::LiveIds { .. } => {}
        }
    }

    fn lost(&self, cause: LossCause) -> LossCounter {
        self.loss.get(cause as usize).copied().unwrap_or_default()
    }

    fn lost_events(&self, causes: &[LossCause]) -> u64 {
        causes.iter().map(|cause| self.lost(*cause).count).sum()
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

    /// All causes, those that never happened included.
    pub(super) fn losses(&self, refused_stacks: u64) -> BTreeMap<&'static str, Loss> {
        let row = |cause: LossCause| {
            let LossCounter { count, bytes } = self.lost(cause);
            let refused = if cause == LossCause::StackBudget { refused_stacks } else { 0 };
            let bytes = cause.bytes_known().then_some(bytes);
            (cause.name(), Loss { count: count + refused, bytes })
        };
        LossCause::ALL.into_iter().map(row).collect()
    }

    /// By how much the slab has grown since it was first looked at, bytes.
    pub(super) fn slab_growth_bytes(&self) -> Option<u64> {
        self.slab.map(|slab| slab.growth())
    }

    /// By how much live kernel memory on the books has grown since the slab was first looked at,
    /// bytes.
    pub(super) fn kernel_growth_bytes(&self, host: &BTreeMap<Domain, Terms>) -> u64 {
        let live = host.get(&Domain::Kernel).map_or(0, |terms| terms.live.bytes);
        live.saturating_sub(self.slab.map_or(live, |slab| slab.traced_first))
    }

    /// Traced growth over observed growth, where there is growth worth explaining.
    pub(super) fn explained(&self, host: &BTreeMap<Domain, Terms>) -> BTreeMap<&'static str, f64> {
        let live = |domain| host.get(&domain).map_or(0, |terms: &Terms| terms.live.bytes);
        let ratio = |traced_first: u64, observed: u64, domain: Domain| {
            let traced = live(domain).saturating_sub(traced_first);
            (observed >= WORTH_EXPLAINING).then(|| (domain.name(), traced as f64 / observed as f64))
        };
        let kernel =
            self.slab.and_then(|slab| ratio(slab.traced_first, slab.growth(), Domain::Kernel));
        let observed = self.devices.values().map(|device| device.used.growth()).sum();
        let first = self.devices.values().map(|device| device.used.traced_first).min();
        let cuda = first.and_then(|first| ratio(first, observed, Domain::Cuda));
        kernel.into_iter().chain(cuda).collect()
    }
}
