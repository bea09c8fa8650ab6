//! The sections of numbers: sizes of kernel maps, and when growth becomes a finding.

use std::collections::BTreeMap;
use std::time::Duration;

use memtrace_common::{Domain, tunables};
use serde::Deserialize;

use super::values;

/// Sizes of the kernel maps. They are allocated whole at start, so that a full host never
/// makes the tracer fail; `memtrace doctor` prints what they take.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Maps {
    /// Live kernel allocations followed at a time.
    pub kernel_live: u32,
    /// Live library allocations followed at a time.
    pub call_live: u32,
    /// Kernel accounts: (process, context, call site, detail).
    pub accounts: u32,
    /// Processes known at a time, running or remembered.
    pub processes: u32,
    /// Rows of call-path totals: (address space, function).
    pub totals: u32,
    /// Call sites followed exactly although `exact` is off.
    pub promoted: u32,
    /// Bytes of the ring buffer; a power of two.
    #[serde(deserialize_with = "values::bytes")]
    pub ring: u64,
}

impl Default for Maps {
    fn default() -> Self {
        Self {
            kernel_live: tunables::KERNEL_LIVE_ENTRIES,
            call_live: tunables::CALL_LIVE_ENTRIES,
            accounts: tunables::ACCOUNTS,
            processes: tunables::PROCESSES,
            totals: tunables::TOTALS,
            promoted: tunables::PROMOTED,
            ring: u64::from(tunables::RING_BYTES),
        }
    }
}

impl Maps {
    /// Bounds: below 64 entries nothing works, above 2^24 one map alone is gigabytes.
    pub(super) fn validate(&self) -> Result<(), String> {
        let Self { kernel_live, call_live, accounts, processes, totals, promoted, ring } = self;
        for (key, entries) in [
            ("kernel_live", kernel_live),
            ("call_live", call_live),
            ("accounts", accounts),
            ("processes", processes),
            ("totals", totals),
            ("promoted", promoted),
        ] {
            if !(64..=1 << 24).contains(entries) {
                return Err(format!("maps.{key}: {entries} is not between 64 and 16777216"));
            }
        }
        if !ring.is_power_of_two() || !(64 << 10..=1 << 30).contains(ring) {
            return Err(format!(
                "maps.ring: {ring} bytes is no power of two between 64KiB and 1GiB; \
                 the kernel takes no other size"
            ));
        }
        Ok(())
    }
}

/// How stacks are read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StacksSection {
    /// Functions that hand memory on, beside those that memtrace knows: patterns in which `*`
    /// stands for anything. A finding's headline is the first frame that is none of them.
    pub allocators: Vec<String>,
    /// Bytes of user stacks that are copied a second, at most; 0 copies none.
    #[serde(deserialize_with = "values::bytes")]
    pub copy_bytes_per_second: u64,
}

impl Default for StacksSection {
    fn default() -> Self {
        let copy_bytes_per_second = tunables::COPY_BYTES_PER_SECOND;
        Self { allocators: Vec::new(), copy_bytes_per_second }
    }
}

impl StacksSection {
    /// Bounds: every frame is compared with every pattern.
    pub(super) fn validate(&self) -> Result<(), String> {
        let Self { allocators, copy_bytes_per_second: _ } = self;
        if allocators.len() > 1_024 {
            return Err(format!(
                "stacks.allocators: {} patterns are more than 1024",
                allocators.len()
            ));
        }
        for pattern in allocators {
            if pattern.len() > 512 {
                return Err(format!(
                    "stacks.allocators: a pattern of {} bytes is longer than 512",
                    pattern.len()
                ));
            }
            if pattern.trim_matches(['*', ' ']).is_empty() {
                return Err(format!(
                    "stacks.allocators: `{pattern}` fits every function, so that none is left \
                     for a headline"
                ));
            }
        }
        Ok(())
    }
}

/// When tensors inside PyTorch's pool are looked at although the domain `torch` is off.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TorchSection {
    /// Whether they are, in a process whose pool grows.
    pub on_demand: bool,
    /// For how long.
    #[serde(deserialize_with = "values::duration")]
    pub watch: Duration,
    /// How long the same process is left alone after that.
    #[serde(deserialize_with = "values::duration")]
    pub pause: Duration,
    /// Processes at a time.
    pub processes: u32,
}

impl Default for TorchSection {
    fn default() -> Self {
        let hour = 3_600;
        Self {
            on_demand: true,
            watch: Duration::from_secs(20 * 60),
            pause: Duration::from_secs(6 * hour),
            processes: 4,
        }
    }
}

impl TorchSection {
    pub(super) fn validate(&self) -> Result<(), String> {
        let Self { on_demand: _, watch, pause: _, processes } = self;
        let most = Duration::from_secs(86_400);
        if !(Duration::from_secs(1)..=most).contains(watch) {
            return Err(format!(
                "torch.watch: {} s are not between 1s and 24h; for ever is `domains` with \"torch\"",
                watch.as_secs_f64()
            ));
        }
        if !(1..=64).contains(processes) {
            return Err(format!("torch.processes: {processes} is not between 1 and 64"));
        }
        Ok(())
    }
}

