//! How long calls take, as the kernel side counted it. The books do not need it.

use memtrace_common::{LATENCY_BUCKETS, Latency};

use super::host::HostFacts;
use crate::catalog;
use crate::snapshot::CallLatency;

/// By function, in the order of their ids.
pub(super) fn by_function(host: &HostFacts) -> Vec<CallLatency> {
    let named = host.latency.iter().filter_map(|(function, latency)| {
        Some(in_seconds(catalog::library_function(*function)?.symbol, latency))
    });
    named.collect()
}

fn in_seconds(symbol: &'static str, latency: &Latency) -> CallLatency {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let ends = (0..LATENCY_BUCKETS).map(|bucket| Latency::end_ns(bucket).map(seconds));
    CallLatency::new(symbol, seconds(latency.sum_ns), ends.zip(latency.buckets).collect())
}
