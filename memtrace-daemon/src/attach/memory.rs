//! What memory the kernel side's maps take on this machine, computed before they are made.
//!
//! Which maps there are is read from the BPF object itself, so that this cannot differ from
//! what is loaded. Makes no map, and asks the kernel nothing but the number of its CPUs. The
//! formulas are those of the kernel's `htab_map_mem_usage`, `array_map_mem_usage`,
//! `queue_stack_map_mem_usage` and `ringbuf_map_mem_usage`, less a constant below 1 KiB a map
//! (`tests/tests/map_memory.rs` holds them against what the kernel reports). Task storage is
//! reckoned from its structures; no kernel reports it.

use std::io;

use aya_obj::generated::bpf_map_type;
use aya_obj::{Object, ParseError};
use serde::Serialize;
use thiserror::Error;

use super::options::Sizes;

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

/// Why it cannot be computed: both are faults of the build.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The object is broken.
    #[error("the BPF object cannot be parsed: {0}")]
    Parse(#[from] ParseError),
    /// A kind of map whose memory is not known here.
    #[error("the map {name} is of type {kind}, whose memory nobody has reckoned")]
    Kind {
        /// The map.
        name: String,
        /// Number of `enum bpf_map_type`.
        kind: u32,
    },
}

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
    /// Queue.
    Queue,
    /// Ring buffer; `entries` are bytes.
    Ring,
    /// A value for each thread that needs one, made when it does.
    TaskStorage,
}

impl MapKind {
    const ALL: [(bpf_map_type, Self); 6] = [
        (bpf_map_type::BPF_MAP_TYPE_HASH, Self::Hash),
        (bpf_map_type::BPF_MAP_TYPE_ARRAY, Self::Array),
        (bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY, Self::PerCpuArray),
        (bpf_map_type::BPF_MAP_TYPE_QUEUE, Self::Queue),
        (bpf_map_type::BPF_MAP_TYPE_RINGBUF, Self::Ring),
        (bpf_map_type::BPF_MAP_TYPE_TASK_STORAGE, Self::TaskStorage),
    ];

    fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|(kind, _)| *kind as u32 == number).map(|(_, kind)| kind)
    }

    /// The kernel's name of it.
    #[must_use]
    pub fn kernel(self) -> Option<bpf_map_type> {
        Self::ALL.into_iter().find(|(_, kind)| *kind == self).map(|(kind, _)| kind)
    }
}

/// One map as it will be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapPlan {
    /// Its name.
    pub name: String,
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
    /// Bytes that the kernel sets aside when the map is made; of task storage nothing.
    #[must_use]
    pub const fn bytes(&self, possible_cpus: u32) -> u64 {
        let Self { name: _, kind, key, value, entries } = self;
        let (entries, cpus) = (*entries as u64, possible_cpus as u64);
        match kind {
            // One spare element a CPU makes replacing cheap.
            MapKind::Hash => {
                let element = HASH_ELEMENT + round_up_8(*key) + round_up_8(*value);
                (entries + cpus) * element + entries.next_power_of_two() * HASH_BUCKET
            }
            MapKind::Array => entries * round_up_8(*value),
            MapKind::PerCpuArray => entries * (round_up_8(*value) * cpus + PER_CPU_POINTER),
            MapKind::Queue => (entries + 1) * *value as u64,
            MapKind::Ring => entries + entries / PAGE * RING_PAGE_POINTERS + RING_PAGES * PAGE,
            MapKind::TaskStorage => 0,
        }
    }

    /// Bytes of task storage for each thread that has a value; of other kinds nothing.
    #[must_use]
    pub const fn bytes_per_thread(&self) -> u64 {
        match self.kind {
            MapKind::TaskStorage => slab_class(STORAGE_ELEMENT + round_up_8(self.value)),
            _ => 0,
        }
    }
}

