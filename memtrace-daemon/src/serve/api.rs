//! The API of the unix socket: status, lists, and the dump.

use std::io;
use std::sync::Arc;

use axum::Json;
use axum::extract::State as Shared;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::body;
use super::query::Wanted;
use super::state::State;
use crate::report::summary::Summary;
use crate::report::{Format, render};
use crate::snapshot::{Process, Site, Snapshot};

/// A process without its sites.
#[derive(Serialize)]
struct ProcessRow<'a> {
    pid: u32,
    start_ns: u64,
    ppid: Option<u32>,
    comm: &'a str,
    cmdline: Option<&'a str>,
    cgroup: Option<&'a str>,
    ended: bool,
    ended_at: Option<jiff::Timestamp>,
    baseline: crate::snapshot::Baseline,
    measured: crate::snapshot::Measured,
    pool: Option<crate::snapshot::Pool>,
    device: Option<crate::snapshot::ProcessDevice>,
    domains: &'a std::collections::BTreeMap<&'static str, Box<crate::snapshot::ProcessTerms>>,
    devices: &'a [crate::snapshot::OnDevice],
    sites: usize,
}

impl<'a> ProcessRow<'a> {
    fn of(process: &'a Process) -> Self {
        let Process {
            pid,
            start_ns,
            ppid,
            comm,
            cmdline,
            cgroup,
            ended,
            ended_at,
            baseline,
            measured,
            pool,
            device,
            domains,
            devices,
            sites,
        } = process;
        Self {
            pid: *pid,
            start_ns: *start_ns,
            ppid: *ppid,
            comm,
            cmdline: cmdline.as_deref(),
            cgroup: cgroup.as_deref(),
            ended: *ended,
            ended_at: *ended_at,
            baseline: *baseline,
            measured: *measured,
            pool: *pool,
            device: *device,
            domains,
            devices,
            sites: sites.len(),
        }
    }
}

/// A site with whose it is.
#[derive(Serialize)]
struct SiteRow<'a> {
    pid: u32,
    start_ns: u64,
    comm: &'a str,
    ended: bool,
    #[serde(flatten)]
    site: &'a Site,
}

pub(super) async fn status(Shared(state): Shared<Arc<State>>, wanted: Wanted) -> Response {
    let snapshot = state.last();
    let summary = Summary::of(&snapshot);
    match wanted.format {
        Some(Format::Text) => summary.text(wanted.width).into_response(),
        None | Some(Format::Json) => Json(summary).into_response(),
        Some(other) => refused(format!("status is text or json, not {other}")),
    }
}

pub(super) async fn processes(state: Shared<Arc<State>>, wanted: Wanted) -> Response {
    list(state, wanted, |snapshot, out| {
        let rows: Vec<_> = snapshot.processes.iter().map(ProcessRow::of).collect();
        serde_json::to_writer(out, &rows)
    })
}

pub(super) async fn sites(state: Shared<Arc<State>>, wanted: Wanted) -> Response {
    list(state, wanted, |snapshot, out| {
        let rows: Vec<_> = snapshot
            .processes
            .iter()
            .flat_map(|process| {
                process.sites.iter().map(|site| SiteRow {
                    pid: process.pid,
                    start_ns: process.start_ns,
                    comm: &process.comm,
                    ended: process.ended,
                    site,
                })
            })
            .collect();
        serde_json::to_writer(out, &rows)
    })
}

pub(super) async fn findings(state: Shared<Arc<State>>, wanted: Wanted) -> Response {
    list(state, wanted, |snapshot, out| serde_json::to_writer(out, &snapshot.findings))
}

/// A JSON list of what the last snapshot has.
fn list(
    Shared(state): Shared<Arc<State>>,
    wanted: Wanted,
    write: impl FnOnce(&Snapshot, &mut dyn io::Write) -> serde_json::Result<()> + Send + 'static,
) -> Response {
    if let Some(other) = wanted.format.filter(|format| *format != Format::Json) {
        return refused(format!("this list is json, not {other}; /api/v1/dump has other formats"));
    }
    let snapshot = state.last();
    stream(&state, Format::Json, move |out| {
        let mut out = io::BufWriter::new(out);
        write(&wanted.filter.apply(&snapshot), &mut out)?;
        io::Write::write_all(&mut out, b"\n")?;
        io::Write::flush(&mut out)
    })
}

/// The whole, or a part of it, made now.
pub(super) async fn dump(Shared(state): Shared<Arc<State>>, wanted: Wanted) -> Response {
    let format = wanted.format.unwrap_or(Format::Json);
    let snapshot = state.fresh().await;
    stream(&state, format, move |out| render(&snapshot, format, &wanted.filter, wanted.width, out))
}

/// Stops tracing at once.
pub(super) async fn stop(Shared(state): Shared<Arc<State>>) -> Response {
    control(&state, true).await
}

/// Has it go on.
pub(super) async fn resume(Shared(state): Shared<Arc<State>>) -> Response {
    control(&state, false).await
}

async fn control(state: &State, stop: bool) -> Response {
    match (state.control.stop(stop).await, stop) {
        (Ok(()), true) => "tracing is stopped; the books keep what they have\n".into_response(),
        (Ok(()), false) => "tracing goes on; the books have a gap\n".into_response(),
        (Err(why), _) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")).into_response(),
    }
}

fn stream(
    state: &State,
    format: Format,
    write: impl FnOnce(&mut dyn io::Write) -> io::Result<()> + Send + 'static,
) -> Response {
    let Ok(permit) = state.dumps.clone().try_acquire_owned() else {
        let why = "as many dumps as allowed are being read; try again when one is done\n";
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let body = body::written(move |out| {
        let _permit = permit;
        let done = write(out);
        // A picture of many sites was made for it, and is gone now.
        crate::heap::give_back();
        done
    });
    ([(header::CONTENT_TYPE, format.media_type())], body).into_response()
}

fn refused(why: String) -> Response {
    (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response()
}
