//! What monitors ask: metrics, whether the engine lives, whether the probes are on.

use std::sync::Arc;

use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;

use super::metrics::Exposition;
use super::state::State;

/// This many seconds without a snapshot, and the engine is not well.
const STALE_SECONDS: f64 = 60.0;

pub(super) async fn metrics(Shared(state): Shared<Arc<State>>, headers: HeaderMap) -> Response {
    // Several Accept headers are one list.
    let accept: Vec<&str> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = Exposition::accepted(Some(&accept.join(",")));
    match state.metrics.scrape(state.last(), format) {
        Ok(body) => ([(header::CONTENT_TYPE, format.media_type())], body).into_response(),
        Err(error) => {
            let why = format!("metrics could not be written: {error}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, why).into_response()
        }
    }
}

pub(super) async fn healthz(Shared(state): Shared<Arc<State>>) -> (StatusCode, String) {
    let age = Timestamp::now().duration_since(state.last().generated_at).as_secs_f64();
    if age < STALE_SECONDS {
        (StatusCode::OK, "ok\n".into())
    } else {
        let why = format!("the engine has published nothing for {age:.0} s\n");
        (StatusCode::SERVICE_UNAVAILABLE, why)
    }
}

pub(super) async fn readyz(Shared(state): Shared<Arc<State>>) -> (StatusCode, &'static str) {
    let last = state.last();
    if last.stopped_at.is_some() {
        (StatusCode::SERVICE_UNAVAILABLE, "tracing is stopped; `memtrace resume` has it go on\n")
    } else if last.runtime.ready {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the probes are being attached\n")
    }
}
