//! `memtrace daemon`: watch the whole host, serve metrics and dumps.

use std::{io::Write, time::Duration};

use anyhow::Context;
use memtrace_common::Domain;
use sd_notify::NotifyState;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot, watch},
};

use super::{
    args::DaemonArgs,
    session::{Plan, Session},
};
use crate::{
    attach::{
        ceiling::CeilingConfig,
        options::{Sizes, Subject},
        policy::FilePolicy,
    },
    catalog,
    config::{CeilingSection, Config, DomainSection, Maps, TorchSection, VerdictSection},
    engine::{
        policy::CgroupPolicy,
        task::{OnDemand, Request},
    },
    serve::{AllowedHosts, Control, ControlRequest, Listeners, Refresh, RefreshRequest, State},
    snapshot::Snapshot,
    verdict::{DomainConfig, VerdictConfig},
};

/// How long a dump may wait for stacks to be named: what is not named by then says so.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs until SIGTERM or Ctrl-C; the exit status.
///
/// # Errors
/// One line: what failed, why, what to do.
pub async fn daemon(arguments: DaemonArgs) -> anyhow::Result<u8> {
    let DaemonArgs { config, listen, socket, state_dir, check } = arguments;
    let mut config = Config::load_or_default(config.as_deref())?;
    if let Some(listen) = listen {
        config.listen = listen;
    }
    if let Some(socket) = socket {
        config.socket = socket;
    }
    if let Some(state_dir) = state_dir {
        config.state_dir = state_dir;
    }
    if check {
        writeln!(std::io::stdout(), "the configuration is right")?;
        return Ok(0);
    }
    catalog::declare(&config.allocator, &config.free).map_err(anyhow::Error::msg)?;
    // Bound first: a second daemon ends before it attaches anything.
    let listeners = Listeners::bind(config.listen.0, &config.socket).await?;
    let address = listeners.tcp_address();
    // From here on a signal means a clean end, also while probes are still being attached.
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot take signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot take signals")?;
    let session = Session::start(plan(&config)?).await?;
    let (refresh, asked) = Refresh::channel();
    tokio::spawn(pass_on(asked, session.requests()));
    let (control, told) = Control::channel();
    tokio::spawn(pass_on_control(told, session.requests()));
    let hosts = AllowedHosts::new(config.allowed_hosts.iter().cloned());
    let state = State::new(session.published(), refresh, control, hosts);
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(listeners.serve(state, stopped));

    // The published picture says `ready` from here on.
    session.snapshot(Duration::ZERO).await?;
    notify(&[NotifyState::Ready, NotifyState::Status("watching")]);
    tracing::info!(
        "attached; metrics at {}, dumps at {}",
        address.map_or_else(|| "no TCP address".to_owned(), |address| address.to_string()),
        config.socket.display()
    );

    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    notify(&[NotifyState::Stopping]);
    let last = session.snapshot(Duration::ZERO).await?;
    log_books(&last);
    // Whether anybody still listens does not matter.
    let _ = stop.send(true);
    serving.await.context("the server has failed; this is a fault of memtrace")?;
    session.end().await?;
    Ok(0)
}

/// What the configuration asks for.
fn plan(config: &Config) -> anyhow::Result<Plan> {
    let mut plan = Plan::new(config.domains.iter().collect())?;
    let options = &mut plan.options;
    options.exact = config.exact;
    options.kmem_cache = config.kmem_cache;
    options.sample_quantum_bytes = config.quantum;
    options.sizes = sizes(&config.maps, options.sizes);
    options.policy_default_exclude = !config.include.is_empty();
    let exclude = &config.exclude;
    plan.files = files(config);
    let CeilingSection { firings_per_second, pause } = config.ceiling;
    plan.ceiling = CeilingConfig { firings_per_second, pause };
    plan.named.clone_from(&config.libraries);
    plan.exact_sites.clone_from(&config.exact_sites);
    plan.allocators.clone_from(&config.stacks.allocators);
    plan.options.copy_bytes_per_second = config.stacks.copy_bytes_per_second;
    // Exclusion comes last: of two rules on one name it is the one that stays.
    for (comms, uids, include) in
        [(&config.include.comm, &config.include.uid, true), (&exclude.comm, &exclude.uid, false)]
    {
        plan.subjects.extend(comms.iter().map(|comm| (Subject::Comm(comm.clone()), include)));
        plan.subjects.extend(uids.iter().map(|uid| (Subject::Uid(*uid), include)));
    }
    plan.cgroups = CgroupPolicy::new(&config.include, exclude);
    plan.options.policy_active = plan.options.policy_default_exclude
        || !plan.subjects.is_empty()
        || !exclude.cgroup.is_empty()
        || !exclude.unit.is_empty();
    plan.on_demand = on_demand(config);
    plan.options.static_probes |= plan.on_demand.is_some();
    plan.verdict = verdict(&config.verdict, plan.verdict);
    plan.beat = Box::new(|| notify(&[NotifyState::Watchdog]));
    Ok(plan)
}

