//! Metrics of GPUs: what NVML counts, what the books have, and the difference.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use super::collector::{OTHER, Value, gauge};
use super::members::Members;
use super::rows::ProcessLabels;
use crate::snapshot::Snapshot;

/// Used and traced bytes of processes by labels; the rest under `None`.
pub(super) type DeviceSeries = BTreeMap<Option<ProcessLabels>, (u64, u64)>;

/// What processes have on devices, those with series of their own apart.
pub(super) fn processes(snapshot: &Snapshot, members: &Members<ProcessLabels>) -> DeviceSeries {
    let mut series = DeviceSeries::new();
    if !snapshot.devices.is_empty() {
        series.insert(None, (0, 0));
    }
    for process in &snapshot.processes {
        let Some(device) = process.device else { continue };
        let labels = Some(ProcessLabels::of(process)).filter(|labels| members.contains(labels));
        let (used, traced) = series.entry(labels).or_default();
        *used = used.saturating_add(device.nvml_bytes);
        *traced = traced.saturating_add(device.traced_bytes);
    }
    // Who is on a device and in no books: gone, or left out.
    let pids: Vec<u32> = snapshot.processes.iter().map(|process| process.pid).collect();
    let all = snapshot.devices.iter().flat_map(|device| &device.processes);
    for unknown in all.filter(|one| one.gone || !pids.contains(&one.pid)) {
        let (used, _) = series.entry(None).or_default();
        *used = used.saturating_add(unknown.used_bytes);
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
            ("total", Value::Whole(device.total_bytes)),
            ("used", Value::Whole(device.used_bytes)),
            ("traced", Value::Whole(device.traced_bytes)),
            ("untraced", Value::Signed(device.untraced_bytes)),
        ];
        kinds.map(|(kind, value)| {
            let index = Cow::Owned(device.index.to_string());
            ([("device", index), ("kind", Cow::Borrowed(kind))], value)
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
        let untraced = crate::snapshot::difference(*used, *traced);
        [
            ("used", Value::Whole(*used)),
            ("traced", Value::Whole(*traced)),
            ("untraced", Value::Signed(untraced)),
        ]
        .map(|(kind, value)| {
            let labels = [
                ("pid", pid.clone()),
                ("comm", comm.clone()),
                ("cgroup", cgroup.clone()),
                ("kind", Cow::Borrowed(kind)),
            ];
            (labels, value)
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
