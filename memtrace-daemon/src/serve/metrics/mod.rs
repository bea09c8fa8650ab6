//! `/metrics`: what the last snapshot says, in OpenMetrics or Prometheus' text format.
//!
//! Bounded: 50 sites and 100 processes by live bytes have series of their own, the rest is in
//! `other`. A site whose stack has no name yet is never a label.

mod collector;
pub mod counters;
mod coverage;
mod devices;
mod findings;
mod latency;
pub mod members;
pub mod rows;

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::registry::Registry;

use self::collector::Scrape;
use self::counters::SiteCounters;
use self::members::Members;
use self::rows::ProcessLabels;
use crate::snapshot::Snapshot;

/// The two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Prometheus,
}

impl Exposition {
    /// What a scraper asks for: OpenMetrics where it is accepted at least as gladly as plain
    /// text, else the format that everything reads.
    #[must_use]
    pub fn accepted(accept: Option<&str>) -> Self {
        let quality = |wanted: &str| {
            accept
                .unwrap_or_default()
                .split(',')
                .filter_map(|entry| {
                    let mut parts = entry.split(';').map(str::trim);
                    let media = parts.next()?;
                    let q = parts.find_map(|part| part.strip_prefix("q="));
                    (media == wanted).then(|| q.map_or(1.0, |q| q.parse().unwrap_or(0.0)))
                })
                .fold(0.0, f64::max)
        };
        let openmetrics = quality("application/openmetrics-text");
        if openmetrics > 0.0 && openmetrics >= quality("text/plain") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// The media type of the answer.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
        }
    }
}

/// What is remembered between scrapes, so that counters never go back.
#[derive(Debug)]
pub struct Metrics(Mutex<Memory>);

#[derive(Debug)]
struct Memory {
    sites: SiteCounters,
    processes: Members<ProcessLabels>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self(Mutex::new(Memory {
            sites: SiteCounters::new(counters::SITES),
            processes: Members::new(rows::PROCESSES),
        }))
    }
}

impl Metrics {
    /// The answer to a scrape.
    ///
    /// # Errors
    ///
    /// None that can happen: writing to a string does not fail.
    pub fn scrape(
        &self,
        snapshot: Arc<Snapshot>,
        format: Exposition,
    ) -> Result<String, std::fmt::Error> {
        let (sites, processes, devices) = {
            // A panic elsewhere leaves counters that are still counters.
            let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let processes = rows::processes(&snapshot, &mut memory.processes);
            (
                memory.sites.update(rows::sites(&snapshot), snapshot.domains.keys().copied()),
                processes,
                devices::processes(&snapshot, &memory.processes),
            )
        };
        let mut registry = Registry::with_prefix("memtrace");
        registry.register_collector(Box::new(Scrape { snapshot, sites, processes, devices }));
        let mut out = String::new();
        match format {
            Exposition::OpenMetrics => text::encode(&mut out, &registry)?,
            Exposition::Prometheus => prometheus_text::encode(&mut out, &registry)?,
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests;
