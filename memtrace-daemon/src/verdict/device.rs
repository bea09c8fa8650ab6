//! What GPUs say: device memory that NVML counts for a process that there is not any more. What
//! a running process keeps without its parent is judged with its other memory ([`super::memory`]).

use std::collections::BTreeMap;

use super::measured::{Gone, Said};
use super::{Judgement, VerdictConfig};
use crate::human::bytes;
use crate::record::DeviceMemory;
use crate::snapshot::{Evidence, Verdict};

/// Looks at which a process must have been gone: at one alone it may just have ended.
const LOOKS: u32 = 2;

/// Memory of processes that have gone, by device and pid.
#[derive(Debug)]
pub struct DeviceLevels {
    config: VerdictConfig,
    left: BTreeMap<(u32, u32), Left>,
}

/// What a process has left.
#[derive(Debug)]
struct Left {
    comm: String,
    since_ns: u64,
    looks: u32,
    first_bytes: u64,
    now_bytes: u64,
}

impl DeviceLevels {
    /// No device has been looked at yet.
    #[must_use]
    pub fn new(config: VerdictConfig) -> Self {
        Self { config, left: BTreeMap::new() }
    }

    /// Takes a look at a device. `comm` names a process that has books.
    pub fn observe(
        &mut self,
        now_ns: u64,
        device: &DeviceMemory,
        comm: impl Fn(u32) -> Option<String>,
    ) {
        let of = |pid: u32| device.processes.iter().find(|(user, _)| *user == pid);
        let gone = |pid: u32| device.gone.contains(&pid).then(|| of(pid)).flatten();
        self.left.retain(|(index, pid), _| *index != device.index || gone(*pid).is_some());
        for (pid, now_bytes) in device.gone.iter().filter_map(|pid| gone(*pid)) {
            let new = || Left {
                comm: comm(*pid).unwrap_or_default(),
                since_ns: now_ns,
                looks: 0,
                first_bytes: *now_bytes,
                now_bytes: *now_bytes,
            };
            let left = self.left.entry((device.index, *pid)).or_insert_with(new);
            left.looks = left.looks.saturating_add(1);
            left.now_bytes = *now_bytes;
        }
    }

    /// A device does not answer any more.
    pub fn lost(&mut self, index: u32) {
        self.left.retain(|(of, _), _| *of != index);
    }

    /// What is said now.
    pub fn said(&self, now_ns: u64, each: &mut dyn FnMut(Said)) {
        for ((index, pid), left) in &self.left {
            let age_ns = now_ns.saturating_sub(left.since_ns);
            if left.looks < LOOKS
                || age_ns < self.config.min_age_ns()
                || left.now_bytes < self.config.min_bytes
            {
                continue;
            }
            let decided_by = vec![
                format!(
                    "NVML counts {} on device {index} for pid {pid}, which /proc does not have",
                    bytes(left.now_bytes)
                ),
                "no process can free it any more: a process that shares it still runs, or the \
                 driver hangs and the device must be reset"
                    .to_owned(),
            ];
            each(Said {
                serial: None,
                gone: Some(Gone { pid: *pid, comm: left.comm.clone() }),
                domain: "cuda",
                judgement: Judgement {
                    verdict: Verdict::Orphaned,
                    confidence: Some(0.8),
                    growth_bytes_per_second: None,
                    since_ns: left.since_ns,
                    evidence: Evidence {
                        floor_first_bytes: Some(left.first_bytes),
                        floor_last_bytes: Some(left.now_bytes),
                        window_seconds: self.config.window_seconds as f32,
                        watched_seconds: Evidence::seconds(age_ns),
                        ..Evidence::default()
                    },
                    decided_by,
                },
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn device(gone: &[u32], processes: &[(u32, u64)]) -> DeviceMemory {
        DeviceMemory {
            index: 1,
            processes: processes.to_vec(),
            gone: gone.to_vec(),
            ..DeviceMemory::default()
        }
    }

    fn said(levels: &DeviceLevels, now_ns: u64) -> Vec<(u32, String)> {
        let mut all = Vec::new();
        levels.said(now_ns, &mut |said| {
            let gone = said.gone.unwrap();
            assert_eq!((said.domain, said.judgement.verdict), ("cuda", Verdict::Orphaned));
            assert_eq!(said.judgement.evidence.floor_last_bytes, Some(5 << 20));
            all.push((gone.pid, gone.comm));
        });
        all
    }

    #[test]
    fn memory_of_who_is_gone_is_said_once_it_has_stayed() {
        let mut levels = DeviceLevels::new(VerdictConfig::default());
        let all = [(7, 5 << 20), (8, 5 << 20), (9, 5 << 10)];
        let comm = |pid| (pid == 7).then(|| "worker".to_owned());
        levels.observe(0, &device(&[7, 9], &all), comm);
        assert!(said(&levels, 0).is_empty(), "it may just have ended");
        levels.observe(70 * SECOND, &device(&[7, 9], &all), comm);
        assert_eq!(said(&levels, 70 * SECOND), [(7, "worker".to_owned())], "9 is too small");
        // Another device says nothing of it; one that is lost does.
        levels.observe(75 * SECOND, &DeviceMemory::default(), comm);
        assert_eq!(said(&levels, 75 * SECOND).len(), 1);
        levels.observe(80 * SECOND, &device(&[], &all[1..]), comm);
        assert!(said(&levels, 80 * SECOND).is_empty(), "it has been given back");
        for at in [90, 170] {
            levels.observe(at * SECOND, &device(&[8], &all[1..]), comm);
        }
        assert_eq!(said(&levels, 170 * SECOND), [(8, String::new())]);
        levels.lost(1);
        assert!(said(&levels, 170 * SECOND).is_empty());
    }
}
