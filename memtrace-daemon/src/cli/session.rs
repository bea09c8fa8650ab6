//! A tracing session: everything that `run`, `attach` and `daemon` start, wired together, and
//! ended in the right order.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use arc_swap::ArcSwap;
use memtrace_common::{Domain, Step, StepKey};
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinHandle, spawn_blocking},
};

use super::recording::{Destination, Header};
use crate::{
    attach::{
        abilities,
        ceiling::{Ceiling, CeilingConfig},
        libraries::Libraries,
        mappings::News,
        memory,
        options::{Options, Sizes, Subject},
        policy::FilePolicy,
        probing::Probers,
        thread::{AttachThread, Pace},
        tracer::{StepMap, Tracer},
        watch::Watcher,
    },
    engine::{
        CoreConfig,
        policy::CgroupPolicy,
        task::{Engine, OnDemand, Parts, Request, nothing_yet},
    },
    host::{Host, clock, identity},
    intake::{Reader, recording::Writing},
    ledger::LedgerConfig,
    record::Record,
    snapshot::Snapshot,
    stacks::{Mapping, Stacks, StacksOptions, StepSink},
    verdict::VerdictConfig,
};

/// Records from the threads that may wait for the engine.
const RECORDS: usize = 65_536;
/// Requests that may wait for the engine.
const REQUESTS: usize = 64;

/// What a session is to do.
#[expect(missing_debug_implementations, reason = "holds a function")]
pub struct Plan {
    /// Domains, depth, sizes.
    pub options: Options,
    /// Which library files may be attached.
    pub files: FilePolicy,
    /// Library files that a person named: it is an error if they cannot be attached.
    pub named: Vec<PathBuf>,
    /// Library files that will probably be loaded: attached now if they are the catalog's.
    pub expected: Vec<PathBuf>,
    /// Who is booked by name or user id, and whether they are.
    pub subjects: Vec<(Subject, bool)>,
    /// Who is booked by cgroup or unit.
    pub cgroups: CgroupPolicy,
    /// Kernel functions whose call sites are followed by whole stacks.
    pub exact_sites: Vec<String>,
    /// Patterns of functions that hand memory on, beside those known.
    pub allocators: Vec<String>,
    /// Bounds of the books.
    pub ledger: LedgerConfig,
    /// Numbers of the verdict.
    pub verdict: VerdictConfig,
    /// When tensors are looked at although their domain is off; never, if `None`.
    pub on_demand: Option<OnDemand>,
    /// From when on probes cost too much.
    pub ceiling: CeilingConfig,
    /// Where what the engine is told is written to.
    pub recording: Option<Destination>,
    /// Called every second by the living engine.
    pub beat: Box<dyn Fn() + Send>,
}

impl Plan {
    /// Everybody's memory in these domains, nothing else said.
    ///
    /// # Errors
    /// If a switch for tests makes no sense.
    pub fn new(domains: Vec<Domain>) -> anyhow::Result<Self> {
        let cpus = memory::possible_cpus().unwrap_or(1);
        let mut options = Options::new(domains, cpus);
        options.sizes = sizes_for_tests(options.sizes)?;
        let files = FilePolicy { domains: options.domains.clone(), ..FilePolicy::default() };
        Ok(Self {
            options,
            files,
            named: Vec::new(),
            expected: Vec::new(),
            subjects: Vec::new(),
            cgroups: CgroupPolicy::default(),
            exact_sites: Vec::new(),
            allocators: Vec::new(),
            ledger: LedgerConfig::default(),
            verdict: verdict_for_tests()?,
            on_demand: None,
            ceiling: CeilingConfig::default(),
            recording: None,
            beat: Box::new(|| {}),
        })
    }
}

/// A running session. Dropping it detaches; [`Session::end`] also waits for it.
#[derive(Debug)]
pub struct Session {
    requests: mpsc::Sender<Request>,
    published: Arc<ArcSwap<Snapshot>>,
    engine: JoinHandle<Arc<Snapshot>>,
    attacher: Option<Arc<AttachThread>>,
    ready: Arc<AtomicBool>,
    writing: Option<Writing>,
}

