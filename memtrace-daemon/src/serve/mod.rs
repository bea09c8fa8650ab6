//! HTTP: three read-only routes on TCP, these and the API on the unix socket.
//!
//! Invariants: reads snapshots, and beside that tells the engine to stop and to go on; command
//! lines, stacks and control are on the unix socket only; a TCP request must name this host (a rebound DNS name does not); connections,
//! requests and dumps at a time are bounded, so nobody can use the daemon up.

mod api;
mod body;
mod connections;
mod health;
pub mod hosts;
pub mod metrics;
mod query;
pub mod socket;
pub mod state;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, Uri};
use axum::middleware;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::watch;

pub use hosts::AllowedHosts;
pub use socket::Socket;
pub use state::{Control, ControlRequest, Refresh, RefreshRequest, State};

/// Why nothing is served. One line.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The TCP address cannot be used.
    #[error("cannot listen at {address}: {source}; choose another with --listen, or `off`")]
    Tcp {
        /// Which address.
        address: SocketAddr,
        /// What came back.
        source: io::Error,
    },
    /// The unix socket cannot be used.
    #[error(transparent)]
    Unix(#[from] socket::SocketError),
}

/// What is listened at. Bound before anything is attached, so that a second daemon ends early.
#[derive(Debug)]
pub struct Listeners {
    tcp: Option<TcpListener>,
    unix: Socket,
}

impl Listeners {
    /// Binds the unix socket, and the TCP address if there is one.
    ///
    /// # Errors
    ///
    /// [`ServeError`]; for one, another daemon that listens at the socket.
    pub async fn bind(tcp: Option<SocketAddr>, unix: &Path) -> Result<Self, ServeError> {
        let unix = Socket::bind(unix)?;
        let tcp = match tcp {
            Some(address) => Some(
                TcpListener::bind(address)
                    .await
                    .map_err(|source| ServeError::Tcp { address, source })?,
            ),
            None => None,
        };
        Ok(Self { tcp, unix })
    }

    /// The TCP address, with the port that the system chose if it was 0.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref()?.local_addr().ok()
    }

    /// Serves until `stop` becomes true (or its sender is gone), gives requests under way two
    /// seconds, and removes the socket's file.
    pub async fn serve(self, state: Arc<State>, stop: watch::Receiver<bool>) {
        let Self { tcp, unix } = self;
        let (listener, file) = unix.into_parts();
        let unix = connections::serve(listener, unix_router(state.clone()), stop.clone());
        match tcp {
            Some(tcp) => {
                tokio::join!(connections::serve(tcp, tcp_router(state), stop), unix);
            }
            None => unix.await,
        }
        drop(file);
    }
}

/// The routes that both have.
fn public() -> Router<Arc<State>> {
    Router::new()
        .route("/metrics", get(health::metrics))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
}

fn tcp_router(state: Arc<State>) -> Router {
    public()
        .fallback(|| async {
            (
                StatusCode::NOT_FOUND,
                "here are /metrics, /healthz and /readyz; the rest is on the unix socket\n",
            )
        })
        .layer(middleware::from_fn_with_state(state.clone(), hosts::check))
        .with_state(state)
}

fn unix_router(state: Arc<State>) -> Router {
    public()
        .route("/api/v1/status", get(api::status))
        .route("/api/v1/processes", get(api::processes))
        .route("/api/v1/sites", get(api::sites))
        .route("/api/v1/findings", get(api::findings))
        .route("/api/v1/dump", get(api::dump))
        .route("/api/v1/control/stop", post(api::stop))
        .route("/api/v1/control/resume", post(api::resume))
        .fallback(|uri: Uri| async move {
            let known =
                "/metrics, /healthz, /readyz, /api/v1/{status,processes,sites,findings,dump}, and \
                 by POST /api/v1/control/{stop,resume}";
            (StatusCode::NOT_FOUND, format!("no {}; here are {known}\n", uri.path()))
        })
        .with_state(state)
}

#[cfg(test)]
mod tests;
