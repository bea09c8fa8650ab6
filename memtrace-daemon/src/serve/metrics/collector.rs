//! The metric families, one after the other: names, help and units as contracts §7 has them.

use std::borrow::Cow;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeMetric, GaugeValueEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::counters::{Labels, Shown, SiteSeries};
use super::findings;
use super::rows::{ProcessSeries, label};
use crate::snapshot::Snapshot;

/// What stands for a label value where the rest is summed up.
pub(super) const OTHER: &str = "other";

/// Everything that one scrape shows.
#[derive(Debug)]
pub(super) struct Scrape {
    pub(super) snapshot: std::sync::Arc<Snapshot>,
    pub(super) sites: SiteSeries,
    pub(super) processes: ProcessSeries,
}

/// One sample's labels.
pub(super) type Pairs<'a, const N: usize> = [(&'static str, Cow<'a, str>); N];

/// A value, whole where it is one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
}

impl EncodeGaugeValue for Value {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => EncodeGaugeValue::encode(value, encoder),
            Self::Real(value) => EncodeGaugeValue::encode(value, encoder),
        }
    }
}

/// A family to be written.
pub(super) struct Family<'a> {
    pub(super) name: &'a str,
    pub(super) help: &'a str,
    pub(super) unit: Option<Unit>,
    pub(super) kind: MetricType,
}

impl Family<'_> {
    /// Writes the description and the samples.
    pub(super) fn write<'l, const N: usize>(
        self,
        encoder: &mut DescriptorEncoder<'_>,
        samples: impl IntoIterator<Item = (Pairs<'l, N>, Value)>,
    ) -> fmt::Result {
        let unit = self.unit.as_ref();
        let mut family = encoder.encode_descriptor(self.name, self.help, unit, self.kind)?;
        for (labels, value) in samples {
            let sample = family.encode_family(&labels)?;
            match (self.kind, value) {
                (MetricType::Counter, Value::Whole(value)) => {
                    ConstCounter::new(value).encode(sample)?;
                }
                (MetricType::Counter, Value::Real(value)) => {
                    ConstCounter::new(value).encode(sample)?;
                }
                (_, value) => ConstGauge::new(value).encode(sample)?,
            }
        }
        Ok(())
    }
}

pub(super) fn gauge<'a>(name: &'a str, unit: Option<Unit>, help: &'a str) -> Family<'a> {
    Family { name, help, unit, kind: MetricType::Gauge }
}

fn counter<'a>(name: &'a str, unit: Option<Unit>, help: &'a str) -> Family<'a> {
    Family { name, help, unit, kind: MetricType::Counter }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        self.processes(encoder)?;
        self.sites(encoder)?;
        findings::write(&self.snapshot, encoder)?;
        self.books(encoder)?;
        self.tracer(encoder)
    }
}

