//! Accepts connections, a bounded number at a time, and ends them in time.
//!
//! axum's own loop sets neither a limit nor a timeout; a daemon that runs for months under
//! scrapers that hang needs both.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// Connections at a time at one listener. A host has a few scrapers and a few people.
const CONNECTIONS: usize = 64;
/// A request's head is a few hundred bytes; whoever needs longer is not sending one. Also how
/// long a connection may idle between two requests.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// Bytes that a request's head may have.
const HEAD_BYTES: usize = 16 << 10;
/// What is under way at the end may finish for this long.
const GRACE: Duration = Duration::from_secs(2);

/// Serves until `stop` is true or its sender is gone.
pub(super) async fn serve<L: Listener>(
    mut listener: L,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            // Waiting connections stay in the kernel's backlog, which is bounded too.
            let permit = room.clone().acquire_owned().await;
            (listener.accept().await.0, permit)
        };
        let (io, permit) = tokio::select! {
            accepted = accepted => accepted,
            () = stopped(&mut stop) => break,
        };
        let service = TowerToHyperService::new(router.clone());
        let mut stop = stop.clone();
        connections.spawn(async move {
            let _permit = permit;
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_WITHIN)
                .max_buf_size(HEAD_BYTES)
                .serve_connection(TokioIo::new(io), service);
            tokio::pin!(connection);
            let ended = tokio::select! {
                ended = &mut connection => ended,
                () = stopped(&mut stop) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended early");
            }
        });
        // What has ended is forgotten as we go.
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, all).await.is_err() {
        tracing::debug!("connections were still open at the end");
    }
}

/// Until somebody says stop, or nobody is there to say it.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}
