//! The Host header: a web page whose name has been rebound to this host must not read what is
//! served here, so names are refused that nobody configured.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State as Shared};
use axum::http::{HeaderMap, StatusCode, Uri, header, uri::Authority};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::state::State;
use crate::report::escape::{escape, fit};

/// Names that a request may be for, beside IP addresses and `localhost`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedHosts(Vec<String>);

impl AllowedHosts {
    /// These names, in any case.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().map(|name| name.trim_end_matches('.').to_lowercase()).collect())
    }

    /// Whether a request for this `host[:port]` is answered.
    #[must_use]
    pub fn allows(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        // `user@host` is nothing that a scraper sends.
        if host.contains('@') {
            return false;
        }
        let name = authority.host().trim_end_matches('.').to_lowercase();
        let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        // An address cannot be rebound: the page that asks would be this host's own.
        address.unwrap_or(&name).parse::<IpAddr>().is_ok()
            || name == "localhost"
            || self.0.contains(&name)
    }
}

/// Refuses a request that is not for this host.
pub(super) async fn check(
    Shared(state): Shared<Arc<State>>,
    request: Request,
    next: Next,
) -> Response {
    match refusal(&state.hosts, request.uri(), request.headers()) {
        Some((status, why)) => (status, why).into_response(),
        None => next.run(request).await,
    }
}

fn refusal(hosts: &AllowedHosts, uri: &Uri, headers: &HeaderMap) -> Option<(StatusCode, String)> {
    let mut named = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (named.next(), named.next()) else {
        return Some((StatusCode::BAD_REQUEST, "a request needs one Host header\n".into()));
    };
    let host = String::from_utf8_lossy(host.as_bytes());
    let target = uri.authority().map(Authority::as_str);
    let wrong = std::iter::once(&*host).chain(target).find(|name| !hosts.allows(name))?;
    let wrong = fit(&escape(wrong), 100).into_owned();
    Some((
        StatusCode::MISDIRECTED_REQUEST,
        format!(
            "`{wrong}` is no name of this host; ask by IP address, or add it to allowed_hosts\n"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_configured_names_are_this_host() {
        let hosts = AllowedHosts::new(["GPU-17.example.com".into()]);
        for host in [
            "127.0.0.1",
            "127.0.0.1:9753",
            "[::1]:9753",
            "10.1.2.3",
            "localhost",
            "LocalHost:80",
            "gpu-17.example.com:9753",
            "gpu-17.example.com.",
        ] {
            assert!(hosts.allows(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:9753",
            "x@127.0.0.1",
            "[::1",
            "gpu-17",
            "a b",
        ] {
            assert!(!hosts.allows(host), "{host}");
        }
    }
}
