//! What NVML counts, held against the books: for each process, and for each device.

use super::host::HostFacts;
use crate::snapshot::{Device, DeviceProcess, Process, ProcessDevice, difference};

/// Device memory of a process; `None` where there is no driver, it has ended, or neither NVML nor
/// the books know of any.
pub(super) fn of_process(host: &HostFacts, process: &Process) -> Option<ProcessDevice> {
    let nvml_bytes = host.device_bytes(process.pid).filter(|_| process.pid != 0)?;
    let live = |domain| process.domains.get(domain).map_or(0, |terms| terms.terms.live.bytes);
    let (cuda, managed) = (live("cuda"), live("managed"));
    let any = nvml_bytes > 0 || cuda > 0 || managed > 0;
    (any && !process.ended).then(|| ProcessDevice::of(nvml_bytes, cuda, managed))
}

/// All devices, with the sums over processes whose [`Process::device`] is known.
pub(super) fn of_host(host: &HostFacts, processes: &[Process]) -> Vec<Device> {
    let only = host.devices.len() == 1;
    let of = |(index, device): (&u32, &super::host::Device)| {
        let shares = processes.iter().filter_map(|process| {
            let own = process.device?;
            let here = device.of(process.pid).unwrap_or(0);
            Some(if only { own.traced_bytes } else { share(own, here) })
        });
        let traced_bytes = shares.fold(0, u64::saturating_add);
        let now = &device.now;
        Device {
            index: *index,
            total_bytes: now.total_bytes,
            used_bytes: now.used_bytes,
            free_bytes: device.free_bytes(),
            traced_bytes,
            untraced_bytes: difference(now.used_bytes, traced_bytes),
            processes: now
                .processes
                .iter()
                .map(|(pid, used_bytes)| DeviceProcess {
                    pid: *pid,
                    used_bytes: *used_bytes,
                    gone: now.gone.contains(pid),
                })
                .collect(),
        }
    };
    host.devices.iter().map(of).collect()
}

/// What of a process' traced memory is on a device that has so many bytes of it: the books do
/// not say which device a pointer is on, NVML says how the whole is spread.
fn share(own: ProcessDevice, here: u64) -> u64 {
    let product = u128::from(own.traced_bytes) * u128::from(here);
    let share = product.checked_div(u128::from(own.nvml_bytes)).unwrap_or(0);
    u64::try_from(share).unwrap_or(u64::MAX)
}
