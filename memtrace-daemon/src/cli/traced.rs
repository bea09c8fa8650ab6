//! What `run`, `attach` and `record` have in common: the plan of a session over one process tree, the
//! end of it, the report, and what it says about the exit status.

use std::{io, sync::Arc, time::Duration};

use memtrace_common::Domain;

use super::{
    args::{KeptLimit, OutputArgs, ReportArgs, TraceArgs},
    output::Output,
    session::{Plan, Session},
};
use crate::{
    config::DEFAULT_SOCKET,
    report::{self, Filter},
    snapshot::{Snapshot, Verdict},
};

/// Exit status: a `--fail-on-…` condition holds.
pub const STATUS_CONDITION: u8 = 3;
/// How long the report may wait for stacks to be named.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The plan of a session that books only traced processes.
///
/// # Errors
/// If a switch for tests makes no sense.
pub fn plan(trace: &TraceArgs) -> anyhow::Result<Plan> {
    let mut plan = plan_of_all(trace)?;
    plan.options.only_traced = true;
    // Whoever has ended stays until the report.
    plan.ledger.linger_ns = None;
    plan.ledger.max_ended = usize::MAX;
    Ok(plan)
}

/// The plan of a session that books everybody.
///
/// # Errors
/// If a switch for tests makes no sense.
pub fn plan_of_all(trace: &TraceArgs) -> anyhow::Result<Plan> {
    let TraceArgs { domains, exact, kmem_cache, libraries, allocators } = trace;
    let mut plan = Plan::new(domains.iter().collect())?;
    plan.options.exact = *exact;
    plan.options.kmem_cache = *kmem_cache;
    plan.named.clone_from(libraries);
    plan.allocators.clone_from(allocators);
    Ok(plan)
}

/// Says so where a daemon traces the host already.
pub fn mention_daemon() {
    if std::os::unix::net::UnixStream::connect(DEFAULT_SOCKET).is_ok() {
        eprintln!(
            "memtrace: a memtrace daemon traces this host already; what both trace costs twice"
        );
    }
}

/// Opens the destination of a report before anything is traced.
///
/// # Errors
/// A file that cannot be written, or a format that a terminal cannot show.
pub fn open_output(report: &ReportArgs) -> anyhow::Result<Output> {
    let OutputArgs { format, output } = &report.output;
    Ok(Output::open(output.as_deref(), *format)?)
}

/// Takes the last snapshot, writes the report, detaches.
///
/// # Errors
/// That the engine has failed or the report cannot be written.
pub async fn finish(
    session: Session,
    report: &ReportArgs,
    mut out: Output,
) -> anyhow::Result<Arc<Snapshot>> {
    let snapshot = session.snapshot(PATIENCE).await?;
    let written = write(&snapshot, report, &mut out);
    session.end().await?;
    written?;
    Ok(snapshot)
}

fn write(snapshot: &Snapshot, report: &ReportArgs, out: &mut Output) -> anyhow::Result<()> {
    let width = out.width();
    let format = report.output.format;
    let written = report::render(snapshot, format, &Filter::default(), width, out)
        .and_then(|()| io::Write::flush(out));
    Ok(out.finished(written)?)
}

/// Whether a `--fail-on-…` condition holds.
#[must_use]
pub fn condition_holds(snapshot: &Snapshot, report: &ReportArgs) -> bool {
    let leak = || snapshot.findings.iter().any(|finding| finding.verdict == Verdict::Leak);
    (report.fail_on_leak && leak())
        || report.fail_on_kept.iter().any(|limit| kept_at_least(snapshot, *limit))
}

/// Whether the traced processes keep so much in a domain; domains are never added.
fn kept_at_least(snapshot: &Snapshot, limit: KeptLimit) -> bool {
    let kept = |domain: Domain| {
        let sites = snapshot.processes.iter().flat_map(|process| &process.sites);
        sites
            .filter(|site| site.domain == domain.name())
            .fold(0_u64, |sum, site| sum.saturating_add(site.live_bytes))
    };
    let reached = |domain| {
        let bytes = kept(domain);
        bytes > 0 && bytes >= limit.bytes
    };
    match limit.domain {
        Some(domain) => reached(domain),
        None => Domain::ALL.into_iter().any(reached),
    }
}