impl Scrape {
    fn processes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let samples = self.processes.iter().map(|((domain, labels), bytes)| {
            let (pid, comm, cgroup) = match labels {
                Some(labels) => (
                    Cow::Owned(labels.pid.to_string()),
                    Cow::Borrowed(labels.comm.as_str()),
                    Cow::Borrowed(labels.cgroup.as_str()),
                ),
                None => (OTHER.into(), OTHER.into(), OTHER.into()),
            };
            let domain = Cow::Borrowed(*domain);
            (
                [("domain", domain), ("pid", pid), ("comm", comm), ("cgroup", cgroup)],
                Value::Whole(*bytes),
            )
        });
        gauge(
            "process_live",
            Some(Unit::Bytes),
            "Live bytes of a process. Domains are never to be added.",
        )
        .write(encoder, samples)
    }

    fn sites(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        gauge("site_live", Some(Unit::Bytes), "Live bytes that a process allocated at a site.")
            .write(encoder, self.site_samples(|shown| shown.live))?;
        counter(
            "site_allocated",
            Some(Unit::Bytes),
            "Bytes that a process allocated at a site since attach.",
        )
        .write(encoder, self.site_samples(|shown| shown.counters.allocated))?;
        counter(
            "site_freed",
            Some(Unit::Bytes),
            "Bytes of a site that were freed, by frees that were seen.",
        )
        .write(encoder, self.site_samples(|shown| shown.counters.freed))
    }

    fn site_samples(
        &self,
        value: impl Fn(&Shown) -> u64 + Copy,
    ) -> impl Iterator<Item = (Pairs<'_, 5>, Value)> {
        let named = self.sites.named.iter().map(move |(labels, shown)| {
            let Labels { domain, comm, pid, site, function } = labels;
            let pairs = [
                ("domain", Cow::Borrowed(*domain)),
                ("comm", Cow::Borrowed(comm.as_ref())),
                ("pid", Cow::Owned(pid.to_string())),
                ("site", Cow::Owned(format!("{site:016x}"))),
                ("function", Cow::Borrowed(function.as_ref())),
            ];
            (pairs, Value::Whole(value(shown)))
        });
        let other = self.sites.other.iter().map(move |(domain, shown)| {
            let pairs = [
                ("domain", Cow::Borrowed(*domain)),
                ("comm", OTHER.into()),
                ("pid", OTHER.into()),
                ("site", OTHER.into()),
                ("function", OTHER.into()),
            ];
            (pairs, Value::Whole(value(shown)))
        });
        named.chain(other)
    }

    fn books(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let states = self.snapshot.domains.iter().flat_map(|(domain, terms)| {
            [
                ("seen", terms.seen),
                ("live", terms.live),
                ("freed", terms.freed),
                ("closed", terms.closed),
                ("freed_unseen", terms.freed_unseen),
                ("dropped", terms.dropped),
            ]
            .map(|(state, amount)| {
                let pairs = [("domain", Cow::Borrowed(*domain)), ("state", state.into())];
                (pairs, Value::Whole(amount.bytes))
            })
        });
        // `live` goes down too, so this is no counter, although each other state is one.
        Family {
            name: "bytes_total",
            help: "The books: seen = live + freed + closed + freed_unseen + dropped, in bytes.",
            unit: None,
            kind: MetricType::Unknown,
        }
        .write(encoder, states)?;
        let explained = self.snapshot.runtime.explained.iter();
        gauge("explained_ratio", None, "Traced growth over observed growth.").write(
            encoder,
            explained
                .map(|(domain, ratio)| ([("domain", Cow::Borrowed(*domain))], Value::Real(*ratio))),
        )?;
        let devices = self.snapshot.runtime.devices.iter().flat_map(|(index, total, used)| {
            [("total", *total), ("used", *used)].map(|(state, bytes)| {
                let pairs = [("index", Cow::Owned(index.to_string())), ("state", state.into())];
                (pairs, Value::Whole(bytes))
            })
        });
        gauge("device", Some(Unit::Bytes), "Memory of a GPU as NVML has it, traced or not.")
            .write(encoder, devices)?;
        // At most one a number that a device can have, and one.
        let mut live = std::collections::BTreeMap::new();
        for on in self.snapshot.processes.iter().flat_map(|process| &process.devices) {
            let sum: &mut u64 = live.entry(on.device).or_default();
            *sum = sum.saturating_add(on.live_bytes);
        }
        let live = live.into_iter().map(|(device, bytes)| {
            let device = device.map_or(Cow::Borrowed("unknown"), |n| Cow::Owned(n.to_string()));
            ([("device", device)], Value::Whole(bytes))
        });
        gauge(
            "device_live",
            Some(Unit::Bytes),
            "Live device memory on the books of running processes, by the device as each of them \
             counts.",
        )
        .write(encoder, live)
    }

    fn tracer(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let runtime = &self.snapshot.runtime;
        counter("records", None, "Records that the kernel side sent and the engine consumed.")
            .write(
                encoder,
                runtime
                    .records
                    .iter()
                    .map(|(kind, count)| ([("kind", Cow::Borrowed(*kind))], Value::Whole(*count))),
            )?;
        counter("lost", None, "Events that were not seen whole, by cause.").write(
            encoder,
            self.snapshot.loss.iter().map(|(cause, loss)| {
                ([("cause", Cow::Borrowed(*cause))], Value::Whole(loss.count))
            }),
        )?;
        gauge(
            "probe_attached",
            None,
            "Whether a probe is on: 1, or 0 where it should be and is not.",
        )
        .write(
            encoder,
            runtime.probes.iter().map(|((probe, library), attached)| {
                let pairs =
                    [("probe", Cow::Owned(label(probe))), ("library", Cow::Owned(label(library)))];
                (pairs, Value::Whole(u64::from(*attached)))
            }),
        )?;
        if !runtime.program_seconds.is_empty() {
            counter(
                "bpf_run",
                Some(Unit::Seconds),
                "Run time of a BPF program, while the kernel's statistics are on.",
            )
            .write(
                encoder,
                runtime.program_seconds.iter().map(|(program, seconds)| {
                    ([("program", Cow::Owned(label(program)))], Value::Real(*seconds))
                }),
            )?;
        }
        let version = [("version", Cow::Borrowed(env!("CARGO_PKG_VERSION")))];
        gauge("build_info", None, "Always 1; says which memtrace this is.")
            .write(encoder, [(version, Value::Whole(1))])
    }
}
