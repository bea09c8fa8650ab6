//! What a request asks for, read strictly: a misspelt key is an error, not a full dump.

use axum::extract::FromRequestParts;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::Deserialize;

use crate::config::values::{parse_domain, parse_site};
use crate::report::{Filter, Format};

/// Nobody has a terminal this wide; a larger figure is no width.
const WIDEST: usize = 10_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    format: Option<String>,
    pid: Option<u32>,
    comm: Option<String>,
    domain: Option<String>,
    site: Option<String>,
    width: Option<usize>,
}

/// Which part, and how it is written.
#[derive(Debug)]
pub(super) struct Wanted {
    /// `None`: JSON.
    pub(super) format: Option<Format>,
    pub(super) filter: Filter,
    /// Columns of the asker's terminal.
    pub(super) width: Option<usize>,
}

impl<S: Send + Sync> FromRequestParts<S> for Wanted {
    type Rejection = (StatusCode, String);

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let Query(raw) = Query::<Raw>::from_request_parts(parts, state)
            .await
            .map_err(|rejection| bad(rejection.body_text()))?;
        Self::read(raw).map_err(bad)
    }
}

fn bad(why: String) -> (StatusCode, String) {
    (StatusCode::BAD_REQUEST, format!("{why}\n"))
}

impl Wanted {
    fn read(raw: Raw) -> Result<Self, String> {
        let Raw { format, pid, comm, domain, site, width } = raw;
        Ok(Self {
            format: format.map(|format| format.parse()).transpose()?,
            filter: Filter {
                pid,
                comm,
                domain: domain.as_deref().map(parse_domain).transpose()?,
                site: site.as_deref().map(parse_site).transpose()?,
            },
            width: width.filter(|width| *width <= WIDEST),
        })
    }
}
