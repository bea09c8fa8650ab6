//! What NVML counts, held against the books: for each process, and for each device. What NVML does
//! not tell stays unknown, and with it each sum that it would be part of.

use super::host::HostFacts;
use crate::record::DeviceMemory;
use crate::snapshot::{Device, DeviceProcess, Process, ProcessDevice, difference};

/// Device memory of a process; `None` where there is no driver, it has ended, or neither NVML nor
/// the books know of any.
pub(super) fn of_process(host: &HostFacts, process: &Process) -> Option<ProcessDevice> {
    if host.devices.is_empty() || process.pid == 0 || process.ended {
        return None;
    }
    let nvml_bytes = host.device_bytes(process.pid);
    let live = |domain| process.domains.get(domain).map_or(0, |terms| terms.terms.live.bytes);
    let (cuda, managed) = (live("cuda"), live("managed"));
    let listed = || host.devices.values().any(|device| device.now.has(process.pid));
    let any = nvml_bytes.map_or_else(listed, |bytes| bytes > 0) || cuda > 0 || managed > 0;
    any.then(|| ProcessDevice::of(nvml_bytes, cuda, managed))
}

/// All devices, with the sums over processes whose [`Process::device`] is known.
pub(super) fn of_host(host: &HostFacts, processes: &[Process]) -> Vec<Device> {
    let only = host.devices.len() == 1;
    let of = |(index, device): (&u32, &super::host::Device)| {
        let now = &device.now;
        let mut shares = processes.iter().filter_map(|process| {
            let own = process.device?;
            Some(share(own, now.bytes_of(process.pid), only))
        });
        let traced_bytes = shares.try_fold(0, |sum: u64, share| Some(sum.saturating_add(share?)));
        Device {
            index: *index,
            total_bytes: now.total_bytes,
            used_bytes: now.used_bytes,
            free_bytes: device.free_bytes(),
            traced_bytes,
            untraced_bytes: traced_bytes.map(|traced| difference(now.used_bytes, traced)),
            processes: listed(now),
            all_listed: !now.unlisted,
        }
    };
    host.devices.iter().map(of).collect()
}

/// The processes on a device, by pid.
fn listed(device: &DeviceMemory) -> Vec<DeviceProcess> {
    let told = device.processes.iter().map(|(pid, bytes)| (*pid, Some(*bytes)));
    let untold = device.untold.iter().map(|pid| (*pid, None));
    let one = |(pid, used_bytes): (u32, Option<u64>)| DeviceProcess {
        pid,
        used_bytes,
        gone: device.gone.contains(&pid),
    };
    let mut listed: Vec<DeviceProcess> = told.chain(untold).map(one).collect();
    listed.sort_by_key(|process| process.pid);
    listed
}

/// What of a process' traced memory is on a device that has so many bytes of it: the books do
/// not say which device a pointer is on, NVML says how the whole is spread.
fn share(own: ProcessDevice, here: Option<u64>, only: bool) -> Option<u64> {
    if !only && here == Some(0) {
        return Some(0);
    }
    let traced_bytes = own.traced_bytes?;
    if only || traced_bytes == 0 {
        return Some(traced_bytes);
    }
    let product = u128::from(traced_bytes) * u128::from(here?);
    let share = product.checked_div(u128::from(own.nvml_bytes?)).unwrap_or(0);
    Some(u64::try_from(share).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::rules::{cuda_malloc, process, world};
    use super::super::simulation::Fate::Arrives;
    use super::super::simulation::World;
    use super::*;
    use crate::catalog;
    use crate::record::{Observation, Record};
    use crate::snapshot::Snapshot;

    const PID: u32 = 1_001;

    /// A process that has 100 bytes of device memory on the books, and so many of managed memory.
    fn holding(managed_bytes: u64) -> World {
        let mut world = world();
        let app = world.start(None, false, Arrives);
        world.call(app, cuda_malloc(), 1, 100, true, Arrives);
        if managed_bytes > 0 {
            let mut all = catalog::library_functions().iter();
            let managed = all.find(|function| function.symbol == "cudaMallocManaged").unwrap();
            world.call(app, managed.id, 2, managed_bytes, true, Arrives);
        }
        world.totals(Arrives);
        world
    }

    /// The picture once these were observed, by their places.
    fn seen(world: &mut World, devices: Vec<DeviceMemory>) -> Snapshot {
        for (index, device) in (0..).zip(devices) {
            let observation = Observation::Device(DeviceMemory { index, ..device });
            let now_ns = world.now_ns;
            world.tell(Record::Observation { now_ns, observation });
        }
        world.snapshot()
    }

    fn device(processes: &[(u32, u64)], untold: &[u32]) -> DeviceMemory {
        DeviceMemory {
            total_bytes: 1_000,
            used_bytes: 500,
            processes: processes.to_vec(),
            untold: untold.to_vec(),
            ..DeviceMemory::default()
        }
    }

    fn sums(picture: &Snapshot) -> Vec<(Option<u64>, Option<i64>)> {
        let sums = |device: &Device| (device.traced_bytes, device.untraced_bytes);
        picture.devices.iter().map(sums).collect()
    }

    #[test]
    fn a_process_whose_bytes_are_not_told_has_no_figure_and_is_on_the_device() {
        let picture = seen(&mut holding(0), vec![device(&[(4, 5)], &[2, PID])]);
        let own = process(&picture, PID);
        let unknown = ProcessDevice::default();
        assert_eq!(own.device, Some(ProcessDevice { traced_bytes: Some(100), ..unknown }));
        assert_eq!(own.measured.device_bytes, None);
        assert_eq!(sums(&picture), [(Some(100), Some(400))], "there is no other device");
        let on = |pid, used_bytes| DeviceProcess { pid, used_bytes, gone: false };
        let all = [on(2, None), on(4, Some(5)), on(PID, None)];
        assert_eq!(picture.devices[0].processes, all);
        // How much of managed memory is on the device, only that figure says.
        let picture = seen(&mut holding(50), vec![device(&[], &[PID])]);
        assert_eq!(process(&picture, PID).device, Some(unknown));
        assert_eq!(sums(&picture), [(None, None)]);
    }

    #[test]
    fn a_device_whose_processes_are_not_listed_hides_how_a_process_is_spread() {
        let mut world = holding(50);
        let unlisted = DeviceMemory { unlisted: true, ..device(&[], &[]) };
        let picture = seen(&mut world, vec![device(&[(PID, 300)], &[]), unlisted]);
        assert_eq!(process(&picture, PID).device, Some(ProcessDevice::default()));
        assert_eq!(sums(&picture), [(None, None), (None, None)]);
        let listed = picture.devices.iter().map(|device| device.all_listed).collect::<Vec<_>>();
        assert_eq!(listed, [true, false]);
        // Where it is known not to be, nothing of it is.
        let picture = seen(&mut world, vec![device(&[], &[PID]), device(&[], &[])]);
        assert_eq!(sums(&picture), [(None, None), (Some(0), Some(500))]);
        let both = vec![device(&[(PID, 300)], &[]), device(&[(PID, 100)], &[])];
        let picture = seen(&mut world, both);
        assert_eq!(process(&picture, PID).measured.device_bytes, Some(400));
        assert_eq!(sums(&picture), [(Some(112), Some(388)), (Some(37), Some(463))]);
    }
}
