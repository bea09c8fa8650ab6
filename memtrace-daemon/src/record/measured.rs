//! What was measured of the host and of processes: plain numbers, in bytes unless a name says
//! otherwise. What was not looked at, or cannot be seen, is `None`.

use serde::{Deserialize, Serialize};

/// Host memory as /proc/meminfo has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMemory {
    /// `MemTotal`.
    pub total_bytes: u64,
    /// `MemAvailable`.
    pub available_bytes: u64,
    /// `MemFree`.
    pub free_bytes: u64,
    /// `Buffers`, `Cached` (shared memory is part of it) and `SwapCached`.
    pub cached_bytes: u64,
    /// `Shmem`: shared memory and files in memory.
    pub shared_bytes: u64,
    /// `AnonPages`.
    pub anonymous_bytes: u64,
    /// `AnonHugePages`, part of `anonymous_bytes`.
    pub anonymous_huge_bytes: u64,
    /// `SwapTotal`.
    pub swap_total_bytes: u64,
    /// `SwapFree`.
    pub swap_free_bytes: u64,
    /// `Slab`.
    pub slab_bytes: u64,
    /// `SUnreclaim`, part of `slab_bytes`.
    pub unreclaimable_bytes: u64,
    /// `KernelStack`; where stacks are mapped they are part of `vmalloc_bytes` as well.
    pub kernel_stack_bytes: u64,
    /// `VmallocUsed`.
    pub vmalloc_bytes: u64,
    /// `PageTables` and `SecPageTables`.
    pub page_table_bytes: u64,
    /// `Percpu`.
    pub per_cpu_bytes: u64,
    /// What has a row of its own and is rarely anything: `Bounce`, `Zswap`, `Balloon`, and what
    /// of `KReclaimable` is no slab.
    pub other_bytes: u64,
    /// `Hugetlb`: the pools of huge pages.
    pub huge_pool_bytes: u64,
    /// Of these, what nobody uses (`HugePages_Free`, pages of the default size only).
    pub huge_free_bytes: u64,
    /// Free pages that CPUs keep on lists of their own (/proc/zoneinfo); not looked at each time.
    pub page_lists_bytes: Option<u64>,
}

impl HostMemory {
    /// Memory that is not free and that no process, cache or counter of the kernel owns: pages
    /// that drivers took, and pools of huge pages that nobody uses. `None` where the lists of
    /// the CPUs were not looked at: these alone can be a good part of memory.
    #[must_use]
    pub fn ownerless_bytes(&self) -> Option<u64> {
        let owned = [
            self.free_bytes,
            self.page_lists_bytes?,
            self.cached_bytes,
            self.anonymous_bytes,
            self.slab_bytes,
            // One lies within the other on kernels whose stacks are mapped, all of today's.
            self.vmalloc_bytes.max(self.kernel_stack_bytes),
            self.page_table_bytes,
            self.per_cpu_bytes,
            self.other_bytes,
            self.huge_pool_bytes.saturating_sub(self.huge_free_bytes),
        ];
        Some(owned.into_iter().fold(self.total_bytes, u64::saturating_sub))
    }
}

/// A GPU as NVML has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// NVML index.
    pub index: u32,
    /// Device memory, bytes.
    pub total_bytes: u64,
    /// Of which in use.
    pub used_bytes: u64,
    /// Of which free. What the driver keeps for itself is neither used nor free.
    #[serde(default)]
    pub free_bytes: Option<u64>,
    /// (pid, bytes) of each process on it whose bytes NVML tells, by pid.
    pub processes: Vec<(u32, u64)>,
    /// Pids of those on it whose bytes NVML does not tell.
    #[serde(default)]
    pub untold: Vec<u32>,
    /// Whether there may be more processes: NVML did not list them.
    #[serde(default)]
    pub unlisted: bool,
    /// Of all these, the pids that /proc does not have.
    #[serde(default)]
    pub gone: Vec<u32>,
}

