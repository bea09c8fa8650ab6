//! What memory the kernel side's maps take on this machine, computed before they are made.
//!
//! The table here is the plan; the sizes are those of `memtrace_common::tunables`. It allocates
//! nothing and asks the kernel nothing but the number of its CPUs. The formulas are those of
//! the kernel's `htab_map_mem_usage`, `array_map_mem_usage` and `ringbuf_map_mem_usage`, less
//! a constant below 1 KiB a map; tried against what kernel 6.18 reports in `fdinfo`. Task storage
//! is reckoned from its structures and not reported by any kernel.

use std::io;

use memtrace_common::{
    Account, AccountKey, FunctionSpec, LossCause, LossCounter, ProcessEntry, ProcessKey, Totals,
    TotalsKey, tunables,
};
use serde::Serialize;

/// What all maps of memtrace together may take, in bytes.
pub const BUDGET_BYTES: u64 = 96 << 20;

/// `struct htab_elem` without key and value.
const HASH_ELEMENT: u64 = 48;
/// `struct bucket`.
const HASH_BUCKET: u64 = 16;
/// A per-CPU array keeps a pointer an entry.
const PER_CPU_POINTER: u64 = 8;
/// Pages of a ring buffer beside its data: its structure, and both positions.
const RING_PAGES: u64 = 3;
/// The data pages of a ring buffer are mapped twice in a row: two pointers a page.
const RING_PAGE_POINTERS: u64 = 16;
const PAGE: u64 = 4_096;
/// `struct bpf_local_storage_elem` without the value.
const STORAGE_ELEMENT: u64 = 72;
/// `struct bpf_local_storage`: once a thread, whatever it holds.
const STORAGE_HEAD: u64 = 176;

/// A kind of map, as far as its memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MapKind {
    /// Preallocated hash.
    Hash,
    /// Array.
    Array,
    /// Array with a value for each CPU.
    PerCpuArray,
    /// Ring buffer; `entries` are bytes.
    Ring,
    /// A value for each thread that needs one, made when it does.
    TaskStorage,
}

/// One map as it will be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPlan {
    /// Its name in the kernel, at most 15 characters.
    pub name: &'static str,
    /// Its kind.
    pub kind: MapKind,
    /// Bytes of a key.
    pub key: u32,
    /// Bytes of a value.
    pub value: u32,
    /// Entries it can hold; bytes for a ring buffer; 0 for task storage.
    pub entries: u32,
}

impl MapPlan {
    const fn new(
        name: &'static str,
        kind: MapKind,
        key: usize,
        value: usize,
        entries: u32,
    ) -> Self {
        assert!(key <= 0xffff && value <= 0x7fff, "no map of memtrace is as wide as that");
        Self { name, kind, key: key as u32, value: value as u32, entries }
    }

    /// Bytes that the kernel sets aside when the map is made; of task storage nothing.
    #[must_use]
    pub const fn bytes(&self, possible_cpus: u32) -> u64 {
        let Self { name: _, kind, key, value, entries } = *self;
        let (key, value) = (round_up_8(key), round_up_8(value));
        let (entries, cpus) = (entries as u64, possible_cpus as u64);
        match kind {
            // One spare element a CPU makes replacing cheap.
            MapKind::Hash => {
                (entries + cpus) * (HASH_ELEMENT + key + value)
                    + entries.next_power_of_two() * HASH_BUCKET
            }
            MapKind::Array => entries * value,
            MapKind::PerCpuArray => entries * (value * cpus + PER_CPU_POINTER),
            MapKind::Ring => entries + entries / PAGE * RING_PAGE_POINTERS + RING_PAGES * PAGE,
            MapKind::TaskStorage => 0,
        }
    }

    /// Bytes of task storage for each thread that has a value; of other kinds nothing.
    #[must_use]
    pub const fn bytes_per_thread(&self) -> u64 {
        match self.kind {
            MapKind::TaskStorage => slab_class(STORAGE_ELEMENT + round_up_8(self.value)),
            MapKind::Hash | MapKind::Array | MapKind::PerCpuArray | MapKind::Ring => 0,
        }
    }
}

/// Bytes of a thread's storage beside its values.
pub const THREAD_HEAD_BYTES: u64 = slab_class(STORAGE_HEAD);

