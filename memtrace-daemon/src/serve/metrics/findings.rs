//! Findings as metrics: bounded, each set of labels once.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use super::collector::{OTHER, Value, gauge};
use super::rows::label;
use crate::snapshot::{Finding, Snapshot};

/// Findings with series of their own, worst first. More are one cause seen many times.
const FINDINGS: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FindingLabels {
    level: &'static str,
    verdict: &'static str,
    domain: &'static str,
    comm: String,
    pid: String,
    site: String,
    function: String,
}

impl FindingLabels {
    fn of(finding: &Finding, own: bool) -> Self {
        let (level, verdict, domain) = (finding.level, finding.verdict.name(), finding.domain);
        if !own {
            let [comm, pid, site, function] = [OTHER; 4].map(String::from);
            return Self { level, verdict, domain, comm, pid, site, function };
        }
        let pid = match finding.processes.as_slice() {
            [pid] => pid.to_string(),
            _ => String::new(),
        };
        Self {
            level,
            verdict,
            domain,
            comm: label(&finding.comm),
            pid,
            site: finding.site.map(|site| format!("{site:016x}")).unwrap_or_default(),
            function: finding.function.as_deref().map(label).unwrap_or_default(),
        }
    }
}

/// Writes `memtrace_finding` and `memtrace_exhaustion_seconds`.
pub(super) fn write(snapshot: &Snapshot, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    // For each set of labels: the earliest exhaustion, and of what.
    let mut series = BTreeMap::<FindingLabels, Option<(f64, String)>>::new();
    for (index, finding) in snapshot.findings.iter().enumerate() {
        let entry = series.entry(FindingLabels::of(finding, index < FINDINGS)).or_default();
        if let Some(end) = &finding.exhaustion
            && entry.as_ref().is_none_or(|(seconds, _)| end.seconds < *seconds)
        {
            *entry = Some((end.seconds, label(&end.of)));
        }
    }
    gauge("finding", None, "1 for each finding. A verdict of `leak` is one to act on.").write(
        encoder,
        series.keys().map(|labels| {
            let FindingLabels { level, verdict, domain, comm, pid, site, function } = labels;
            let pairs = [
                ("level", Cow::Borrowed(*level)),
                ("verdict", (*verdict).into()),
                ("domain", (*domain).into()),
                ("comm", comm.into()),
                ("pid", pid.into()),
                ("site", site.into()),
                ("function", function.into()),
            ];
            (pairs, Value::Whole(1))
        }),
    )?;
    let ends = series.iter().filter_map(|(labels, end)| Some((labels, end.as_ref()?)));
    gauge("exhaustion", Some(Unit::Seconds), "Until memory is gone at the present rate.").write(
        encoder,
        ends.map(|(labels, (seconds, of))| {
            let FindingLabels { level, verdict, domain, comm, pid, site, function } = labels;
            let pairs = [
                ("level", Cow::Borrowed(*level)),
                ("verdict", (*verdict).into()),
                ("domain", (*domain).into()),
                ("comm", comm.into()),
                ("pid", pid.into()),
                ("site", site.into()),
                ("function", function.into()),
                ("of", of.into()),
            ];
            (pairs, Value::Real(*seconds))
        }),
    )
}
