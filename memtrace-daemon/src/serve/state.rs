//! What the handlers share: the last published snapshot, a way to ask for a fresh one, and
//! what metrics remember.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::hosts::AllowedHosts;
use super::metrics::Metrics;
use crate::snapshot::Snapshot;

/// A fresh snapshot takes one flush of the kernel's accounts; an engine that needs longer is
/// in trouble, and an old snapshot helps more than none.
const FRESH_WITHIN: Duration = Duration::from_secs(5);
/// A last flush and what is detached in the kernel.
const CONTROLLED_WITHIN: Duration = Duration::from_secs(20);
/// Dumps that are written at a time. Each holds a thread while its reader is slow.
const DUMPS: usize = 8;

/// Somebody waits for a snapshot that is made now.
pub type RefreshRequest = oneshot::Sender<Arc<Snapshot>>;

/// Asks the engine for a snapshot that is made now.
#[derive(Clone, Debug)]
pub struct Refresh(mpsc::Sender<RefreshRequest>);

impl Refresh {
    /// The asking side, and the side that the engine answers.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<RefreshRequest>) {
        let (sender, receiver) = mpsc::channel(DUMPS);
        (Self(sender), receiver)
    }

    /// A snapshot made now; `None` if the engine did not answer in 5 s.
    pub async fn fresh(&self) -> Option<Arc<Snapshot>> {
        let ask = async {
            let (answer, answered) = oneshot::channel();
            self.0.send(answer).await.ok()?;
            answered.await.ok()
        };
        tokio::time::timeout(FRESH_WITHIN, ask).await.ok().flatten()
    }
}

/// Somebody wants tracing to stop, or to go on.
#[derive(Debug)]
pub struct ControlRequest {
    /// Whether it is to stop.
    pub stop: bool,
    /// Where the answer goes: what could not be done.
    pub reply: oneshot::Sender<Result<(), String>>,
}

/// Tells the engine to stop tracing, or to go on.
#[derive(Clone, Debug)]
pub struct Control(mpsc::Sender<ControlRequest>);

impl Control {
    /// The telling side, and the side that the engine answers.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<ControlRequest>) {
        let (sender, receiver) = mpsc::channel(DUMPS);
        (Self(sender), receiver)
    }

    /// Stops tracing, or has it go on.
    ///
    /// # Errors
    /// What could not be done, in one line.
    pub async fn stop(&self, stop: bool) -> Result<(), String> {
        let tell = async {
            let (reply, answer) = oneshot::channel();
            self.0.send(ControlRequest { stop, reply }).await.ok()?;
            answer.await.ok()
        };
        let answer = tokio::time::timeout(CONTROLLED_WITHIN, tell).await.ok().flatten();
        answer.unwrap_or_else(|| Err("the engine does not answer".to_owned()))
    }
}

/// What the handlers share.
#[derive(Debug)]
pub struct State {
    pub(super) published: Arc<ArcSwap<Snapshot>>,
    pub(super) refresh: Refresh,
    pub(super) control: Control,
    pub(super) hosts: AllowedHosts,
    pub(super) metrics: Metrics,
    pub(super) dumps: Arc<Semaphore>,
}

impl State {
    /// Shares what the engine publishes.
    #[must_use]
    pub fn new(
        published: Arc<ArcSwap<Snapshot>>,
        refresh: Refresh,
        control: Control,
        hosts: AllowedHosts,
    ) -> Arc<Self> {
        Arc::new(Self {
            published,
            refresh,
            control,
            hosts,
            metrics: Metrics::default(),
            dumps: Arc::new(Semaphore::new(DUMPS)),
        })
    }

    /// The last snapshot.
    pub(super) fn last(&self) -> Arc<Snapshot> {
        self.published.load_full()
    }

    /// A snapshot made now, or the last one if the engine does not answer.
    pub(super) async fn fresh(&self) -> Arc<Snapshot> {
        match self.refresh.fresh().await {
            Some(snapshot) => snapshot,
            None => {
                tracing::warn!("the engine made no snapshot within 5 s; a dump shows the last one");
                self.last()
            }
        }
    }
}
