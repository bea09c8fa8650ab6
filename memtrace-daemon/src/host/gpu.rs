//! GPUs as NVML has them. Where there is no driver: one line in the log, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use crate::expendable::Worker;
use crate::record::{DeviceMemory, Observation};

/// How soon a driver is looked for again: it may be loaded after the daemon has started.
const AGAIN: Duration = Duration::from_secs(60);

/// Looks at all devices.
#[derive(Default)]
pub(super) struct Gpu {
    nvml: Option<Nvml>,
    tried: Option<Instant>,
    said: bool,
    /// The devices that answered last time.
    known: BTreeSet<u32>,
}

impl Worker for Gpu {
    type Job = ();
    type Out = Vec<Observation>;

    fn work(&mut self, (): &()) -> Vec<Observation> {
        if self.nvml.is_none() && self.tried.is_none_or(|tried| tried.elapsed() >= AGAIN) {
            self.tried = Some(Instant::now());
            self.nvml = self.init();
        }
        let Some(nvml) = &self.nvml else { return Vec::new() };
        let devices = devices(nvml).unwrap_or_else(|error| {
            tracing::warn!(%error, "NVML failed; it is started again in a minute");
            self.nvml = None;
            Vec::new()
        });
        let answered = devices.iter().map(|device| device.index).collect();
        let before = std::mem::replace(&mut self.known, answered);
        let lost = before.difference(&self.known);
        let lost = lost.map(|index| Observation::DeviceLost { index: *index }).collect::<Vec<_>>();
        devices.into_iter().map(Observation::Device).chain(lost).collect()
    }
}

impl Gpu {
    fn init(&mut self) -> Option<Nvml> {
        match Nvml::init() {
            Ok(nvml) => {
                tracing::info!("NVML found: device memory is observed");
                Some(nvml)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.said, true) {
                    tracing::info!(%error, "no NVIDIA driver: device memory is not observed");
                }
                None
            }
        }
    }
}

fn devices(nvml: &Nvml) -> Result<Vec<DeviceMemory>, NvmlError> {
    // A device that cannot be asked (lost, or without permission) must not hide the others.
    let each = |index| nvml.device_by_index(index).and_then(|gpu| observe(index, &gpu)).ok();
    Ok((0..nvml.device_count()?).filter_map(each).collect())
}

fn observe(index: u32, device: &Device<'_>) -> Result<DeviceMemory, NvmlError> {
    let memory = device.memory_info()?;
    let lists = [device.running_compute_processes(), device.running_graphics_processes()];
    let mut processes = BTreeMap::new();
    for process in lists.into_iter().flatten().flatten() {
        if let UsedGpuMemory::Used(bytes) = process.used_gpu_memory {
            // A process that computes and draws is in both lists, with the same figure.
            let known = processes.entry(process.pid).or_insert(bytes);
            *known = bytes.max(*known);
        }
    }
    Ok(DeviceMemory {
        index,
        total_bytes: memory.total,
        used_bytes: memory.used,
        free_bytes: Some(memory.free),
        gone: processes.keys().copied().filter(|pid| !runs(*pid)).collect(),
        processes: processes.into_iter().collect(),
    })
}

/// Whether /proc has this process, be it one that has ended and that nobody has waited for.
fn runs(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_there_exactly_where_a_driver_is() {
        let seen = Gpu::default().work(&());
        let driver = std::path::Path::new("/proc/driver/nvidia/version").exists();
        assert_eq!(!seen.is_empty(), driver, "{seen:?}");
    }
}
