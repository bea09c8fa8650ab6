//! The JSON dump, schema 1, as the suites read it. Types of its own, not the daemon's: what
//! users rely on is the text.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

/// Objects and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Amount {
    /// Objects.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
}

/// `count` objects of `size` bytes.
#[must_use]
pub const fn amount(count: u64, bytes: u64) -> Amount {
    Amount { count, bytes }
}

impl std::ops::Add for Amount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        amount(self.count + other.count, self.bytes + other.bytes)
    }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), |sum, one| sum + one)
    }
}

/// Terms of conservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are contract's")]
pub struct Terms {
    pub seen: Amount,
    pub live: Amount,
    pub freed: Amount,
    pub closed: Amount,
    pub freed_unseen: Amount,
    pub dropped: Amount,
}

/// Terms of one process in one domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are contract's")]
pub struct ProcessTerms {
    #[serde(flatten)]
    pub terms: Terms,
    pub failures: u64,
    pub failed_frees: u64,
    pub unknown_frees: u64,
    pub empty: u64,
    pub implausible: u64,
}

/// A frame.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are contract's")]
pub struct Frame {
    pub kind: String,
    pub symbol: Option<String>,
    pub module: Option<String>,
    pub build_id: Option<String>,
    pub offset: Option<u64>,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub inlined: bool,
    pub allocator: bool,
    pub reason: Option<String>,
}

/// How a stack was taken, and whether it is whole.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are contract's")]
pub struct Taken {
    pub taken: String,
    pub complete: bool,
    pub reason: Option<String>,
}

/// A site.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are contract's")]
pub struct Site {
    pub id: Option<String>,
    pub domain: String,
    pub api: String,
    pub context: String,
    pub device: Option<u8>,
    pub live_bytes: u64,
    pub live_count: u64,
    pub allocated_bytes: u64,
    pub freed_bytes: u64,
    pub allocations: u64,
    pub frees: u64,
    pub failures: u64,
    pub growth_bytes_per_second: Option<f64>,
    pub verdict: String,
    pub confidence: Option<f64>,
    pub evidence: serde_json::Value,
    pub sampling: f64,
    pub frames_sampled: bool,
    pub stack: Option<Taken>,
    pub frames: Vec<Frame>,
    pub note: Option<String>,
}

impl Site {
    /// Whether one of its frames is this function.
    #[must_use]
    pub fn passes(&self, symbol: &str) -> bool {
        self.frames.iter().any(|frame| frame.symbol.as_deref() == Some(symbol))
    }

    /// The frames that are calls, innermost first: each with the functions that are inlined in
    /// it, innermost first, and itself last.
    #[must_use]
    pub fn calls(&self) -> Vec<&[Frame]> {
        self.frames.split_inclusive(|frame| !frame.inlined).collect()
    }

    /// Whether this function makes the call: it is the first frame.
    #[must_use]
    pub fn is_in(&self, symbol: &str) -> bool {
        self.frames.first().is_some_and(|frame| frame.symbol.as_deref() == Some(symbol))
    }
}

/// Sums over several sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Rows.
    pub rows: usize,
    /// Live.
    pub live: Amount,
    /// Allocated since attach.
    pub allocated: Amount,
    /// Freed since attach.
    pub freed: Amount,
    /// Failed calls.
    pub failures: u64,
}

/// The sums over some sites.
pub fn sums<'a>(sites: impl IntoIterator<Item = &'a Site>) -> Sums {
    let mut sums = Sums::default();
    for site in sites {
        sums.rows += 1;
        sums.live = sums.live + amount(site.live_count, site.live_bytes);
        sums.allocated = sums.allocated + amount(site.allocations, site.allocated_bytes);
        sums.freed = sums.freed + amount(site.frees, site.freed_bytes);
        sums.failures += site.failures;
    }
    sums
}

/// A process.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are contract's")]
pub struct Process {
    pub pid: u32,
    pub start_ns: u64,
    pub comm: String,
    pub cmdline: Option<String>,
    pub ended: bool,
    pub ended_at: Option<String>,
    pub measured: Measured,
    pub device: Option<ProcessDevice>,
    pub pool: Option<Pool>,
    pub domains: BTreeMap<String, ProcessTerms>,
    pub devices: Vec<OnDevice>,
    pub sites: Vec<Site>,
}

