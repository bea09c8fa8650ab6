//! Facts about the host, its processes and the tracer itself: as observations for the engine,
//! or as plain answers for start-up and `doctor`. It decides nothing and blocks nobody: what
//! can hang runs on threads that can be given up.

pub mod capabilities;
pub mod cgroup;
pub mod clock;
pub mod identity;
pub mod kernel;
pub mod process;
pub mod programs;
pub mod text;

mod gpu;
mod limits;
mod memory;
mod rows;
mod shared;
mod usage;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::expendable::{Expendable, GivenUp, Limits, Watch, Worker};
use crate::record::Observation;
use gpu::Gpu;
use memory::Memory;
pub use process::ProcessAsk;
use shared::{Before, Shared};
use usage::Usage;
pub use usage::UsageAsk;

/// How often host memory is looked at.
const MEMORY_EVERY: Duration = Duration::from_secs(1);
/// How often the GPUs are.
const GPU_EVERY: Duration = Duration::from_secs(5);

/// Makes observations. Clones share one set of threads; the last one ends them.
#[derive(Clone)]
pub struct Host {
    inner: Arc<Inner>,
}

struct Inner {
    processes: Expendable<ProcessAsk>,
    usage: Expendable<UsageAsk>,
    shared: Expendable<()>,
    gpu: Expendable<()>,
    refused: AtomicU64,
    undelivered: Arc<AtomicU64>,
    _watch: Watch,
}

/// Figures about the observing itself, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStatus {
    /// Processes not looked at, because too many were waiting.
    pub refused: u64,
    /// Observations that the receiver had no room for.
    pub undelivered: u64,
    /// Threads that hang now.
    pub stuck: usize,
    /// Looks given up because their thread hung or panicked.
    pub given_up: u64,
}