impl Session {
    /// Loads, attaches and starts everything. Libraries that are mapped already are attached
    /// when this returns.
    ///
    /// # Errors
    /// One line: what is missing, what came back, what to do.
    pub async fn start(plan: Plan) -> anyhow::Result<Self> {
        if let Some(sentence) = abilities::required_missing() {
            bail!("{sentence}");
        }
        identity::initial_pid_namespace().map_err(|sentence| anyhow!("{sentence}"))?;
        let Plan {
            mut options,
            files,
            named,
            expected,
            subjects,
            cgroups,
            exact_sites,
            allocators,
            mut ledger,
            verdict,
            on_demand,
            ceiling,
            recording,
            beat,
        } = plan;
        // Ages and cohorts are told apart by the verdict's windows.
        ledger.window_ns = verdict.window_ns();
        options.age_shift = u64::from(verdict.window_ns().ilog2());
        let mut tracer = Tracer::load(&options)?;
        for (subject, include) in &subjects {
            tracer.set_policy(subject, *include)?;
        }
        let (records, inbox) = mpsc::channel(RECORDS);
        let probing =
            if options.books_calls() { Some(probers(&mut tracer, &options)?) } else { None };
        let (calls, unwound) = mpsc::unbounded_channel();
        let stacks = {
            let records = records.clone();
            let deliver = move |label| records.try_send(Record::Stack(label)).is_ok();
            // Where it fails, nobody is left to hear.
            let unwound = move |record| drop(calls.send(record));
            let steps = Box::new(Steps(tracer.take_steps()?));
            let options = StacksOptions { allocators, ..StacksOptions::default() };
            Stacks::start(options, deliver, unwound, steps).context("cannot start a thread")?
        };
        let host = {
            let records = records.clone();
            let deliver = move |now_ns, observation| {
                records.try_send(Record::Observation { now_ns, observation }).is_ok()
            };
            Host::start(deliver).context("cannot start a thread")?
        };
        let attacher = match probing {
            Some(probing) => {
                let watcher = Watcher::new(Libraries::new(probing, files));
                let pace = Pace::new(tracer.paces()?, Ceiling::new(ceiling));
                Some(Arc::new(start_attacher(watcher, pace, stacks.clone(), records.clone())?))
            }
            None => None,
        };
        let reader = Reader::new(tracer.take_ring()?, pause_for_tests()?);
        tracer.attach_kernel(&options)?;
        let sees_rcu_frees = tracer.sees_rcu_frees();

        let host_info = identity::host_info();
        let attached_at = clock::anchor();
        let core = CoreConfig {
            domains: options.domains.clone(),
            named_caches: options.kmem_cache,
            sees_rcu_frees,
            ledger,
            verdict,
        };
        let (recorder, writing) = match recording {
            Some(destination) => {
                let header = Header::new(attached_at, host_info.clone(), core.clone());
                let (recorder, writing) = destination.start(&header)?;
                (Some(recorder), Some(writing))
            }
            None => (None, None),
        };
        let published = Arc::new(ArcSwap::from_pointee(nothing_yet(host_info.clone())));
        let (requests, asked) = mpsc::channel(REQUESTS);
        let ready = Arc::new(AtomicBool::new(false));
        let engine = Engine::new(Parts {
            tracer,
            reader,
            stacks,
            host,
            attacher: attacher.clone(),
            policy: cgroups,
            exact_sites,
            on_demand,
            attached_at,
            host_info,
            core,
            records: inbox,
            unwound,
            requests: asked,
            published: Arc::clone(&published),
            ready: Arc::clone(&ready),
            recorder,
            beat,
        });
        let engine = tokio::spawn(engine.run());
        let session = Self { requests, published, engine, attacher, ready, writing };
        session.attach_libraries(named, expected).await?;
        session.ready.store(true, Ordering::Release);
        Ok(session)
    }

    async fn attach_libraries(
        &self,
        named: Vec<PathBuf>,
        expected: Vec<PathBuf>,
    ) -> anyhow::Result<()> {
        let Some(attacher) = self.attacher.clone() else {
            return match named.first() {
                Some(path) => {
                    bail!("{} is named, but no domain of library functions is on", path.display())
                }
                None => Ok(()),
            };
        };
        spawn_blocking(move || -> anyhow::Result<()> {
            for path in named {
                attacher.name(path)??;
            }
            attacher.preattach(expected)?;
            Ok(attacher.rescan()?)
        })
        .await?
    }

