//! The task that owns the books: it drains the ring buffer, has the kernel side flushed, does
//! what the books ask for, and publishes snapshots.
//!
//! Must never wait for a file, a process or a socket: whatever can take long runs elsewhere
//! and answers with records.

mod ages;
mod control;
mod latency;
mod loss;
mod tensors;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use memtrace_common::LossCounter;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval},
};

pub use tensors::OnDemand;
use tensors::Watched;

use super::{
    Core, CoreConfig, Setting, Wanted,
    policy::CgroupPolicy,
    todo::{Todo, report},
};
use crate::{
    attach::{error::TracerError, thread::AttachThread, tracer::Tracer},
    host::{self, Host, ProcessAsk, UsageAsk},
    intake::{Bell, Item, Reader, recording::Recorder},
    record::{Anchor, RawStack, Record, StackKey},
    snapshot::{HostInfo, Snapshot},
    stacks::Stacks,
};

/// How often the ring is drained.
const DRAIN_EVERY: Duration = Duration::from_millis(20);
/// Records taken at a time before the engine looks at its other work.
const DRAIN_LIMIT: usize = 50_000;
/// Times that so many are taken before a flush goes on although more come.
const DRAIN_ROUNDS: u32 = 20;
/// How often the kernel side sends what has changed.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// Most fillings of the ring in one flush; a ring of the usual size takes one.
const FLUSH_ROUNDS: usize = 64;
/// How often a snapshot is published although nobody asked, where there is news.
const PUBLISH_EVERY: Duration = Duration::from_secs(5);
/// The same where there is none. Monitors take an engine for dead after 60 s.
const REPUBLISH_EVERY: Duration = Duration::from_secs(30);
/// How often processes are measured: twice in a window of the usual length.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// Processes measured at a time: those that hold most, and some of the others in turn. One
/// takes some 50 µs.
const MEASURE_LARGEST: usize = 64;
const MEASURE_OTHERS: usize = 64;
/// How often refused stacks and processes are asked for again.
const ASK_AGAIN_EVERY: Duration = Duration::from_secs(2);

/// Stacks under way below which those that were refused are asked for at once.
const FEW_STACKS: usize = 64;

/// What the engine is asked for.
#[derive(Debug)]
pub enum Request {
    /// A snapshot of this very moment, with stacks named as far as that takes no longer than
    /// `patience`.
    Snapshot {
        /// How long to wait for names.
        patience: Duration,
        /// Where it goes.
        reply: oneshot::Sender<Arc<Snapshot>>,
    },
    /// Stop tracing at once, or go on.
    Control {
        /// Whether to stop.
        stop: bool,
        /// Where the answer goes.
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Follow a thread group and its children.
    Trace {
        /// The thread group.
        tgid: u32,
        /// Where the answer goes.
        reply: oneshot::Sender<Result<(), String>>,
    },
}

/// What the engine works with.
pub struct Parts {
    /// The loaded kernel side.
    pub tracer: Tracer,
    /// The ring buffer.
    pub reader: Reader,
    /// Names stacks.
    pub stacks: Stacks,
    /// Looks at the host.
    pub host: Host,
    /// Attaches to libraries; `None` where no domain of library functions is on.
    pub attacher: Option<Arc<AttachThread>>,
    /// Who is booked by cgroup or unit.
    pub policy: CgroupPolicy,
    /// Kernel functions whose call sites are followed by whole stacks.
    pub exact_sites: Vec<String>,
    /// When tensors are looked at although their domain is off; never, if `None`.
    pub on_demand: Option<OnDemand>,
    /// When the probes were attached.
    pub attached_at: Anchor,
    /// The host.
    pub host_info: HostInfo,
    /// What the core is to do.
    pub core: CoreConfig,
    /// Records from the threads.
    pub records: mpsc::Receiver<Record>,
    /// Calls whose stacks were unwound. As many as may be under way at a time, so never refused.
    pub unwound: mpsc::UnboundedReceiver<Record>,
    /// What others ask for.
    pub requests: mpsc::Receiver<Request>,
    /// Where snapshots are published.
    pub published: Arc<ArcSwap<Snapshot>>,
    /// Whether start-up attachment is done.
    pub ready: Arc<AtomicBool>,
    /// Is told every record that the books are told, in the same order.
    pub recorder: Option<Recorder>,
    /// Called at every flush: the engine is alive.
    pub beat: Box<dyn Fn() + Send>,
}

/// The engine.
pub struct Engine {
    core: Core,
    parts: Parts,
    /// The counters of the last look.
    loss: Vec<LossCounter>,
    /// Records of calls were lost since the live ids were last read.
    reconcile: bool,
    /// They are to be read once more when so many stacks have been unwound.
    reconcile_at: Option<u64>,
    /// Cgroup policy said about processes that may be asked again.
    unfamiliar: HashMap<u32, ProcessAsk>,
    /// Closed address spaces whose mappings are known as long as stacks wait for their names.
    leaving: Vec<u32>,
    /// Serial of the process that was measured last in its turn.
    measured: u32,
    /// Windows of the verdict that ages were looked up for, and accounts that found no room.
    aged: (u64, u32),
    /// Processes whose tensors are looked at, or were.
    tensors: Watched,
    /// Nothing is traced.
    stopped: bool,
    /// How many news there were at the last snapshot, and when that was.
    last_published: (u64, Instant),
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Engine").field("core", &self.core).finish_non_exhaustive()
    }
}

