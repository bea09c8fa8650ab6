//! GPUs as NVML has them. Where there is no driver: one line in the log, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
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
    let Users { bytes, unlisted } =
        Users::of(device.running_compute_processes(), device.running_graphics_processes());
    Ok(DeviceMemory {
        index,
        total_bytes: memory.total,
        used_bytes: memory.used,
        free_bytes: Some(memory.free),
        gone: bytes.keys().copied().filter(|pid| !runs(*pid)).collect(),
        untold: bytes.iter().filter(|(_, bytes)| bytes.is_none()).map(|(pid, _)| *pid).collect(),
        processes: bytes.into_iter().filter_map(|(pid, bytes)| Some((pid, bytes?))).collect(),
        unlisted,
    })
}

/// What NVML answers when it is asked who is on a device.
type List = Result<Vec<ProcessInfo>, NvmlError>;

/// Who is on a device, as far as NVML tells.
#[derive(Debug, Default, PartialEq, Eq)]
struct Users {
    /// Bytes by pid; `None` where NVML does not tell them.
    bytes: BTreeMap<u32, Option<u64>>,
    /// Whether a list could not be read, so that there may be more of them.
    unlisted: bool,
}

impl Users {
    fn of(computing: List, drawing: List) -> Self {
        let mut users = Self::default();
        users.take(computing);
        match drawing {
            // Where nothing can be drawn there is no list of who draws.
            Err(NvmlError::NotSupported) => {}
            drawing => users.take(drawing),
        }
        users
    }

    fn take(&mut self, list: List) {
        let list = list.unwrap_or_else(|error| {
            tracing::debug!(%error, "NVML does not list the processes on a device");
            self.unlisted = true;
            Vec::new()
        });
        for process in list {
            let bytes = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            // A process that computes and draws is in both lists, with the same figure.
            let known = self.bytes.entry(process.pid).or_insert(bytes);
            *known = bytes.max(*known);
        }
    }
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

    fn process(pid: u32, used_gpu_memory: UsedGpuMemory) -> ProcessInfo {
        ProcessInfo { pid, used_gpu_memory, gpu_instance_id: None, compute_instance_id: None }
    }

    #[test]
    fn bytes_that_nvml_does_not_tell_are_unknown_and_no_process_counts_twice() {
        let computing = vec![
            process(7, UsedGpuMemory::Used(10)),
            process(8, UsedGpuMemory::Unavailable),
            process(9, UsedGpuMemory::Unavailable),
        ];
        let drawing = vec![process(7, UsedGpuMemory::Used(10)), process(9, UsedGpuMemory::Used(5))];
        let users = Users::of(Ok(computing), Ok(drawing));
        let bytes = BTreeMap::from([(7, Some(10)), (8, None), (9, Some(5))]);
        assert_eq!(users, Users { bytes, unlisted: false });
    }

    #[test]
    fn a_list_that_cannot_be_read_is_not_an_empty_one() {
        let refused = || Err(NvmlError::NoPermission);
        assert!(Users::of(refused(), Ok(Vec::new())).unlisted);
        let users = Users::of(Ok(vec![process(7, UsedGpuMemory::Used(10))]), refused());
        assert_eq!(users, Users { bytes: BTreeMap::from([(7, Some(10))]), unlisted: true });
        let users = Users::of(Ok(Vec::new()), Err(NvmlError::NotSupported));
        assert_eq!(users, Users::default(), "what cannot draw");
    }
}
