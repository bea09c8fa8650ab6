//! The numbers of the verdict, as the configuration file has them, and which verdicts are news.

use std::collections::{BTreeMap, BTreeSet};

use memtrace_common::Domain;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::snapshot::Verdict;

/// When growth is worth a word, and which word.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VerdictConfig {
    /// Length of a window, seconds. The floor of a window is the lowest live bytes in it.
    pub window_seconds: f64,
    /// Sites younger than this are warming up, seconds.
    pub min_age_seconds: f64,
    /// Sites smaller than this are not judged, bytes.
    pub min_bytes: u64,
    /// Consecutive rising windows that make `growing`.
    pub growing_windows: u32,
    /// Windows that a leak must have been watched for. A cache that fills looks like a leak
    /// until it is full, so this is long.
    pub leak_windows: u32,
    /// Share of these windows that must have risen, 0 to 1.
    pub leak_rising_share: f64,
    /// A site that frees more than this share of what it allocates is not called a leak, 0 to 1.
    pub leak_freed_share: f64,
    /// Windows without a new high floor after which growth has stopped.
    pub plateau_windows: u32,
    /// Share of events lost while a site was watched that makes its verdict `unreliable`, 0 to 1.
    pub loss_share: f64,
    /// A `leak` or `growing` that is less sure than this is no finding, 0 to 1; its row keeps the
    /// verdict.
    pub confidence_to_report: f64,
    /// Sites whose findings are known, and no news.
    #[serde(deserialize_with = "sites")]
    pub known_sites: BTreeSet<u64>,
    /// What is otherwise in single domains.
    #[serde(rename = "domain", deserialize_with = "domains")]
    pub domains: BTreeMap<Domain, DomainConfig>,
}

/// What is otherwise in one domain; `None`: as everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DomainConfig {
    /// For [`VerdictConfig::min_age_seconds`].
    pub min_age_seconds: Option<f64>,
    /// For [`VerdictConfig::min_bytes`].
    pub min_bytes: Option<u64>,
    /// For [`VerdictConfig::confidence_to_report`].
    pub confidence_to_report: Option<f64>,
}

impl Default for VerdictConfig {
    fn default() -> Self {
        Self {
            window_seconds: 10.0,
            min_age_seconds: 60.0,
            min_bytes: 1 << 20,
            growing_windows: 6,
            leak_windows: 45,
            leak_rising_share: 0.9,
            leak_freed_share: 0.5,
            plateau_windows: 12,
            loss_share: 0.05,
            confidence_to_report: 0.0,
            known_sites: BTreeSet::new(),
            domains: BTreeMap::new(),
        }
    }
}

impl VerdictConfig {
    /// Length of a window, ns; at least a millisecond.
    #[must_use]
    pub fn window_ns(&self) -> u64 {
        nanoseconds(self.window_seconds).max(1_000_000)
    }

    /// Age at which a site is judged, ns.
    #[must_use]
    pub fn min_age_ns(&self) -> u64 {
        nanoseconds(self.min_age_seconds)
    }

    /// Age at which a site of this domain is judged, ns.
    #[must_use]
    pub fn min_age_ns_of(&self, domain: Domain) -> u64 {
        nanoseconds(self.of(domain).min_age_seconds.unwrap_or(self.min_age_seconds))
    }

    /// Sites of this domain that are smaller are not judged, bytes.
    #[must_use]
    pub fn min_bytes_of(&self, domain: Domain) -> u64 {
        self.of(domain).min_bytes.unwrap_or(self.min_bytes)
    }

    /// How sure a `leak` or `growing` of this domain must be to be a finding, 0 to 1.
    #[must_use]
    pub fn confidence_to_report_of(&self, domain: Domain) -> f64 {
        self.of(domain).confidence_to_report.unwrap_or(self.confidence_to_report)
    }

    /// Whether what is said about growth is a finding: it is not where it is known or not sure
    /// enough. Which verdicts are news at all is not decided here.
    #[must_use]
    pub fn reports(
        &self,
        domain: Domain,
        verdict: Verdict,
        confidence: Option<f64>,
        site: Option<u64>,
    ) -> bool {
        if site.is_some_and(|site| self.known_sites.contains(&site)) {
            return false;
        }
        // The others are no guess about growth: they say what was seen, or that too little was.
        let guess = matches!(verdict, Verdict::Leak | Verdict::Growing);
        !guess || confidence.is_none_or(|sure| sure >= self.confidence_to_report_of(domain))
    }