/// Every map of the kernel side.
pub const PLAN: [MapPlan; 17] = {
    use MapKind::{Array, Hash, PerCpuArray, Ring, TaskStorage};
    use tunables as t;
    [
        MapPlan::new("mt_events", Ring, 0, 0, t::RING_BYTES),
        MapPlan::new("mt_klive", Hash, 8, 16, t::KERNEL_LIVE_ENTRIES),
        MapPlan::new("mt_clive", Hash, 16, 32, t::CALL_LIVE_ENTRIES),
        MapPlan::new("mt_accounts", Array, 4, size_of::<Account>(), t::ACCOUNTS),
        MapPlan::new("mt_index", Hash, size_of::<AccountKey>(), 4, t::ACCOUNTS),
        MapPlan::new("mt_totals", Hash, size_of::<TotalsKey>(), size_of::<Totals>(), t::TOTALS),
        MapPlan::new(
            "mt_processes",
            Hash,
            size_of::<ProcessKey>(),
            size_of::<ProcessEntry>(),
            t::PROCESSES,
        ),
        MapPlan::new("mt_functions", Array, 4, size_of::<FunctionSpec>(), t::FUNCTIONS),
        MapPlan::new("mt_promoted", Hash, 8, 4, t::PROMOTED),
        MapPlan::new("mt_policy_comm", Hash, 16, 4, t::POLICY_ENTRIES),
        MapPlan::new("mt_policy_uid", Hash, 4, 4, t::POLICY_ENTRIES),
        MapPlan::new("mt_policy_cgrp", Hash, 8, 4, t::POLICY_ENTRIES),
        MapPlan::new("mt_loss", Array, 4, size_of::<LossCounter>(), LossCause::ALL.len() as u32),
        // A record under construction, for programs that cannot be preempted.
        MapPlan::new("mt_scratch", PerCpuArray, 4, 2_048, 1),
        MapPlan::new("mt_globals", Array, 4, 256, 1),
        // Threads that take kernel memory.
        MapPlan::new("mt_threads", TaskStorage, 4, 32, 0),
        // Threads that call a probed function.
        MapPlan::new("mt_inflight", TaskStorage, 4, 600, 0),
    ]
};

/// Bytes of all maps of a plan.
#[must_use]
pub fn total_bytes(plan: &[MapPlan], possible_cpus: u32) -> u64 {
    plan.iter().map(|map| map.bytes(possible_cpus)).sum()
}

/// CPUs that this machine could have, hot-plugged ones included: what per-CPU maps are sized by.
///
/// # Errors
///
/// Where `/sys/devices/system/cpu/possible` cannot be read or understood.
pub fn possible_cpus() -> io::Result<u32> {
    let cpus = aya::util::nr_cpus()
        .map_err(|(path, error)| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    u32::try_from(cpus).map_err(io::Error::other)
}

const fn round_up_8(bytes: u32) -> u64 {
    (bytes as u64).next_multiple_of(8)
}

/// The size of the slab object that holds this many bytes.
const fn slab_class(bytes: u64) -> u64 {
    match bytes {
        0..=64 => bytes.next_power_of_two(),
        65..=96 => 96,
        129..=192 => 192,
        _ => bytes.next_power_of_two(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(kind: MapKind, key: u32, value: u32, entries: u32) -> MapPlan {
        MapPlan { name: "x", kind, key, value, entries }
    }

    #[test]
    fn a_hash_has_elements_spares_and_a_power_of_two_of_buckets() {
        // 1,000 and 2 spares of 48 + 8 + 16, 1,024 buckets of 16.
        assert_eq!(map(MapKind::Hash, 4, 12, 1_000).bytes(2), 1_002 * 72 + 1_024 * 16);
    }

    #[test]
    fn per_cpu_values_count_for_each_cpu() {
        let map = map(MapKind::PerCpuArray, 4, 100, 3);
        assert_eq!(map.bytes(64) - map.bytes(63), 3 * 104);
    }

    #[test]
    fn task_storage_takes_a_slab_object_a_thread() {
        assert_eq!(map(MapKind::TaskStorage, 4, 32, 0).bytes_per_thread(), 128);
        assert_eq!(map(MapKind::TaskStorage, 4, 600, 0).bytes_per_thread(), 1_024);
        assert_eq!(map(MapKind::TaskStorage, 4, 600, 0).bytes(64), 0);
    }

    #[test]
    fn the_plan_fits_its_budget_on_a_machine_of_256_cpus() {
        let total = total_bytes(&PLAN, 256);
        assert!(total <= BUDGET_BYTES, "{total}");
    }

    #[test]
    fn the_kernel_keeps_the_whole_name_of_each_map() {
        for map in &PLAN {
            assert!(map.name.len() <= 15 && map.name.starts_with(tunables::NAME_PREFIX));
        }
    }
}