impl DeviceMemory {
    /// What a process has on it, bytes: 0 where it is not on it, `None` where NVML does not tell.
    #[must_use]
    pub fn bytes_of(&self, pid: u32) -> Option<u64> {
        let told = self.processes.iter().find(|(user, _)| *user == pid);
        let unknown = self.unlisted || self.untold.contains(&pid);
        told.map(|(_, bytes)| *bytes).or((!unknown).then_some(0))
    }

    /// Whether a process is known to be on it.
    #[must_use]
    pub fn has(&self, pid: u32) -> bool {
        self.untold.contains(&pid) || self.processes.iter().any(|(user, _)| *user == pid)
    }
}

/// Memory of one process as /proc has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Serial of the process.
    pub serial: u32,
    /// Its parent now.
    pub parent: Option<Parent>,
    /// `RssAnon`.
    pub anonymous_bytes: u64,
    /// `RssFile`.
    pub file_bytes: u64,
    /// `RssShmem`.
    pub shared_bytes: u64,
    /// `VmSwap`.
    pub swap_bytes: u64,
    /// `VmSize`.
    pub virtual_bytes: u64,
    /// Threads.
    pub threads: u32,
    /// `AnonHugePages`; looked at where it was asked for only, because it walks page tables.
    pub huge_bytes: Option<u64>,
    /// Size of the mapping that `brk` makes, `[heap]`; looked at where it was asked for only.
    pub brk_bytes: Option<u64>,
    /// What limits its memory.
    pub limit: Option<CgroupLimit>,
}

impl ProcessMemory {
    /// Memory that only this process can give back: resident anonymous pages, and what of them
    /// was swapped out.
    #[must_use]
    pub const fn private_bytes(&self) -> u64 {
        self.anonymous_bytes.saturating_add(self.swap_bytes)
    }
}

/// Whose child a process is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Thread group id.
    pub tgid: u32,
    /// Name.
    pub comm: String,
}

/// The cgroup, of those that a process is in, that has least room left below its limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupLimit {
    /// Its path.
    pub cgroup: String,
    /// Its limit.
    pub limit_bytes: u64,
    /// What counts against it and cannot be taken back: page cache of files is not among it.
    pub used_bytes: u64,
}

impl CgroupLimit {
    /// What is left.
    #[must_use]
    pub const fn available_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

/// Shared memory that nobody uses: files in /dev/shm that no process has open or mapped, and
/// System V segments that nobody has attached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusedShared {
    /// Bytes of all of them.
    pub bytes: u64,
    /// How many.
    pub count: u64,
    /// Bytes of those that came after memtrace was started.
    pub new_bytes: u64,
    /// How many of these.
    pub new_count: u64,
    /// The largest of the new ones, by name, at most three.
    pub largest: Vec<String>,
    /// Processes that could not be looked at, and may use some of it.
    pub unseen: u64,
    /// Shared memory that these have in their page tables, bytes: they have mapped no more.
    pub unseen_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_an_older_recording_lists_all_its_processes() {
        let old = r#"{"index":1,"total_bytes":9,"used_bytes":5,"processes":[[7,5]]}"#;
        let device: DeviceMemory = serde_json::from_str(old).unwrap();
        assert_eq!((device.bytes_of(7), device.bytes_of(8)), (Some(5), Some(0)));
        assert!(device.has(7) && !device.has(8));
    }

    #[test]
    fn what_is_not_told_of_a_process_is_unknown_and_not_zero() {
        let processes = vec![(7, 5)];
        let device = DeviceMemory { processes, untold: vec![8], ..DeviceMemory::default() };
        assert_eq!([7, 8, 9].map(|pid| device.bytes_of(pid)), [Some(5), None, Some(0)]);
        assert_eq!([7, 8, 9].map(|pid| device.has(pid)), [true, true, false]);
        let device = DeviceMemory { unlisted: true, ..device };
        assert_eq!([7, 8, 9].map(|pid| device.bytes_of(pid)), [Some(5), None, None]);
    }
}
