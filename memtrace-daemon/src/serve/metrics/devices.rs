//! Metrics of GPUs: what NVML counts, what the books have, and the difference.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use super::collector::{OTHER, Value, gauge};
use super::members::Members;
use super::rows::ProcessLabels;
use crate::snapshot::{Snapshot, difference};

/// Used and traced bytes of processes by labels; the rest under `None`.
pub(super) type DeviceSeries = BTreeMap<Option<ProcessLabels>, Sums>;

/// Used and traced bytes; `None` where some of it is not known, which is then not shown.
type Sums = (Option<u64>, Option<u64>);
const NOTHING: Sums = (Some(0), Some(0));

fn add(sum: &mut Option<u64>, bytes: Option<u64>) {
    *sum = sum.zip(bytes).map(|(sum, bytes)| sum.saturating_add(bytes));
}

/// What processes have on devices, those with series of their own apart.
pub(super) fn processes(snapshot: &Snapshot, members: &Members<ProcessLabels>) -> DeviceSeries {
    let mut series = DeviceSeries::new();
    if !snapshot.devices.is_empty() {
        series.insert(None, NOTHING);
    }
    for process in &snapshot.processes {
        let Some(device) = process.device else { continue };
        let labels = Some(ProcessLabels::of(process)).filter(|labels| members.contains(labels));
        let (used, traced) = series.entry(labels).or_insert(NOTHING);
        add(used, device.nvml_bytes);
        add(traced, device.traced_bytes);
    }
    // Who is on a device and in no books: gone, or left out.
    let pids: Vec<u32> = snapshot.processes.iter().map(|process| process.pid).collect();
    let all = snapshot.devices.iter().flat_map(|device| &device.processes);
    for unknown in all.filter(|one| one.gone || !pids.contains(&one.pid)) {
        let (used, _) = series.entry(None).or_insert(NOTHING);
        add(used, unknown.used_bytes);
    }
    if snapshot.devices.iter().any(|device| !device.all_listed) {
        let (used, _) = series.entry(None).or_insert(NOTHING);
        *used = None;
    }
    series
}

/// Writes the families of devices.
pub(super) fn write(
    snapshot: &Snapshot,
    processes: &DeviceSeries,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let devices = snapshot.devices.iter().flat_map(|device| {
        let kinds = [
            ("total", Some(Value::Whole(device.total_bytes))),
            ("used", Some(Value::Whole(device.used_bytes))),
            ("traced", device.traced_bytes.map(Value::Whole)),
            ("untraced", device.untraced_bytes.map(Value::Signed)),
        ];
        kinds.into_iter().filter_map(move |(kind, value)| {
            let index = Cow::Owned(device.index.to_string());
            Some(([("device", index), ("kind", Cow::Borrowed(kind))], value?))
        })
    });
    gauge(
        "device_memory",
        Some(Unit::Bytes),
        "Memory of a GPU: what NVML counts, what the books have, and the difference.",
    )
    .write(encoder, devices)?;
    let samples = processes.iter().flat_map(|(labels, (used, traced))| {
        let [pid, comm, cgroup] = match labels {
            Some(labels) => [
                Cow::Owned(labels.pid.to_string()),
                Cow::Borrowed(labels.comm.as_str()),
                Cow::Borrowed(labels.cgroup.as_str()),
            ],
            None => [Cow::Borrowed(OTHER), Cow::Borrowed(OTHER), Cow::Borrowed(OTHER)],
        };
        let untraced = used.zip(*traced).map(|(used, traced)| difference(used, traced));
        let kinds = [
            ("used", used.map(Value::Whole)),
            ("traced", traced.map(Value::Whole)),
            ("untraced", untraced.map(Value::Signed)),
        ];
        kinds.into_iter().filter_map(move |(kind, value)| {
            let labels = [
                ("pid", pid.clone()),
                ("comm", comm.clone()),
                ("cgroup", cgroup.clone()),
                ("kind", Cow::Borrowed(kind)),
            ];
            Some((labels, value?))
        })
    });
    gauge(
        "process_device_memory",
        Some(Unit::Bytes),
        "Device memory of a process: what NVML counts, what the books have, and the difference.",
    )
    .write(encoder, samples)?;
    // At most one a number that a device can have, and one.
    let mut live = BTreeMap::new();
    for on in snapshot.processes.iter().flat_map(|process| &process.devices) {
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