/// Live device memory on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are the dump's")]
pub struct OnDevice {
    pub device: Option<u8>,
    pub live_bytes: u64,
    pub live_count: u64,
}

impl Process {
    /// Its terms in a domain; all zero where it has none.
    #[must_use]
    pub fn domain(&self, domain: &str) -> ProcessTerms {
        self.domains.get(domain).copied().unwrap_or_default()
    }

    /// Its sites in a domain.
    pub fn sites(&self, domain: &str) -> impl Iterator<Item = &Site> {
        self.sites.iter().filter(move |site| site.domain == domain)
    }

    /// The sums over its sites in a domain that pass through a function.
    #[must_use]
    pub fn at(&self, domain: &str, symbol: &str) -> Sums {
        sums(self.sites(domain).filter(|site| site.passes(symbol)))
    }

    /// The sums over its sites in a domain whose call is in a function: the first frame is it.
    /// What a function below it takes for itself is another site.
    #[must_use]
    pub fn called_in(&self, domain: &str, symbol: &str) -> Sums {
        sums(self.sites(domain).filter(|site| site.is_in(symbol)))
    }

    /// The sums over all its sites in a domain.
    #[must_use]
    pub fn all(&self, domain: &str) -> Sums {
        sums(self.sites(domain))
    }
}

/// What was measured of a process beside its books; `None` is unknown.
#[derive(Clone, Copy, Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are contract's")]
pub struct Measured {
    pub anonymous_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    pub shared_bytes: Option<u64>,
    pub file_bytes: Option<u64>,
    pub anonymous_huge_bytes: Option<u64>,
    pub virtual_bytes: Option<u64>,
    pub threads: Option<u32>,
    pub device_bytes: Option<u64>,
    pub cgroup_limit_bytes: Option<u64>,
    pub cgroup_used_bytes: Option<u64>,
}

/// Device memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are the dump's")]
pub struct ProcessDevice {
    pub nvml_bytes: Option<u64>,
    pub traced_bytes: Option<u64>,
    pub untraced_bytes: Option<i64>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are the dump's")]
pub struct Device {
    pub index: u32,
    pub total_bytes: u64,
    pub used_bytes: u64,
    pub free_bytes: u64,
    pub traced_bytes: Option<u64>,
    pub untraced_bytes: Option<i64>,
    pub processes: Vec<DeviceProcess>,
    pub all_listed: bool,
}

/// A process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are the dump's")]
pub struct DeviceProcess {
    pub pid: u32,
    pub used_bytes: Option<u64>,
    pub gone: bool,
}

/// PyTorch's pool and its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the dump")]
pub struct Pool {
    pub held_bytes: u64,
    pub tensor_bytes: u64,
    pub tensors: u64,
    pub most_bytes: u64,
    pub cached_bytes: u64,
    pub whole: bool,
}

/// Loss to one cause.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Loss {
    /// Events.
    pub count: u64,
    /// Bytes, where known.
    pub bytes: Option<u64>,
}

/// A row of coverage.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are contract's")]
pub struct Coverage {
    pub kind: String,
    pub library: Option<String>,
    pub path: Option<String>,
    pub build_id: Option<String>,
    pub file: Option<String>,
    pub pid: Option<u32>,
    pub attached: bool,
    pub attached_at: Option<String>,
    pub by: Option<String>,
    pub functions: Vec<String>,
    pub missing: Vec<String>,
    pub layers: Vec<String>,
    pub reason: Option<String>,
}

/// What was seen by one layer.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the dump's")]
pub struct Layer {
    pub layer: String,
    pub library: String,
    pub domain: String,
    #[serde(flatten)]
    pub terms: Terms,
    pub failures: u64,
}

/// How long calls of a function took.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the dump's")]
pub struct CallLatency {
    pub function: String,
    pub calls: u64,
    pub sum_seconds: f64,
    pub p50_seconds: Option<f64>,
    pub p99_seconds: Option<f64>,
    pub buckets: Vec<(Option<f64>, u64)>,
}

/// A finding.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are contract's")]
pub struct Finding {
    pub level: String,
    pub domain: String,
    pub processes: Vec<u32>,
    pub site: Option<String>,
    pub function: Option<String>,
    pub verdict: String,
    pub comm: String,
    pub exhaustion: Option<Exhaustion>,
    pub evidence: serde_json::Value,
    pub decided_by: Vec<String>,
}

