//! The numbers of the verdict, as the configuration file has them, and which verdicts are news.
//! All times are counted in windows, so that one number makes everything faster or slower.

use std::collections::{BTreeMap, BTreeSet};

use memtrace_common::Domain;
use rustc_hash::FxHashMap;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::snapshot::Verdict;

/// When growth is worth a word, and which word.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct VerdictConfig {
    /// Length of a window, seconds. The floor of a window is the lowest live bytes in it. Ten
    /// seconds are longer than a request and short enough for 30 of them in 5 minutes.
    pub window_seconds: f64,
    /// Sites younger than this are warming up, seconds: programs allocate what they need to run
    /// in their first minute.
    pub min_age_seconds: f64,
    /// Sites smaller than this are not judged, bytes.
    pub min_bytes: u64,
    /// Sites of domains without bytes that have fewer objects are not judged. Programs keep tens of
    /// streams, events and handles by design (PyTorch 32 streams a device and priority).
    pub min_objects: u64,
    /// Windows of growth that make `growing`: a minute.
    pub growing_windows: u32,
    /// Windows of growth that make a `leak` where the site also frees, and what it keeps is
    /// older than what it frees. With the first minute this stays below 5 minutes.
    pub turnover_windows: u32,
    /// Windows of growth that make a `leak` where nothing was ever freed: 8 minutes, since a
    /// cache that fills looks the same until it is full.
    pub leak_windows: u32,
    /// Windows without a new highest floor after which growth has stopped; more where growth
    /// comes in rare steps, or where memory lives for long.
    pub plateau_windows: u32,
    /// New highest floors that a leak must have had where nothing was ever freed: fewer are
    /// first uses of this and that.
    pub leak_steps: u32,
    /// Growth is a trend if chance would rise like this with a smaller probability, 0 to 1.
    pub trend_p: f64,
    /// Late growth over middle growth below which a curve slows down, at first and after half as
    /// long again: what slows down is not a leak yet.
    pub straight: [f64; 2],
    /// Share of events lost while a site was watched that makes its verdict `unreliable`, 0 to 1.
    pub loss_share: f64,
    /// A `leak` or `growing` that is less sure than this is no finding, 0 to 1; its row keeps the
    /// verdict.
    pub confidence_to_report: f64,
    /// Sites whose findings are known, and no news.
    #[serde(deserialize_with = "sites", serialize_with = "put_sites")]
    pub known_sites: BTreeSet<u64>,
    /// What is otherwise in single domains.
    #[serde(rename = "domain", deserialize_with = "domains", serialize_with = "put_domains")]
    pub domains: BTreeMap<Domain, DomainConfig>,
}

/// What is otherwise in one domain; `None`: as everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DomainConfig {
    /// For [`VerdictConfig::min_age_seconds`].
    pub min_age_seconds: Option<f64>,
    /// For [`VerdictConfig::min_bytes`].
    pub min_bytes: Option<u64>,
    /// For [`VerdictConfig::min_objects`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_objects: Option<u64>,
    /// For [`VerdictConfig::confidence_to_report`].
    pub confidence_to_report: Option<f64>,
}