/// Bytes of a thread's storage beside its values.
pub const THREAD_HEAD_BYTES: u64 = slab_class(STORAGE_HEAD);

/// Every map of a BPF object with these sizes, largest first.
///
/// # Errors
/// What is wrong with the object.
pub fn plan(object: &[u8], sizes: &Sizes, possible_cpus: u32) -> Result<Vec<MapPlan>, PlanError> {
    let chosen = sizes.map_entries();
    let object = Object::parse(object)?;
    let map = |(name, map): (String, aya_obj::Map)| {
        let number = map.map_type();
        let Some(kind) = MapKind::from_number(number) else {
            return Err(PlanError::Kind { name, kind: number });
        };
        let chosen = chosen.iter().find(|(own, _)| *own == name).map(|(_, entries)| *entries);
        let entries = chosen.unwrap_or(map.max_entries());
        Ok(MapPlan { kind, key: map.key_size(), value: map.value_size(), entries, name })
    };
    let mut maps = object.maps.into_iter().map(map).collect::<Result<Vec<_>, _>>()?;
    maps.sort_by(|a, b| {
        b.bytes(possible_cpus).cmp(&a.bytes(possible_cpus)).then_with(|| a.name.cmp(&b.name))
    });
    Ok(maps)
}

/// Bytes of all maps of a plan.
#[must_use]
pub fn total_bytes(plan: &[MapPlan], possible_cpus: u32) -> u64 {
    plan.iter().map(|map| map.bytes(possible_cpus)).sum()
}

/// CPUs that this machine could have, hot-plugged ones included: what per-CPU maps are sized by.
///
/// # Errors
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
        65..=96 => 96,
        129..=192 => 192,
        _ => bytes.next_power_of_two(),
    }
}

#[cfg(test)]
mod tests {
    use memtrace_common::{Account, tunables};

    use super::*;
    use crate::attach::object::OBJECT;

    fn map(kind: MapKind, key: u32, value: u32, entries: u32) -> MapPlan {
        MapPlan { name: "x".into(), kind, key, value, entries }
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
        assert_eq!(map(MapKind::TaskStorage, 4, 16, 0).bytes_per_thread(), 96);
        assert_eq!(map(MapKind::TaskStorage, 4, 456, 0).bytes_per_thread(), 1_024);
        assert_eq!(map(MapKind::TaskStorage, 4, 456, 0).bytes(64), 0);
    }

    #[test]
    fn the_plan_is_what_the_object_has_in_the_sizes_asked_for() {
        let sizes = Sizes { accounts: 77, ..Sizes::default() };
        let plan = plan(OBJECT, &sizes, 2).unwrap();
        let named = |name: &str| plan.iter().find(|map| map.name == name).unwrap();
        let accounts = named("mt_accounts");
        assert_eq!((accounts.kind, accounts.entries), (MapKind::Array, 77));
        assert_eq!(accounts.value as usize, size_of::<Account>());
        assert_eq!(named("mt_events").entries, tunables::RING_BYTES);
        assert_eq!(named("mt_klive").entries, tunables::KERNEL_LIVE_ENTRIES);
        assert_eq!(named("mt_inflight").kind, MapKind::TaskStorage);
    }

    #[test]
    fn the_default_plan_fits_its_budget_on_a_machine_of_256_cpus() {
        let plan = plan(OBJECT, &Sizes::default(), 256).unwrap();
        let total = total_bytes(&plan, 256);
        assert!(total <= BUDGET_BYTES, "{total}");
    }

    #[test]
    fn the_kernel_keeps_the_whole_name_of_each_map() {
        let plan = plan(OBJECT, &Sizes::default(), 2).unwrap();
        // Sections of global data are maps too; aya names them after the section.
        for map in plan.iter().filter(|map| !map.name.starts_with('.')) {
            assert!(map.name.len() <= 15, "{map:?}");
            assert!(map.name.starts_with(tunables::NAME_PREFIX), "{map:?}");
        }
    }
}