/// When memory will be gone.
#[derive(Clone, Debug, Deserialize)]
pub struct Exhaustion {
    /// Seconds from now.
    pub seconds: f64,
    /// Of what.
    pub of: String,
}

/// A whole dump.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are contract's")]
pub struct Dump {
    pub schema: u32,
    pub generated_at: String,
    pub attached_at: String,
    pub stopped_at: Option<String>,
    pub domains: BTreeMap<String, Terms>,
    pub coverage: Vec<Coverage>,
    pub layers: Vec<Layer>,
    pub latency: Vec<CallLatency>,
    pub devices: Vec<Device>,
    pub not_seen: Vec<String>,
    pub loss: BTreeMap<String, Loss>,
    pub processes: Vec<Process>,
    pub findings: Vec<Finding>,
}

impl Dump {
    /// Reads a dump.
    ///
    /// # Errors
    ///
    /// When the text is not one of schema 1.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let start: String = text.chars().take(200).collect();
        let dump: Self = serde_json::from_str(text)
            .with_context(|| format!("not a dump of schema 1, it begins {start:?}"))?;
        ensure!(dump.schema == 1, "schema {} instead of 1", dump.schema);
        Ok(dump)
    }

    /// The process of this id; the last started one, should there be several.
    ///
    /// # Errors
    ///
    /// When it is not on the books.
    pub fn process(&self, pid: u32) -> anyhow::Result<&Process> {
        self.processes
            .iter()
            .filter(|one| one.pid == pid)
            .max_by_key(|one| one.start_ns)
            .with_context(|| {
                let known: Vec<_> = self.processes.iter().map(|one| (one.pid, &one.comm)).collect();
                format!("process {pid} is not on the books, which have {known:?}")
            })
    }

    /// The count of a loss cause.
    ///
    /// # Errors
    ///
    /// When the dump has no such cause: every cause is there from the start, at 0.
    pub fn lost(&self, cause: &str) -> anyhow::Result<u64> {
        Ok(self.loss.get(cause).with_context(|| format!("no loss cause {cause}"))?.count)
    }

    /// All causes that lost anything.
    #[must_use]
    pub fn losses(&self) -> BTreeMap<&str, u64> {
        let all = self.loss.iter().map(|(cause, loss)| (cause.as_str(), loss.count));
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// The coverage row of a library file at this path, told by its file name and directory.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn coverage_of(&self, path: &std::path::Path) -> anyhow::Result<&Coverage> {
        let path = path.to_string_lossy();
        self.coverage
            .iter()
            .find(|row| row.path.as_deref() == Some(&*path))
            .with_context(|| format!("no coverage row for {path}: {:?}", self.coverage))
    }

    /// The coverage row of a process.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn coverage_of_process(&self, pid: u32) -> anyhow::Result<&Coverage> {
        let mut rows = self.coverage.iter().filter(|row| row.kind == "process");
        rows.find(|row| row.pid == Some(pid))
            .with_context(|| format!("no coverage row of process {pid}: {:?}", self.coverage))
    }

    /// Checks rule 6 of the books, in bytes and counts, for the host and every process, and that
    /// the sites of each process add up to its terms.
    ///
    /// # Errors
    ///
    /// The first place where it does not hold, with its numbers.
    pub fn check_conservation(&self) -> anyhow::Result<()> {
        for (domain, terms) in &self.domains {
            check_terms(&format!("host, {domain}"), terms)?;
        }
        for process in &self.processes {
            for (domain, ProcessTerms { terms, .. }) in &process.domains {
                let whose = format!("{} ({}), {domain}", process.pid, process.comm);
                check_terms(&whose, terms)?;
                let Sums { allocated, .. } = process.all(domain);
                if terms.seen != allocated + terms.dropped {
                    bail!("{whose}: sites add up to {allocated:?}, terms are {terms:?}");
                }
            }
        }
        Ok(())
    }
}

fn check_terms(whose: &str, terms: &Terms) -> anyhow::Result<()> {
    let Terms { seen, live, freed, closed, freed_unseen, dropped } = *terms;
    if seen != live + freed + closed + freed_unseen + dropped {
        bail!("{whose}: not conserved: {terms:?}");
    }
    Ok(())
}