impl Engine {
    /// Empty books over these parts.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self {
            core: Core::new(parts.core.clone()),
            loss: Vec::new(),
            reconcile: false,
            reconcile_at: None,
            unfamiliar: HashMap::new(),
            leaving: Vec::new(),
            measured: 0,
            aged: (0, 0),
            tensors: Watched::default(),
            stopped: false,
            last_published: (0, Instant::now()),
            parts,
        }
    }

    /// Runs until nobody can ask any more; returns the last picture.
    pub async fn run(mut self) -> Arc<Snapshot> {
        let timer = |every| {
            let mut timer = interval(every);
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            timer
        };
        let (mut drain, mut flush) = (timer(DRAIN_EVERY), timer(FLUSH_EVERY));
        let mut publish = timer(PUBLISH_EVERY);
        let (mut again, mut measure) = (timer(ASK_AGAIN_EVERY), timer(MEASURE_EVERY));
        let bell = match self.parts.reader.bell() {
            Ok(bell) => Some(bell),
            Err(error) => {
                tracing::warn!("bursts of calls may be lost, the ring buffer cannot ring: {error}");
                None
            }
        };
        loop {
            tokio::select! {
                request = self.parts.requests.recv() => match request {
                    Some(request) => self.answer(request).await,
                    None => break,
                },
                Some(record) = self.parts.records.recv() => self.apply(&record),
                Some(record) = self.parts.unwound.recv() => self.apply(&record),
                () = rung(bell.as_ref()) => { self.drain(); }
                _ = drain.tick() => { self.drain(); }
                _ = flush.tick() => {
                    self.flush();
                    self.scan_window();
                    (self.parts.beat)();
                }
                _ = publish.tick() => self.publish(),
                _ = again.tick() => self.ask_again(),
                _ = measure.tick() => {
                    self.measure();
                    self.watch_tensors(Instant::now());
                }
            }
        }
        self.flush();
        self.look_at_latency();
        let anchor = host::clock::anchor();
        if let Some(recorder) = self.parts.recorder.take() {
            recorder.end(anchor);
        }
        self.picture(anchor)
    }

    async fn answer(&mut self, request: Request) {
        // Whoever asked may have gone.
        match request {
            Request::Trace { tgid, reply } => {
                let _ = reply.send(self.parts.tracer.trace(tgid).map_err(|e| e.to_string()));
            }
            Request::Control { stop, reply } => {
                let _ = reply.send(self.control(stop).map_err(|error| error.to_string()));
            }
            Request::Snapshot { patience, reply } => {
                self.scan_ages(u64::MAX);
                self.flush();
                self.wait_for_names(patience).await;
                let _ = reply.send(self.publish_now());
            }
        }
    }

    /// Takes in answers until the stacks that have no name now are named and the processes that
    /// nobody has described now are described. What comes meanwhile is not waited for.
    async fn wait_for_names(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut nameless: Vec<StackKey> = self.core.unnamed().map(|stack| stack.key).collect();
        let mut unknown: Vec<u32> = self.unfamiliar.keys().copied().collect();
        // Stacks are unwound in order, so these many are those that wait now.
        let target = self.core.unwound() + self.core.awaited() as u64;
        let mut unwound = self.core.awaited() == 0;
        self.ask_again();
        loop {
            nameless.retain(|key| self.core.ledger().stacks().digest(*key).is_none());
            unknown.retain(|serial| self.unfamiliar.contains_key(serial));
            let done = nameless.is_empty() && unknown.is_empty() && unwound;
            if done || Instant::now() >= deadline {
                return;
            }
            // The ring fills meanwhile.
            self.drain();
            if self.parts.stacks.status().under_way < FEW_STACKS {
                self.ask_again();
            }
            if !unwound && self.core.unwound() >= target {
                // What was unwound meanwhile has stacks that are new.
                unwound = true;
                nameless = self.core.unnamed().map(|stack| stack.key).collect();
            }
            if let Ok(Some(record)) =
                tokio::time::timeout(DRAIN_EVERY, self.parts.records.recv()).await
            {
                self.apply(&record);
                while let Ok(record) = self.parts.records.try_recv() {
                    self.apply(&record);
                }
            }
        }
    }

    /// Takes out of the ring what is there, but not for ever what comes meanwhile.
    fn drain_all(&mut self) {
        for _ in 0..DRAIN_ROUNDS {
            if !self.drain() {
                return;
            }
        }
    }

    /// Takes records out of the ring; whether there may be more.
    fn drain(&mut self) -> bool {
        while let Ok(record) = self.parts.unwound.try_recv() {
            self.apply(&record);
        }
        let (core, mut todo, reader, attacher) = self.hands();
        reader.drain(DRAIN_LIMIT, |_, item| {
            let record = match item {
                Item::Record(record) => record,
                Item::Copied(copied) => {
                    todo.apply(core, &copied.pending());
                    match todo.stacks.unwind(copied) {
                        None => return,
                        Some(record) => record,
                    }
                }
            };
            if let (Record::Duplicate(duplicate), Some(attacher)) = (&record, attacher) {
                attacher.duplicate(duplicate.first, duplicate.second);
            }
            todo.apply(core, &record);
        })
    }

    /// The core, what does what it asks for, and what records come from, each to be used beside
    /// the others.
    fn hands(&mut self) -> (&mut Core, Todo<'_>, &mut Reader, Option<&AttachThread>) {
        let Self { core, parts, unfamiliar, leaving, .. } = self;
        let Parts { tracer, stacks, host, policy, exact_sites, attached_at, recorder, .. } = parts;
        let todo = Todo {
            tracer,
            stacks,
            host,
            unfamiliar,
            leaving,
            policy,
            exact_sites,
            attached_at,
            recorder,
        };
        (core, todo, &mut parts.reader, parts.attacher.as_deref())
    }

    fn apply(&mut self, record: &Record) {
        let (core, mut todo, ..) = self.hands();
        todo.apply(core, record);
    }

    /// Has the kernel side send something, again and again while there is more than the ring holds,
    /// and takes it in. A reader that stands still takes nothing.
    fn take_in(&mut self, what: &str, send: fn(&mut Tracer) -> Result<bool, TracerError>) {
        for _ in 0..FLUSH_ROUNDS {
            let sent = send(&mut self.parts.tracer);
            let before = self.parts.reader.taken();
            self.drain_all();
            match sent {
                Ok(false) if self.parts.reader.taken() > before => {}
                sent => return report(what, sent.map(drop)),
            }
        }
    }

    /// Has the kernel side send what has changed, and takes all of it in.
    fn flush(&mut self) {
        // What is in the ring already would only make the flush find it full.
        self.drain_all();
        if !self.stopped {
            self.take_in("flush the kernel's counters", Tracer::flush);
            self.look_for_loss();
        }
        if self.reconcile || self.reconcile_at.is_some_and(|at| self.core.unwound() >= at) {
            self.read_live_ids();
        }
        self.apply(&Record::Tick { now_ns: host::clock::monotonic_ns() });
        if let Some(recorder) = &mut self.parts.recorder {
            recorder.flush();
            // What a replay missed of frees it can hear once more from the live ids.
            self.reconcile |= recorder.dropped();
        }
    }

    /// Asks again for what was refused, and forgets whose stacks all have their names.
    fn ask_again(&mut self) {
        let Self { core, parts, unfamiliar, leaving, .. } = self;
        if !leaving.is_empty() {
            let waiting: HashSet<u32> = core.unnamed().filter_map(RawStack::space).collect();
            for space in leaving.extract_if(.., |space| !waiting.contains(space)) {
                parts.stacks.forget(space);
            }
        }
        for stack in core.unnamed() {
            if parts.stacks.request(stack.clone()).is_err() {
                break;
            }
        }
        for ask in unfamiliar.values() {
            if parts.host.ask(*ask).is_err() {
                break;
            }
        }
    }

    /// Has processes measured, and shared memory where nobody knows why it grew.
    fn measure(&mut self) {
        let wanted = self.core.to_measure(MEASURE_LARGEST, MEASURE_OTHERS, self.measured);
        for Wanted { serial, tgid, start_ns, closer } in wanted {
            self.measured = serial;
            // One that finds no room has another turn.
            if self.parts.host.ask_usage(UsageAsk { serial, tgid, start_ns, closer }).is_err() {
                break;
            }
        }
        if self.core.wants_unused(host::clock::monotonic_ns()) {
            self.parts.host.ask_shared();
        }
    }

    fn publish(&mut self) {
        let (news, at) = self.last_published;
        if self.core.news() != news || at.elapsed() >= REPUBLISH_EVERY {
            self.publish_now();
        }
    }

    fn publish_now(&mut self) -> Arc<Snapshot> {
        self.look_at_latency();
        let snapshot = self.picture(host::clock::anchor());
        self.last_published = (self.core.news(), Instant::now());
        self.parts.published.store(Arc::clone(&snapshot));
        snapshot
    }

    fn picture(&self, anchor: Anchor) -> Arc<Snapshot> {
        let setting = Setting {
            anchor,
            attached_at: self.parts.attached_at.wall,
            host: self.parts.host_info.clone(),
        };
        let mut snapshot = self.core.snapshot(anchor.monotonic_ns, &setting);
        snapshot.runtime.ready = self.parts.ready.load(Ordering::Acquire);
        snapshot.runtime.program_seconds = self.parts.tracer.run_seconds().into_iter().collect();
        for name in self.parts.tracer.attached() {
            snapshot.runtime.probes.insert(((*name).to_owned(), "kernel".to_owned()), true);
        }
        Arc::new(snapshot)
    }
}

/// Waits until the ring buffer fills fast.
async fn rung(bell: Option<&Bell>) {
    match bell {
        Some(bell) => bell.rung().await,
        None => std::future::pending().await,
    }
}

/// A picture of nothing, for before the engine has started.
#[must_use]
pub fn nothing_yet(host_info: HostInfo) -> Snapshot {
    let anchor = host::clock::anchor();
    let setting = Setting { anchor, attached_at: anchor.wall, host: host_info };
    Core::new(CoreConfig::default()).snapshot(anchor.monotonic_ns, &setting)
}