/// Which files are probed.
pub(super) fn files(config: &Config) -> FilePolicy {
    let exclude = &config.exclude;
    FilePolicy {
        domains: config.domains.iter().collect(),
        on_demand: on_demand(config).is_some(),
        exclude_build_ids: exclude.library_build_id.clone(),
        exclude_paths: exclude.library_path.clone(),
        exclude_versions: exclude.library_version.clone(),
        ..FilePolicy::default()
    }
}

/// When tensors are looked at although their domain is off.
fn on_demand(config: &Config) -> Option<OnDemand> {
    let TorchSection { on_demand, watch, pause, processes } = config.torch;
    let off = config.domains.contains(Domain::Cuda) && !config.domains.contains(Domain::Torch);
    let processes = usize::try_from(processes).unwrap_or(usize::MAX);
    (on_demand && off).then_some(OnDemand { watch, pause, processes })
}

/// The configured sizes; what tests have set to other than the default stays.
fn sizes(maps: &Maps, set: Sizes) -> Sizes {
    if set != Sizes::default() {
        return set;
    }
    let Maps { kernel_live, call_live, accounts, processes, totals, promoted, ring } = *maps;
    Sizes {
        kernel_live_entries: kernel_live,
        call_live_entries: call_live,
        accounts,
        processes,
        totals,
        promoted,
        // Validated: at most 1 GiB.
        ring_bytes: u32::try_from(ring).unwrap_or(u32::MAX),
    }
}

/// The configured numbers; what tests have set to other than the default stays.
fn verdict(section: &VerdictSection, set: VerdictConfig) -> VerdictConfig {
    if set != VerdictConfig::default() {
        return set;
    }
    let VerdictSection {
        window_seconds,
        minimum_age_seconds,
        minimum_bytes,
        minimum_objects,
        confidence_to_report,
        known_sites,
        domain,
    } = section;
    let of_domain = |section: &DomainSection| {
        let DomainSection {
            minimum_age_seconds,
            minimum_bytes,
            minimum_objects,
            confidence_to_report,
        } = *section;
        DomainConfig {
            min_age_seconds: minimum_age_seconds,
            min_bytes: minimum_bytes,
            min_objects: minimum_objects,
            confidence_to_report,
        }
    };
    VerdictConfig {
        window_seconds: *window_seconds,
        min_age_seconds: *minimum_age_seconds,
        min_bytes: *minimum_bytes,
        min_objects: *minimum_objects,
        confidence_to_report: *confidence_to_report,
        known_sites: known_sites.iter().copied().collect(),
        domains: domain.iter().map(|(domain, section)| (*domain, of_domain(section))).collect(),
        ..VerdictConfig::default()
    }
}

/// Hands the server's wishes to the engine.
async fn pass_on(mut asked: mpsc::Receiver<RefreshRequest>, requests: mpsc::Sender<Request>) {
    while let Some(reply) = asked.recv().await {
        let (answer, answered) = oneshot::channel();
        let request = Request::Snapshot { patience: PATIENCE, reply: answer };
        if requests.send(request).await.is_err() {
            return;
        }
        if let Ok(snapshot) = answered.await {
            // Whoever asked may have gone.
            let _ = reply.send(snapshot);
        }
    }
}