    fn of(&self, domain: Domain) -> DomainConfig {
        self.domains.get(&domain).copied().unwrap_or_default()
    }

    /// Windows that a history holds.
    #[must_use]
    pub fn capacity(&self) -> usize {
        usize::try_from(self.leak_windows.clamp(24, 1_000)).unwrap_or(24) + 1
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    // `as` saturates: a negative or huge number of seconds is 0 or for ever.
    (seconds * 1e9) as u64
}

fn sites<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<u64>, D::Error> {
    let ids = Vec::<String>::deserialize(deserializer)?;
    let read = |id: &String| {
        u64::from_str_radix(id, 16).map_err(|error| D::Error::custom(format!("`{id}`: {error}")))
    };
    ids.iter().map(read).collect()
}

fn domains<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<Domain, DomainConfig>, D::Error> {
    let named = BTreeMap::<String, DomainConfig>::deserialize(deserializer)?;
    let read = |(name, config): (String, DomainConfig)| {
        let domain = Domain::from_name(&name);
        Ok((domain.ok_or_else(|| D::Error::custom(format!("no domain `{name}`")))?, config))
    };
    named.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> VerdictConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_domain_has_its_own_numbers_or_everybodys() {
        let config = read(
            "min_bytes = 5\nmin_age_seconds = 2.0\nconfidence_to_report = 0.5\n\
             domain.cuda = { min_bytes = 7, confidence_to_report = 0.9 }\n\
             domain.kernel = { min_age_seconds = 3.0 }",
        );
        let of = |domain| {
            let age_ns = config.min_age_ns_of(domain);
            (config.min_bytes_of(domain), age_ns, config.confidence_to_report_of(domain))
        };
        assert_eq!(of(Domain::Cuda), (7, 2_000_000_000, 0.9));
        assert_eq!(of(Domain::Kernel), (5, 3_000_000_000, 0.5));
        assert_eq!(of(Domain::Pinned), (5, 2_000_000_000, 0.5));
    }

    #[test]
    fn what_is_known_or_unsure_is_no_finding() {
        let config = read(
            "confidence_to_report = 0.5\nknown_sites = ['0000000000000abc']\n\
             domain.cuda = { confidence_to_report = 0.9 }",
        );
        for (domain, verdict, confidence, site, expected) in [
            (Domain::Kernel, Verdict::Leak, Some(0.5), None, true),
            (Domain::Kernel, Verdict::Growing, Some(0.49), Some(1), false),
            (Domain::Cuda, Verdict::Leak, Some(0.89), Some(1), false),
            (Domain::Cuda, Verdict::Leak, Some(0.9), Some(1), true),
            (Domain::Cuda, Verdict::Leak, Some(0.9), Some(0xabc), false),
            (Domain::Cuda, Verdict::Orphaned, Some(0.1), None, true),
            (Domain::Cuda, Verdict::Unreliable, None, Some(1), true),
            (Domain::Cuda, Verdict::Unreliable, None, Some(0xabc), false),
            (Domain::Cuda, Verdict::Growing, None, None, true),
        ] {
            let said = config.reports(domain, verdict, confidence, site);
            assert_eq!(said, expected, "{domain:?} {verdict:?} {confidence:?} {site:x?}");
        }
        let default = VerdictConfig::default();
        assert!(default.reports(Domain::Cuda, Verdict::Growing, Some(0.0), Some(0xabc)));
    }

    #[test]
    fn no_site_and_no_domain_are_refused() {
        for (text, expected) in [
            ("known_sites = ['xyz']", "`xyz`"),
            ("domain.gpu = {}", "no domain `gpu`"),
            ("domain.cuda = { window_seconds = 1.0 }", "unknown field `window_seconds`"),
        ] {
            let error = toml::from_str::<VerdictConfig>(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text} gave: {error}");
        }
    }
}
