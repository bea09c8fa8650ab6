//! Metrics of how long calls take: a histogram a function.

use std::borrow::Cow;
use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::snapshot::Snapshot;

/// Writes the family. The number of functions is the catalog's.
pub(super) fn write(snapshot: &Snapshot, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut family = encoder.encode_descriptor(
        "call_duration",
        "How long calls of library functions take, from entry to return.",
        Some(&Unit::Seconds),
        MetricType::Histogram,
    )?;
    for latency in &snapshot.latency {
        let labels = [("function", Cow::Borrowed(latency.function))];
        // The encoder writes this end as +Inf.
        let buckets = latency.buckets.iter().map(|(end, calls)| (end.unwrap_or(f64::MAX), *calls));
        let buckets: Vec<(f64, u64)> = buckets.collect();
        family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
            latency.sum_seconds,
            latency.calls,
            &buckets,
            None,
        )?;
    }
    Ok(())
}
