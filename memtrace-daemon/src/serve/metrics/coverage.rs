//! Metrics of coverage: how many files and processes are probed, by layer. Which ones is in the
//! dump: their number has no bound.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use super::collector::{Value, gauge};
use super::rows::label;
use crate::snapshot::Snapshot;

/// What stands for the layer of whoever has none that is known.
const NO_LAYER: &str = "none";

/// Writes the family. What has several layers is in each of them.
pub(super) fn write(snapshot: &Snapshot, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut counts: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
    for kind in ["library", "process"] {
        for state in ["probed", "partly", "not"] {
            counts.insert((kind, NO_LAYER, state), 0);
        }
    }
    for row in &snapshot.coverage {
        let state = match (row.kind, row.attached) {
            // A reason that stands beside a probed file is about single functions.
            ("library", true) => "probed",
            _ => row.state(),
        };
        let none = row.layers.is_empty().then_some(NO_LAYER);
        for layer in row.layers.iter().map(String::as_str).chain(none) {
            *counts.entry((row.kind, layer, state)).or_default() += 1;
        }
    }
    let samples = counts.into_iter().map(|((kind, layer, state), count)| {
        let labels = [
            ("kind", Cow::Borrowed(kind)),
            ("layer", Cow::Owned(label(layer))),
            ("state", Cow::Borrowed(state)),
        ];
        (labels, Value::Whole(count))
    });
    gauge(
        "coverage",
        None,
        "Library files, and processes that run one or have a GPU open, by whether they are probed.",
    )
    .write(encoder, samples)
}
