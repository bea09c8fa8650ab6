//! What the stub libraries know about who was given what, and the comparison with the books.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::dump::{Amount, OnDevice, Process};

/// The domains that the stubs give memory in and that are on by default.
pub const DOMAINS: [&str; 3] = ["cuda", "managed", "pinned"];
/// All domains of the stubs.
const ALL: [&str; 5] = ["cuda", "managed", "pinned", "cuda_ipc", "handles"];

/// One line of the client.
#[derive(Clone, Debug, Deserialize)]
pub struct Truth {
    /// Its process id.
    pub pid: u32,
    /// A child that it had, where the scenario has one.
    #[serde(default)]
    pub child: Option<u32>,
    /// The stub's books.
    pub books: StubBooks,
}

/// The stub's books of one process image.
#[derive(Clone, Debug, Deserialize)]
pub struct StubBooks {
    /// Live device memory, by the number of its device.
    pub devices: BTreeMap<String, Amount>,
    /// By domain.
    pub domains: BTreeMap<String, DomainTruth>,
    /// By function that was called; nested calls under the outer one.
    pub functions: BTreeMap<String, FunctionTruth>,
}

/// What is true of one domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the dump")]
pub struct DomainTruth {
    pub seen: Amount,
    pub live: Amount,
    pub freed: Amount,
    pub freed_unseen: Amount,
    pub closed: Amount,
    pub failures: u64,
    pub failed_frees: u64,
    pub unknown_frees: u64,
    pub empty: u64,
    pub implausible: u64,
}

/// What is true of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct FunctionTruth {
    /// Successful allocations.
    pub seen: Amount,
    /// Failed calls.
    pub failures: u64,
    /// Successful frees, nested ones under the outer function.
    pub frees: u64,
}

impl Truth {
    /// Reads a line of the client.
    ///
    /// # Errors
    ///
    /// When it is something else.
    pub fn parse(line: Value) -> anyhow::Result<Self> {
        let text = line.to_string();
        serde_json::from_value(line).with_context(|| format!("not a line of the client: {text}"))
    }

    /// One domain.
    #[must_use]
    pub fn domain(&self, domain: &str) -> DomainTruth {
        self.books.domains.get(domain).copied().unwrap_or_default()
    }