/// Hands on that tracing is to stop, or to go on.
async fn pass_on_control(
    mut told: mpsc::Receiver<ControlRequest>,
    requests: mpsc::Sender<Request>,
) {
    while let Some(ControlRequest { stop, reply }) = told.recv().await {
        tracing::warn!("{}", if stop { "tracing is stopped" } else { "tracing goes on" });
        if requests.send(Request::Control { stop, reply }).await.is_err() {
            return;
        }
    }
}

/// Tells systemd, where it listens.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("systemd cannot be told: {error}");
    }
}

/// The state of the books, for the journal.
fn log_books(snapshot: &Snapshot) {
    for domain in Domain::ALL {
        if let Some(terms) = snapshot.domains.get(domain.name()) {
            tracing::info!(
                domain = domain.name(),
                seen_bytes = terms.seen.bytes,
                live_bytes = terms.live.bytes,
                live_objects = terms.live.count,
                freed_bytes = terms.freed.bytes,
                closed_bytes = terms.closed.bytes,
                freed_unseen_bytes = terms.freed_unseen.bytes,
                dropped_bytes = terms.dropped.bytes,
                conserved = terms.conserved(),
                "books at the end"
            );
        }
    }
    let lost: u64 = snapshot.loss.values().map(|loss| loss.count).sum();
    tracing::info!(findings = snapshot.findings.len(), lost, "ending");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_same_wherever_they_are_written() {
        assert_eq!(
            verdict(&VerdictSection::default(), VerdictConfig::default()),
            VerdictConfig::default()
        );
        assert_eq!(sizes(&Maps::default(), Sizes::default()), Sizes::default());
        let CeilingSection { firings_per_second, pause } = CeilingSection::default();
        assert_eq!(CeilingConfig { firings_per_second, pause }, CeilingConfig::default());
    }

    #[test]
    fn which_files_are_probed_goes_by_the_configuration() {
        let parse = |text: &str| Config::parse(std::path::Path::new("m.toml"), text).unwrap();
        let policy = files(&parse(
            "domains = ['cuda', 'handles']\n[exclude]\nlibrary_build_id = ['00ff']\n\
             library_path = ['/opt/vendor']\nlibrary_version = ['libcudart.so.12']\n",
        ));
        assert_eq!(policy.domains, [Domain::Cuda, Domain::Handles]);
        assert!(policy.on_demand);
        assert_eq!(policy.exclude_build_ids, ["00ff"]);
        assert_eq!(policy.exclude_paths, [std::path::Path::new("/opt/vendor")]);
        assert_eq!(policy.exclude_versions, ["libcudart.so.12"]);
        for domains in ["['cuda', 'torch']", "['kernel']"] {
            assert!(!files(&parse(&format!("domains = {domains}"))).on_demand, "{domains}");
        }
        assert!(!files(&parse("torch.on_demand = false")).on_demand);
        assert_eq!(files(&Config::default()).domains, FilePolicy::default().domains);
    }

    #[test]
    fn what_is_configured_for_a_domain_arrives() {
        let text = "[verdict]\nconfidence_to_report = 0.5\nknown_sites = ['00000000000000ff']\n\
                    [verdict.domain.cuda]\nminimum_bytes = '16MiB'\nminimum_age_seconds = 5.0\n\
                    [verdict.domain.kernel]\nconfidence_to_report = 0.9\n\
                    [verdict.domain.handles]\nminimum_objects = 500\n";
        let config = Config::parse(std::path::Path::new("m.toml"), text).unwrap();
        let verdict = verdict(&config.verdict, VerdictConfig::default());
        assert!(verdict.known_sites.contains(&0xff));
        assert_eq!(verdict.min_bytes_of(Domain::Cuda), 16 << 20);
        assert_eq!(verdict.within(Domain::Cuda).min_age_ns(), 5_000_000_000);
        assert_eq!(verdict.min_bytes_of(Domain::Kernel), 1 << 20);
        assert_eq!(verdict.min_bytes_of(Domain::Handles), 500, "objects");
        assert_eq!(verdict.min_bytes_of(Domain::CudaIpc), 64, "objects");
        assert_eq!(verdict.confidence_to_report_of(Domain::Kernel), 0.9);
        assert_eq!(verdict.confidence_to_report_of(Domain::Cuda), 0.5);
    }
}
