//! What the kernel side is loaded with: sizes of maps and what is to be booked.

use memtrace_common::{Domain, tunables};

/// Sizes of the maps. Every one is bounded; what does not fit is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Live kernel allocations followed.
    pub kernel_live_entries: u32,
    /// Live allocations by library functions followed.
    pub call_live_entries: u32,
    /// Kernel accounts.
    pub accounts: u32,
    /// Processes.
    pub processes: u32,
    /// Rows of call-path totals.
    pub totals: u32,
    /// Call sites followed exactly although the rest is not.
    pub promoted: u32,
    /// Bytes of the ring buffer: a power of two of pages.
    pub ring_bytes: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            kernel_live_entries: tunables::KERNEL_LIVE_ENTRIES,
            call_live_entries: tunables::CALL_LIVE_ENTRIES,
            accounts: tunables::ACCOUNTS,
            processes: tunables::PROCESSES,
            totals: tunables::TOTALS,
            promoted: tunables::PROMOTED,
            ring_bytes: tunables::RING_BYTES,
        }
    }
}

impl Sizes {
    /// (map, entries) as the loader takes them.
    #[must_use]
    pub const fn map_entries(&self) -> [(&'static str, u32); 10] {
        [
            ("mt_klive", self.kernel_live_entries),
            ("mt_clive", self.call_live_entries),
            ("mt_accounts", self.accounts),
            ("mt_index", self.accounts),
            ("mt_slots", self.accounts),
            ("mt_processes", self.processes),
            ("mt_policy_proc", self.processes),
            ("mt_totals", self.totals),
            ("mt_promoted", self.promoted),
            ("mt_events", self.ring_bytes),
        ]
    }
}

/// Who is named by a policy, and what is said of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// The name of a group leader, exactly (15 bytes at most).
    Comm(String),
    /// A real user id.
    Uid(u32),
}

/// How the kernel side is loaded.
#[derive(Clone, Debug)]
pub struct Options {
    /// Domains that are booked.
    pub domains: Vec<Domain>,
    /// Every kernel allocation by its whole stack.
    pub exact: bool,
    /// Named slab caches too.
    pub kmem_cache: bool,
    /// Only processes marked as traced are booked (`run`, `attach`).
    pub only_traced: bool,
    /// Whether any policy is set, now or later.
    pub policy_active: bool,
    /// With a policy: leave out whom no rule includes.
    pub policy_default_exclude: bool,
    /// Growth of live bytes at which a kernel stack is taken.
    pub sample_quantum_bytes: u64,
    /// Static probes are attached too, at once or later.
    pub static_probes: bool,
    /// Bytes of user stacks that are copied a second, at most; beyond, stacks are taken by frame
    /// pointers.
    pub copy_bytes_per_second: u64,
    /// Age class 0 of frees ends at 2^this ns, and each class after it at twice as much.
    pub age_shift: u64,
    /// Sizes of the maps.
    pub sizes: Sizes,
    /// CPUs that the kernel may bring up.
    pub possible_cpus: u32,
}

impl Options {
    /// Everybody, in these domains, with default sizes.
    #[must_use]
    pub fn new(domains: Vec<Domain>, possible_cpus: u32) -> Self {
        Self {
            static_probes: domains.contains(&Domain::Torch),
            domains,
            exact: false,
            kmem_cache: false,
            only_traced: false,
            policy_active: false,
            policy_default_exclude: false,
            sample_quantum_bytes: tunables::SAMPLE_QUANTUM_BYTES,
            copy_bytes_per_second: tunables::COPY_BYTES_PER_SECOND,
            age_shift: tunables::AGE_SHIFT,
            sizes: Sizes::default(),
            possible_cpus,
        }
    }

    /// Whether a domain is booked.
    #[must_use]
    pub fn books(&self, domain: Domain) -> bool {
        self.domains.contains(&domain)
    }

    /// Whether any domain of library functions is booked.
    #[must_use]
    pub fn books_calls(&self) -> bool {
        self.domains.iter().any(|domain| *domain != Domain::Kernel)
    }

    /// What a copied KiB of stack costs, in ns of waiting.
    #[must_use]
    pub const fn copy_kib_ns(&self) -> u64 {
        match (1_024 * 1_000_000_000_u64).checked_div(self.copy_bytes_per_second) {
            Some(ns) => ns,
            // So much that nothing is ever copied.
            None => u64::MAX >> 20,
        }
    }

    /// How long waiting is forgiven, ns: what a ring buffer costs, which rings long before.
    #[must_use]
    pub const fn copy_burst_ns(&self) -> u64 {
        let burst = self.sizes.ring_bytes as u64;
        match burst.saturating_mul(1_000_000_000).checked_div(self.copy_bytes_per_second) {
            Some(ns) => ns,
            None => 0,
        }
    }

    /// Changes of the count of live entries that one CPU may save up: all CPUs together stay
    /// below 1 % of the map.
    #[must_use]
    pub fn live_batch(&self) -> u64 {
        let share = u64::from(self.sizes.kernel_live_entries) / 100;
        (share / u64::from(self.possible_cpus.max(1))).clamp(1, 64)
    }
}