impl Default for VerdictConfig {
    fn default() -> Self {
        Self {
            window_seconds: 10.0,
            min_age_seconds: 60.0,
            min_bytes: 1 << 20,
            min_objects: 64,
            growing_windows: 6,
            turnover_windows: 21,
            leak_windows: 48,
            plateau_windows: 12,
            leak_steps: 12,
            trend_p: 0.001,
            straight: [0.92, 0.8],
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

    /// Growth that is worth a word, bytes.
    pub(super) fn min_growth(&self) -> f64 {
        self.min_bytes as f64 / 4.0
    }

    /// Sites of this domain that are smaller are not judged, bytes; objects where these have no
    /// bytes.
    #[must_use]
    pub fn min_bytes_of(&self, domain: Domain) -> u64 {
        let own = self.of(domain);
        if domain.is_counted() {
            own.min_objects.unwrap_or(self.min_objects)
        } else {
            own.min_bytes.unwrap_or(self.min_bytes)
        }
    }

    /// How sure a `leak` or `growing` of this domain must be to be a finding, 0 to 1.
    #[must_use]
    pub fn confidence_to_report_of(&self, domain: Domain) -> f64 {
        self.of(domain).confidence_to_report.unwrap_or(self.confidence_to_report)
    }

    /// Whether what is said about growth is sure enough for a finding. Which verdicts are news at
    /// all is not decided here.
    #[must_use]
    pub fn reports(&self, domain: Domain, verdict: Verdict, confidence: Option<f64>) -> bool {
        // The others are no guess about growth: they say what was seen, or that too little was.
        let guess = matches!(verdict, Verdict::Leak | Verdict::Growing);
        !guess || confidence.is_none_or(|sure| sure >= self.confidence_to_report_of(domain))
    }

    /// These numbers as they are in one domain.
    #[must_use]
    pub fn within(&self, domain: Domain) -> Self {
        Self {
            min_bytes: self.min_bytes_of(domain),
            min_age_seconds: self.of(domain).min_age_seconds.unwrap_or(self.min_age_seconds),
            ..self.clone()
        }
    }

    fn of(&self, domain: Domain) -> DomainConfig {
        self.domains.get(&domain).copied().unwrap_or_default()
    }
}

/// The numbers as they are in each domain, so that a look at a row need not put them together.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    /// Where a domain has none of its own.
    pub(super) everywhere: VerdictConfig,
    domains: FxHashMap<Domain, VerdictConfig>,
}

impl Numbers {
    pub(super) fn new(everywhere: VerdictConfig) -> Self {
        let counted = Domain::ALL.into_iter().filter(|domain| domain.is_counted());
        let own = everywhere.domains.keys().copied().chain(counted);
        Self { domains: own.map(|of| (of, everywhere.within(of))).collect(), everywhere }
    }

    /// Those of one domain.
    pub(super) fn within(&self, domain: Domain) -> &VerdictConfig {
        self.domains.get(&domain).unwrap_or(&self.everywhere)
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

fn put_sites<S: Serializer>(sites: &BTreeSet<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(sites.iter().map(|site| format!("{site:016x}")))
}

fn put_domains<S: Serializer>(
    domains: &BTreeMap<Domain, DomainConfig>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(domains.iter().map(|(domain, config)| (domain.name(), config)))
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
            let age_ns = config.within(domain).min_age_ns();
            (config.min_bytes_of(domain), age_ns, config.confidence_to_report_of(domain))
        };
        assert_eq!(of(Domain::Cuda), (7, 2_000_000_000, 0.9));
        assert_eq!(of(Domain::Kernel), (5, 3_000_000_000, 0.5));
        assert_eq!(of(Domain::Pinned), (5, 2_000_000_000, 0.5));
    }

    #[test]
    fn what_is_unsure_is_no_finding() {
        let config =
            read("confidence_to_report = 0.5\ndomain.cuda = { confidence_to_report = 0.9 }");
        for (domain, verdict, confidence, expected) in [
            (Domain::Kernel, Verdict::Leak, Some(0.5), true),
            (Domain::Kernel, Verdict::Growing, Some(0.49), false),
            (Domain::Cuda, Verdict::Leak, Some(0.89), false),
            (Domain::Cuda, Verdict::Leak, Some(0.9), true),
            (Domain::Cuda, Verdict::Orphaned, Some(0.1), true),
            (Domain::Cuda, Verdict::Unreliable, None, true),
            (Domain::Cuda, Verdict::Growing, None, true),
        ] {
            let said = config.reports(domain, verdict, confidence);
            assert_eq!(said, expected, "{domain:?} {verdict:?} {confidence:?}");
        }
        let default = VerdictConfig::default();
        assert!(default.reports(Domain::Cuda, Verdict::Growing, Some(0.0)));
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
