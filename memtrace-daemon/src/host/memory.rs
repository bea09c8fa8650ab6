//! Host and kernel memory, as /proc/meminfo has it.

use super::rows::Rows;
use crate::record::{HostMemory, Observation};

/// So many looks lie between two at the lists of free pages that CPUs have: /proc/zoneinfo has
/// a row for each CPU in each zone.
const ZONES_EVERY: u32 = 10;

/// Looks at host memory.
#[derive(Default)]
pub(super) struct Memory {
    looks: u32,
}

impl Memory {
    /// What can be said now.
    pub(super) fn look(&mut self) -> Option<Observation> {
        // /proc is mounted, or nothing of memtrace works; a second later it is tried again.
        let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
        let mut memory = parse(&meminfo)?;
        if self.looks.is_multiple_of(ZONES_EVERY) {
            let page = u64::try_from(rustix::param::page_size()).ok();
            let zones = std::fs::read_to_string("/proc/zoneinfo").ok();
            memory.page_lists_bytes =
                zones.zip(page).map(|(zones, page)| on_lists(&zones).saturating_mul(page));
        }
        self.looks = self.looks.wrapping_add(1);
        Some(Observation::Memory(memory))
    }
}

/// `None` where it is no /proc/meminfo of a kernel that BPF programs of ours run on.
fn parse(meminfo: &str) -> Option<HostMemory> {
    let rows = Rows::new(meminfo);
    let no_slab = rows.or_zero("KReclaimable").saturating_sub(rows.or_zero("SReclaimable"));
    let free_pages = rows.or_zero("HugePages_Free");
    Some(HostMemory {
        total_bytes: rows.get("MemTotal")?,
        available_bytes: rows.get("MemAvailable")?,
        free_bytes: rows.get("MemFree")?,
        cached_bytes: rows.get("Buffers")? + rows.get("Cached")? + rows.or_zero("SwapCached"),
        shared_bytes: rows.or_zero("Shmem"),
        anonymous_bytes: rows.get("AnonPages")?,
        anonymous_huge_bytes: rows.or_zero("AnonHugePages"),
        swap_total_bytes: rows.or_zero("SwapTotal"),
        swap_free_bytes: rows.or_zero("SwapFree"),
        slab_bytes: rows.get("Slab")?,
        unreclaimable_bytes: rows.get("SUnreclaim")?,
        kernel_stack_bytes: rows.or_zero("KernelStack"),
        vmalloc_bytes: rows.or_zero("VmallocUsed"),
        page_table_bytes: rows.or_zero("PageTables") + rows.or_zero("SecPageTables"),
        per_cpu_bytes: rows.or_zero("Percpu"),
        other_bytes: rows.or_zero("Bounce")
            + rows.or_zero("Zswap")
            + rows.or_zero("Balloon")
            + no_slab,
        huge_pool_bytes: rows.or_zero("Hugetlb"),
        huge_free_bytes: free_pages.saturating_mul(rows.or_zero("Hugepagesize")),
        page_lists_bytes: None,
    })
}

/// Pages on the lists of the CPUs.
fn on_lists(zoneinfo: &str) -> u64 {
    let count = |line: &str| line.trim_start().strip_prefix("count:")?.trim().parse::<u64>().ok();
    zoneinfo.lines().filter_map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a host with 24 GiB, kernel 6.18, shortened.
    const SAMPLE: &str = "\
MemTotal:       24684092 kB
MemFree:         1430932 kB
MemAvailable:   24090500 kB
Buffers:           42184 kB
Cached:         22317564 kB
SwapCached:            0 kB
SwapTotal:             0 kB
SwapFree:              0 kB
Zswap:                 0 kB
AnonPages:         16360 kB
Shmem:              8856 kB
KReclaimable:     709956 kB
Slab:             795036 kB
SReclaimable:     709956 kB
SUnreclaim:        85080 kB
KernelStack:        1416 kB
PageTables:         1548 kB
SecPageTables:         4 kB
Bounce:                0 kB
VmallocUsed:        5684 kB
Percpu:              712 kB
AnonHugePages:      2048 kB
Balloon:               8 kB
HugePages_Total:      32
HugePages_Free:       30
Hugepagesize:       2048 kB
Hugetlb:           65536 kB
";

    #[test]
    fn a_real_meminfo_is_an_accounting() {
        let memory = parse(SAMPLE).unwrap();
        assert_eq!(memory.total_bytes, 24_684_092 << 10);
        assert_eq!(memory.cached_bytes, (42_184 + 22_317_564) << 10);
        assert_eq!(memory.page_table_bytes, 1_552 << 10);
        assert_eq!(memory.other_bytes, 8 << 10);
        assert_eq!((memory.huge_pool_bytes, memory.huge_free_bytes), (64 << 20, 60 << 20));
        assert_eq!(memory.ownerless_bytes(), None, "the lists of the CPUs were not looked at");
        let looked = HostMemory { page_lists_bytes: Some(50 << 20), ..memory };
        let owned = 1_430_932
            + 51_200
            + 42_184
            + 22_317_564
            + 16_360
            + 795_036
            + 5_684
            + 1_552
            + 712
            + 8
            + 4_096;
        assert_eq!(looked.ownerless_bytes(), Some((24_684_092 - owned) << 10));
        assert_eq!(parse("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn pages_on_the_lists_of_cpus_are_added_up() {
        let zones = "  pagesets\n    cpu: 0\n              count:    4\n              high:     \
                     1444\n    cpu: 1\n              count:    38\n  vm stats threshold: 24\n";
        assert_eq!(on_lists(zones), 42);
    }

    #[test]
    fn this_host_has_memory_that_has_an_owner() {
        let mut memory = Memory::default();
        let Some(Observation::Memory(first)) = memory.look() else { panic!("no /proc/meminfo") };
        let ownerless = first.ownerless_bytes().unwrap();
        assert!(ownerless < first.total_bytes / 2, "{first:?}");
        let Some(Observation::Memory(second)) = memory.look() else { panic!("no /proc/meminfo") };
        assert_eq!(second.page_lists_bytes, None);
        assert_eq!(second.total_bytes, first.total_bytes);
    }
}
