//! How long calls take, as the kernel side counts it: of no concern to the books, so no record.

use memtrace_common::{LATENCY_BUCKETS, Latency};

use super::Engine;
use crate::catalog;
use crate::snapshot::CallLatency;

impl Engine {
    /// By function, in the order of their ids.
    pub(super) fn latency(&self) -> Vec<CallLatency> {
        let all = self.parts.tracer.latencies().unwrap_or_else(|error| {
            tracing::warn!("cannot read how long calls take: {error}");
            Vec::new()
        });
        let named = all.into_iter().filter_map(|(function, latency)| {
            Some((catalog::library_function(function)?.symbol, latency))
        });
        named.map(|(symbol, latency)| in_seconds(symbol, &latency)).collect()
    }
}

fn in_seconds(symbol: &'static str, latency: &Latency) -> CallLatency {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let ends = (0..LATENCY_BUCKETS).map(|bucket| Latency::end_ns(bucket).map(seconds));
    CallLatency::new(symbol, seconds(latency.sum_ns), ends.zip(latency.buckets).collect())
}