    /// Follows a thread group and its children.
    ///
    /// # Errors
    /// What the kernel said.
    pub async fn trace(&self, tgid: u32) -> anyhow::Result<()> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::Trace { tgid, reply }).await.context(ENGINE_GONE)?;
        answer.await.context(ENGINE_GONE)?.map_err(|error| anyhow!("{error}"))
    }

    /// A snapshot of this moment, with stacks named as far as that takes no longer than
    /// `patience`.
    ///
    /// # Errors
    /// That the engine has ended.
    pub async fn snapshot(&self, patience: Duration) -> anyhow::Result<Arc<Snapshot>> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::Snapshot { patience, reply }).await.context(ENGINE_GONE)?;
        answer.await.context(ENGINE_GONE)
    }

    /// Where snapshots are published.
    #[must_use]
    pub fn published(&self) -> Arc<ArcSwap<Snapshot>> {
        Arc::clone(&self.published)
    }

    /// What becomes of the recording, where there is one and nobody has taken this yet.
    pub fn take_writing(&mut self) -> Option<Writing> {
        self.writing.take()
    }

    /// For asking the engine beside the session.
    #[must_use]
    pub fn requests(&self) -> mpsc::Sender<Request> {
        self.requests.clone()
    }

    /// Detaches everything and returns the last picture.
    ///
    /// # Errors
    /// That the engine has failed.
    pub async fn end(self) -> anyhow::Result<Arc<Snapshot>> {
        let Self { requests, published: _, engine, attacher, ready: _, writing: _ } = self;
        drop(requests);
        let last = engine.await.context(ENGINE_GONE)?;
        // Closing links takes a while; the last owner waits for the thread.
        spawn_blocking(move || drop(attacher)).await?;
        Ok(last)
    }
}

/// Learned steps of unwinding go to the kernel side.
struct Steps(StepMap);

impl StepSink for Steps {
    fn put(&mut self, key: StepKey, step: Step) -> bool {
        self.0.put(key, step)
    }

    fn remove(&mut self, key: StepKey) {
        if let Err(error) = self.0.remove(key) {
            tracing::warn!("cannot take a step of unwinding back: {error}");
        }
    }
}

const ENGINE_GONE: &str = "the engine has ended; this is a fault of memtrace";

fn probers(tracer: &mut Tracer, options: &Options) -> anyhow::Result<Probers> {
    let calls = tracer.probing()?;
    let firing = if options.static_probes { Some(tracer.firing(&calls)?) } else { None };
    Ok(Probers::new(calls, firing))
}

fn start_attacher(
    watcher: Watcher<Probers>,
    pace: Pace,
    stacks: Stacks,
    records: mpsc::Sender<Record>,
) -> anyhow::Result<AttachThread> {
    let told = move |news: News<'_>| match news {
        News::Mapped(mapping) => stacks.mapping(&Mapping {
            tgid: mapping.pid,
            start: mapping.address,
            length: mapping.length,
            page_offset: mapping.page_offset,
            device: (mapping.major, mapping.minor),
            inode: mapping.inode,
            path: mapping.path.clone(),
        }),
        News::Until(at) => stacks.told_until(at),
        News::Lost => stacks.mappings_lost(),
    };
    let deliver = move |observation| {
        let now_ns = crate::host::clock::monotonic_ns();
        if records.try_send(Record::Observation { now_ns, observation }).is_err() {
            tracing::warn!("the engine is too busy to hear what is covered");
        }
    };
    AttachThread::start(watcher, pace, told, deliver).context("cannot start a thread")
}

/// Tests make maps tiny, so that every branch that drops something is taken.
fn sizes_for_tests(mut sizes: Sizes) -> anyhow::Result<Sizes> {
    for (name, size) in [
        ("MEMTRACE_TUNE_KERNEL_LIVE_ENTRIES", &mut sizes.kernel_live_entries),
        ("MEMTRACE_TUNE_CALL_LIVE_ENTRIES", &mut sizes.call_live_entries),
        ("MEMTRACE_TUNE_ACCOUNTS", &mut sizes.accounts),
        ("MEMTRACE_TUNE_PROCESSES", &mut sizes.processes),
        ("MEMTRACE_TUNE_TOTALS", &mut sizes.totals),
        ("MEMTRACE_TUNE_RING_BYTES", &mut sizes.ring_bytes),
    ] {
        if let Ok(value) = std::env::var(name) {
            *size = value.parse().with_context(|| format!("{name}: `{value}` is no number"))?;
        }
    }
    Ok(sizes)
}

/// Tests cannot watch for as long as a verdict takes.
fn verdict_for_tests() -> anyhow::Result<VerdictConfig> {
    const NAME: &str = "MEMTRACE_TUNE_VERDICT";
    match std::env::var(NAME) {
        Ok(text) => toml::from_str(&text).context(NAME),
        Err(_) => Ok(VerdictConfig::default()),
    }
}

/// Tests have the reader stand still, so that the ring overflows.
fn pause_for_tests() -> anyhow::Result<Option<crate::intake::Pause>> {
    const NAME: &str = "MEMTRACE_FAULT_READER_PAUSE";
    match std::env::var(NAME) {
        Ok(value) => match value.parse() {
            Ok(pause) => Ok(Some(pause)),
            Err(sentence) => bail!("{NAME}: {sentence}"),
        },
        Err(_) => Ok(None),
    }
}