impl Host {
    /// Starts the threads: host memory every second, GPUs every 5 s where there is a driver,
    /// processes when asked. `deliver` gets monotonic ns and what was seen; it must not block,
    /// and returns false where it has no room, which is counted.
    ///
    /// # Errors
    /// The system's, when there can be no more threads.
    pub fn start(
        deliver: impl Fn(u64, Observation) -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let watch = Watch::start("mt-host-watch")?;
        let undelivered = Arc::new(AtomicU64::new(0));
        let deliver = {
            let undelivered = Arc::clone(&undelivered);
            Arc::new(move |observation| {
                if !deliver(clock::monotonic_ns(), observation) {
                    undelivered.fetch_add(1, Relaxed);
                }
            })
        };
        let limits = Limits {
            waiting: 4_096,
            deadline: Duration::from_secs(3),
            idle: Duration::from_secs(3_600),
            stuck: 8,
        };
        let processes = {
            let (seen, unseen) = (Arc::clone(&deliver), Arc::clone(&deliver));
            Expendable::start(
                &watch,
                "mt-processes",
                limits,
                || Processes,
                move |facts| seen(facts),
                move |ask: ProcessAsk, _: GivenUp| {
                    unseen(ask.unknown());
                    None
                },
            )?
        };
        let usage = {
            let deliver = Arc::clone(&deliver);
            Expendable::start(
                &watch,
                "mt-usage",
                limits,
                Usage::default,
                move |seen: Option<Observation>| seen.into_iter().for_each(|one| deliver(one)),
                // It is asked about again soon.
                |_: UsageAsk, _| None,
            )?
        };
        let shared = {
            let deliver = Arc::clone(&deliver);
            let before = Before::default();
            let limits =
                Limits { waiting: 1, deadline: Duration::from_secs(30), stuck: 1, ..limits };
            Expendable::start(
                &watch,
                "mt-shared",
                limits,
                move || Shared::new(Arc::clone(&before)),
                move |seen: Option<Observation>| seen.into_iter().for_each(|one| deliver(one)),
                |(), _| None,
            )?
        };
        // What is there already is noted.
        let _ = shared.push(());
        let gpu = {
            let deliver = Arc::clone(&deliver);
            // NVML takes seconds to start, and hangs where the driver does.
            let limits =
                Limits { waiting: 1, deadline: Duration::from_secs(30), stuck: 1, ..limits };
            Expendable::start(
                &watch,
                "mt-gpu",
                limits,
                Gpu::default,
                move |devices: Vec<Observation>| devices.into_iter().for_each(|one| deliver(one)),
                |(), _| None,
            )?
        };
        let mut memory = Memory::default();
        watch.every(MEMORY_EVERY, move || {
            memory.look().into_iter().for_each(|one| deliver(one));
            true
        });
        {
            let gpu = gpu.clone();
            watch.every(GPU_EVERY, move || {
                // No room: it is still at the last look, or hangs.
                let _ = gpu.push(());
                true
            });
        }
        let refused = AtomicU64::new(0);
        let inner = Inner { processes, usage, shared, gpu, refused, undelivered, _watch: watch };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Asks for the facts of a process; never blocks. What is taken is delivered as
    /// [`Observation::ProcessFacts`], with `None` for what could not be read.
    ///
    /// # Errors
    /// Gives the question back where too many are waiting: ask again later.
    pub fn ask(&self, ask: ProcessAsk) -> Result<(), ProcessAsk> {
        self.inner.processes.push(ask).inspect_err(|_| {
            self.inner.refused.fetch_add(1, Relaxed);
        })
    }

    /// Asks how much memory a process has; never blocks. What is taken is delivered as
    /// [`Observation::ProcessMemory`], or not at all where it has ended or hangs.
    ///
    /// # Errors
    /// Gives the question back where too many are waiting.
    pub fn ask_usage(&self, ask: UsageAsk) -> Result<(), UsageAsk> {
        self.inner.usage.push(ask)
    }

    /// Asks for [`Observation::UnusedShared`]; never blocks. Where a look is under way it is
    /// that one's answer that comes.
    pub fn ask_shared(&self) {
        let _ = self.inner.shared.push(());
    }

    /// Figures since the start.
    #[must_use]
    pub fn status(&self) -> HostStatus {
        let Inner { processes, usage, shared, gpu, .. } = &*self.inner;
        let all = [processes.stuck(), usage.stuck(), shared.stuck(), gpu.stuck()];
        HostStatus {
            refused: self.inner.refused.load(Relaxed),
            undelivered: self.inner.undelivered.load(Relaxed),
            stuck: all.iter().map(|one| one.0).sum(),
            given_up: all.iter().map(|one| one.1).sum(),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.processes.close();
        self.usage.close();
        self.shared.close();
        self.gpu.close();
    }
}

struct Processes;

impl Worker for Processes {
    type Job = ProcessAsk;
    type Out = Observation;

    fn work(&mut self, ask: &ProcessAsk) -> Observation {
        ask.look()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn memory_comes_by_itself_and_processes_when_asked() {
        let (send, receive) = mpsc::channel();
        let host = Host::start(move |now_ns, seen| send.send((now_ns, seen)).is_ok()).unwrap();
        let pid = std::process::id();
        host.ask(ProcessAsk { serial: 7, tgid: pid, start_ns: None, before_attach: true }).unwrap();
        let start_ns = process::start_ns(pid).unwrap();
        host.ask_usage(UsageAsk { serial: 7, tgid: pid, start_ns, closer: false }).unwrap();
        let (mut memory, mut usage, mut facts) = (false, false, false);
        while !(memory && usage && facts) {
            let (now_ns, seen) = receive.recv().unwrap();
            assert!(now_ns > 0 && now_ns <= clock::monotonic_ns());
            match seen {
                Observation::Memory(seen) => {
                    memory = seen.available_bytes > 0 && seen.slab_bytes > seen.unreclaimable_bytes;
                }
                Observation::ProcessMemory(seen) => {
                    usage = seen.serial == 7 && seen.anonymous_bytes > 0;
                }
                Observation::ProcessFacts { serial, rss_bytes, before_attach, .. } => {
                    facts = serial == 7 && before_attach && rss_bytes.unwrap() > 1 << 20;
                }
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
}
