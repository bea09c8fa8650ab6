//! GPUs: what NVML counts beside what the books have. What NVML does not tell is `None`.

use serde::Serialize;

/// A GPU. Bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Device {
    /// NVML index.
    pub index: u32,
    /// Device memory.
    pub total_bytes: u64,
    /// In use, traced or not.
    pub used_bytes: u64,
    /// What can still be given; what the driver keeps for itself is neither used nor free.
    pub free_bytes: u64,
    /// What the books of running processes have on it ([`ProcessDevice::traced_bytes`]). Of a
    /// process that is on several devices each has a share, by what NVML counts there. `None` where
    /// that is not known of one of them.
    pub traced_bytes: Option<u64>,
    /// `used_bytes` less `traced_bytes`: contexts, modules, memory from before attach, and
    /// processes that are not traced. Below 0 where the driver has not counted all of it yet.
    pub untraced_bytes: Option<i64>,
    /// The processes on it.
    pub processes: Vec<DeviceProcess>,
    /// Whether these are all: NVML listed them.
    pub all_listed: bool,
}

/// A process on a GPU, as NVML lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceProcess {
    /// Its process id.
    pub pid: u32,
    /// What it uses, bytes.
    pub used_bytes: Option<u64>,
    /// Whether /proc has no such process any more.
    pub gone: bool,
}

/// Device memory of one process. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessDevice {
    /// What NVML counts for it, on all devices; `None` where it does not tell of one of them.
    pub nvml_bytes: Option<u64>,
    /// Live in domain `cuda`, and as much of domain `managed` as NVML's figure has room for:
    /// the rest of it must be in host memory. Without that figure nobody knows where managed memory
    /// is. What is borrowed (`cuda_ipc`) is its owner's.
    pub traced_bytes: Option<u64>,
    /// `nvml_bytes` less `traced_bytes`; may be below 0.
    pub untraced_bytes: Option<i64>,
}

impl ProcessDevice {
    /// Of what NVML counts and what is live in the two domains, bytes.
    #[must_use]
    pub fn of(nvml_bytes: Option<u64>, cuda_bytes: u64, managed_bytes: u64) -> Self {
        let room = nvml_bytes.map(|bytes| bytes.saturating_sub(cuda_bytes));
        let resident = room.map(|room| managed_bytes.min(room));
        let resident = resident.or((managed_bytes == 0).then_some(0));
        let traced_bytes = resident.map(|resident| cuda_bytes.saturating_add(resident));
        let both = nvml_bytes.zip(traced_bytes);
        let untraced_bytes = both.map(|(used, traced)| difference(used, traced));
        Self { nvml_bytes, traced_bytes, untraced_bytes }
    }
}

/// One less another, as near as 64 bits come.
#[must_use]
pub fn difference(used: u64, traced: u64) -> i64 {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    if used >= traced { signed(used - traced) } else { -signed(traced - used) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managed_memory_is_on_the_device_as_far_as_it_fits() {
        let of = |nvml, cuda, managed| {
            let device = ProcessDevice::of(Some(nvml), cuda, managed);
            (device.traced_bytes.unwrap(), device.untraced_bytes.unwrap())
        };
        assert_eq!(of(500, 300, 0), (300, 200), "a context beside it");
        assert_eq!(of(500, 300, 150), (450, 50));
        assert_eq!(of(500, 300, 900), (500, 0), "the rest is in host memory");
        assert_eq!(of(200, 300, 900), (300, -100), "not counted yet");
        assert_eq!(of(0, 0, 900), (0, 0));
        assert_eq!(of(u64::MAX, 0, 0), (0, i64::MAX));
    }

    #[test]
    fn without_nvmls_figure_only_device_memory_is_known_to_be_on_the_device() {
        let of = |cuda, managed| ProcessDevice::of(None, cuda, managed);
        let unknown = ProcessDevice::default();
        assert_eq!(of(300, 0), ProcessDevice { traced_bytes: Some(300), ..unknown });
        assert_eq!(of(300, 1), unknown);
    }
}