    /// Checks that the books of a process that runs say the same, in all domains and functions.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn check_running(&self, process: &Process) -> anyhow::Result<()> {
        ensure!(!process.ended, "{} runs, the books say that it has ended", self.pid);
        for domain in ALL {
            let DomainTruth { live, closed, .. } = self.check_domain(process, domain)?;
            let terms = process.domain(domain).terms;
            ensure!(terms.live == live, "{domain}: live {:?}, truly {live:?}", terms.live);
            ensure!(
                terms.closed == closed,
                "{domain}: closed {:?}, truly {closed:?}",
                terms.closed
            );
        }
        self.check_functions(process)
    }

    /// Checks that the books of a process that runs have its device memory on the same devices.
    ///
    /// # Errors
    ///
    /// When they do not.
    pub fn check_devices(&self, process: &Process) -> anyhow::Result<()> {
        let of = |on: &OnDevice| {
            let number =
                on.device.map_or_else(|| "unknown".to_owned(), |number| number.to_string());
            (number, Amount { count: on.live_count, bytes: on.live_bytes })
        };
        let devices: BTreeMap<String, Amount> = process.devices.iter().map(of).collect();
        let truth = &self.books.devices;
        ensure!(devices == *truth, "the books say {devices:?}, the stub {truth:?}");
        Ok(())
    }

    /// Checks that the books of a process that has ended say the same, and that what it still
    /// held was closed.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn check_ended(&self, process: &Process) -> anyhow::Result<()> {
        self.check_ended_but_names(process)?;
        self.check_functions(process)
    }

    /// The same but for the names of functions: where a call was left in the middle, its memory
    /// is on the books under the name of the inner function that gave it.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn check_ended_but_names(&self, process: &Process) -> anyhow::Result<()> {
        ensure!(process.ended, "{} has ended, the books say that it runs", self.pid);
        for domain in ALL {
            let DomainTruth { live, closed, .. } = self.check_domain(process, domain)?;
            let terms = process.domain(domain).terms;
            // What a reset gave back, and what was there at the end.
            let closed = closed + live;
            ensure!(
                terms.closed == closed,
                "{domain}: closed {:?}, truly {closed:?}",
                terms.closed
            );
            ensure!(terms.live == Amount::default(), "{domain}: live {:?}", terms.live);
        }
        Ok(())
    }

    fn check_domain(&self, process: &Process, domain: &str) -> anyhow::Result<DomainTruth> {
        let truth = self.domain(domain);
        let books = process.domain(domain);
        let as_truth = DomainTruth {
            seen: books.terms.seen,
            live: truth.live,
            closed: truth.closed,
            freed: books.terms.freed,
            freed_unseen: books.terms.freed_unseen,
            failures: books.failures,
            failed_frees: books.failed_frees,
            unknown_frees: books.unknown_frees,
            empty: books.empty,
            implausible: books.implausible,
        };
        ensure!(as_truth == truth, "{domain}: the books say {books:?}, the stub {truth:?}");
        let held = process.all(domain).live;
        ensure!(held == truth.live, "{domain}: sites hold {held:?}, truly {:?}", truth.live);
        Ok(truth)
    }

    fn check_functions(&self, process: &Process) -> anyhow::Result<()> {
        let sites = || process.sites.iter().filter(|site| ALL.contains(&&*site.domain));
        let on_books = sites().map(|site| &site.api);
        let all: BTreeSet<&String> = self.books.functions.keys().chain(on_books).collect();
        for function in all {
            let sums = crate::dump::sums(sites().filter(|site| site.api == *function));
            let truth = self.books.functions.get(function).copied().unwrap_or_default();
            let (allocated, seen) = (sums.allocated, truth.seen);
            ensure!(allocated == seen, "{function}: allocated {allocated:?}, truly {seen:?}");
            // Of a function that takes back, the stub counts failed frees here, and no site does.
            // Where books have nothing, no failure is missing: the sums of domains are the same.
            if allocated.count > 0 || sums.failures > 0 {
                let (failures, truly) = (sums.failures, truth.failures);
                ensure!(failures == truly, "{function}: {failures} failures, truly {truly}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn site(api: &str, failures: u64) -> Value {
        json!({
            "domain": "cuda", "api": api, "context": "process", "failures": failures,
            "live_bytes": 0, "live_count": 0, "allocated_bytes": 0, "allocations": 0,
            "freed_bytes": 0, "frees": 0, "verdict": "steady", "evidence": {}, "sampling": 1.0,
            "frames_sampled": false, "frames": [],
        })
    }

    fn process(sites: &[Value]) -> Process {
        let process = json!({
            "pid": 1, "start_ns": 1, "comm": "client", "ended": false, "measured": {},
            "domains": {}, "devices": [], "sites": sites,
        });
        serde_json::from_value(process).unwrap()
    }

    #[test]
    fn a_failure_in_the_name_of_another_function_is_a_difference() {
        let failed = |failures: u64| {
            let seen = json!({"count": 0, "bytes": 0});
            json!({"seen": seen, "failures": failures, "frees": 0})
        };
        let functions = json!({"cudaMalloc": failed(2), "cudaFree": failed(1)});
        let books = json!({"devices": {}, "domains": {}, "functions": functions});
        let truth = Truth::parse(json!({"pid": 1, "books": books})).unwrap();
        let two_sites = process(&[site("cudaMalloc", 1), site("cudaMalloc", 1)]);
        truth.check_functions(&two_sites).unwrap();
        let inner = process(&[site("cudaMalloc", 1), site("cuMemAlloc_v2", 1)]);
        assert!(truth.check_functions(&inner).is_err());
        let twice = process(&[site("cudaMalloc", 2), site("cuMemAlloc_v2", 2)]);
        assert!(truth.check_functions(&twice).is_err());
    }
}