/// From when on probes cost too much, and are taken away for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CeilingSection {
    /// Firings a second and process; 0: there is no ceiling.
    pub firings_per_second: u64,
    /// How long the probes are away.
    #[serde(deserialize_with = "values::duration")]
    pub pause: Duration,
}

impl Default for CeilingSection {
    fn default() -> Self {
        Self { firings_per_second: 1_000_000, pause: Duration::from_secs(60) }
    }
}

impl CeilingSection {
    /// Bounds: taking probes away and bringing them back has a price too.
    pub(super) fn validate(&self) -> Result<(), String> {
        let Self { firings_per_second, pause } = self;
        if (1..1_000).contains(firings_per_second) {
            return Err(format!(
                "ceiling.firings_per_second: {firings_per_second} is what any program does; 0 is \
                 no ceiling, others begin at 1000"
            ));
        }
        let seconds = pause.as_secs_f64();
        if !(1.0..=86_400.0).contains(&seconds) {
            return Err(format!("ceiling.pause: {seconds} s is not between 1s and 24h"));
        }
        Ok(())
    }
}

/// When growth becomes a finding.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VerdictSection {
    /// Length of a window whose lowest live bytes are its floor, seconds.
    pub window_seconds: f64,
    /// Younger books are `warming`, seconds.
    pub minimum_age_seconds: f64,
    /// Growth below this is nobody's concern, bytes.
    #[serde(deserialize_with = "values::bytes")]
    pub minimum_bytes: u64,
    /// The same of domains whose objects have no bytes (handles, memory of other processes): fewer
    /// objects than this are nobody's concern.
    pub minimum_objects: u64,
    /// A `leak` or `growing` that is less sure is not reported, 0 to 1. 0: `growing` says itself
    /// that it is undecided, and what would decide it.
    pub confidence_to_report: f64,
    /// Sites whose findings are known, and no news.
    #[serde(deserialize_with = "values::sites")]
    pub known_sites: Vec<u64>,
    /// What is otherwise in single domains.
    #[serde(deserialize_with = "values::by_domain")]
    pub domain: BTreeMap<Domain, DomainSection>,
}

/// When growth becomes a finding, where that is otherwise in one domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DomainSection {
    /// As in [`VerdictSection`].
    pub minimum_age_seconds: Option<f64>,
    /// As in [`VerdictSection`].
    #[serde(deserialize_with = "values::some_bytes")]
    pub minimum_bytes: Option<u64>,
    /// As in [`VerdictSection`].
    pub minimum_objects: Option<u64>,
    /// As in [`VerdictSection`].
    pub confidence_to_report: Option<f64>,
}

impl Default for VerdictSection {
    fn default() -> Self {
        Self {
            window_seconds: 10.0,
            minimum_age_seconds: 60.0,
            minimum_bytes: 1 << 20,
            minimum_objects: 64,
            confidence_to_report: 0.0,
            known_sites: Vec::new(),
            domain: BTreeMap::new(),
        }
    }
}

impl VerdictSection {
    pub(super) fn validate(&self) -> Result<(), String> {
        let Self {
            window_seconds,
            minimum_age_seconds,
            minimum_bytes: _,
            minimum_objects: _,
            confidence_to_report,
            known_sites,
            domain,
        } = self;
        if !(1.0..=86_400.0).contains(window_seconds) {
            return Err(format!(
                "verdict.window_seconds: {window_seconds} is not between 1 and 86400"
            ));
        }
        age("verdict", *minimum_age_seconds)?;
        confidence("verdict", *confidence_to_report)?;
        // Every row of every dump is compared with them; and nobody knows so many leaks.
        if known_sites.len() > 10_000 {
            return Err(format!(
                "verdict.known_sites: {} sites are more than 10000",
                known_sites.len()
            ));
        }
        for (domain, section) in domain {
            let DomainSection {
                minimum_age_seconds,
                minimum_bytes: _,
                minimum_objects: _,
                confidence_to_report,
            } = *section;
            let key = format!("verdict.domain.{}", domain.name());
            minimum_age_seconds.map_or(Ok(()), |seconds| age(&key, seconds))?;
            confidence_to_report.map_or(Ok(()), |sure| confidence(&key, sure))?;
        }
        Ok(())
    }
}

fn age(section: &str, seconds: f64) -> Result<(), String> {
    if (0.0..=604_800.0).contains(&seconds) {
        return Ok(());
    }
    Err(format!("{section}.minimum_age_seconds: {seconds} is not between 0 and 604800"))
}

fn confidence(section: &str, sure: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&sure) {
        return Ok(());
    }
    Err(format!(
        "{section}.confidence_to_report: {sure} is not between 0 and 1, as SURE in a report is"
    ))
}
