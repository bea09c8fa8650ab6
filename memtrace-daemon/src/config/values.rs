//! Values that people write: sizes, durations, domains, sites, an address to listen at.
//!
//! The command line, the configuration file and the socket read them by the same functions. Every error
//! says what was written and what would be right.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use memtrace_common::Domain;
use serde::de::{Deserialize, Deserializer, Error};

use crate::catalog;

/// Reads a number of bytes: `1048576`, `32KiB`, `1.5GiB`, `1G` (binary), `1GB` (decimal).
///
/// # Errors
///
/// A sentence, where the text is no such number or is beyond 2^64.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size; write bytes, or a number with KiB, MiB, GiB, TiB");
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = trimmed.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    // Whole numbers stay exact; a fraction is only as exact as its unit needs.
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(|| format!("`{text}` is beyond 2^64 bytes"));
    }
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * factor as f64;
    if factor == 1 || bytes >= u64::MAX as f64 {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

/// Reads a duration: `500ms`, `10s`, `2m`, `1h30m`.
///
/// # Errors
///
/// A sentence, where the text is no such duration or is negative.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    text.parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or_else(|| format!("`{text}` is no duration; write it like 500ms, 10s, 2m or 1h30m"))
}

/// A set of domains; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domains(BTreeSet<Domain>);

impl Domains {
    /// Whether a domain is in it.
    #[must_use]
    pub fn contains(&self, domain: Domain) -> bool {
        self.0.contains(&domain)
    }

    /// The domains, in the order of their discriminants.
    pub fn iter(&self) -> impl Iterator<Item = Domain> + '_ {
        self.0.iter().copied()
    }

    fn from_names<'a>(
        names: impl IntoIterator<Item = &'a str>,
        parse: impl Fn(&str) -> Result<Domain, String>,
    ) -> Result<Self, String> {
        let mut set = BTreeSet::new();
        for name in names {
            set.insert(parse(name.trim())?);
        }
        if set.is_empty() {
            return Err(format!("no domain is named; choose from {}", list(booked_domains())));
        }
        Ok(Self(set))
    }
}

impl Default for Domains {
    fn default() -> Self {
        Self(BTreeSet::from([Domain::Kernel, Domain::Cuda, Domain::Managed, Domain::Pinned]))
    }
}

impl FromStr for Domains {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::from_names(text.split(',').filter(|name| !name.trim().is_empty()), parse_domain)
    }
}

impl fmt::Display for Domains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().map(Domain::name).collect::<Vec<_>>().join(","))
    }
}

impl<'de> Deserialize<'de> for Domains {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        Self::from_names(names.iter().map(String::as_str), any_domain).map_err(D::Error::custom)
    }
}

/// Reads the name of a domain that this version can book.
///
/// # Errors
///
/// A sentence with the names that would be right.
pub fn parse_domain(name: &str) -> Result<Domain, String> {
    let domain = any_domain(name)?;
    has_probes(domain, &[])?;
    Ok(domain)
}

/// Reads the name of a domain: the configuration may declare the functions that book it.
pub(super) fn any_domain(name: &str) -> Result<Domain, String> {
    Domain::from_name(name)
        .ok_or_else(|| format!("unknown domain `{name}`; choose from {}", list(booked_domains())))
}

/// That something books a domain: memtrace's own functions, or declared ones.
pub(super) fn has_probes(domain: Domain, declared: &[Domain]) -> Result<(), String> {
    if declared.contains(&domain) || booked_domains().any(|booked| booked == domain) {
        return Ok(());
    }
    let (name, booked) = (domain.name(), list(booked_domains()));
    Err(format!("domain `{name}` has no probes yet; choose from {booked}"))
}

/// Reads a site id.
///
/// # Errors
///
/// A sentence, where the text is not 16 hex digits.
pub fn parse_site(text: &str) -> Result<u64, String> {
    if text.len() == 16
        && text.bytes().all(|b| b.is_ascii_hexdigit())
        && let Ok(id) = u64::from_str_radix(text, 16)
    {
        return Ok(id);
    }
    Err(format!("`{text}` is no site; an id has 16 hex digits, as a dump prints it"))
}

/// Domains that have at least one probe: the kernel's, and those of the catalog.
fn booked_domains() -> impl Iterator<Item = Domain> {
    Domain::ALL.into_iter().filter(catalog::has_probes)
}

fn list(domains: impl Iterator<Item = Domain>) -> String {
    domains.map(Domain::name).collect::<Vec<_>>().join(", ")
}

/// Where to listen by TCP; `None` for nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen(pub Option<SocketAddr>);

impl Default for Listen {
    fn default() -> Self {
        Self(super::DEFAULT_LISTEN.parse().ok())
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        text.parse().map(|address| Self(Some(address))).map_err(|_| {
            format!("`{text}` is no address; write IP:PORT, such as 127.0.0.1:9753, or off")
        })
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// For `deserialize_with`: a size as a string with a unit, or a number of bytes.
pub(super) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Form {
        Number(u64),
        Text(String),
    }
    match Form::deserialize(deserializer)? {
        Form::Number(bytes) => Ok(bytes),
        Form::Text(text) => parse_bytes(&text).map_err(D::Error::custom),
    }
}

/// For `deserialize_with`: a duration as a string.
pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// For `deserialize_with`: a size that may be left out.
pub(super) fn some_bytes<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    bytes(deserializer).map(Some)
}

/// For `deserialize_with`: a list of site ids.
pub(super) fn sites<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    let ids = Vec::<String>::deserialize(deserializer)?;
    ids.iter().map(|id| parse_site(id).map_err(D::Error::custom)).collect()
}

/// For `deserialize_with`: tables by the name of a domain.
pub(super) fn by_domain<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<BTreeMap<Domain, T>, D::Error> {
    let named = BTreeMap::<String, T>::deserialize(deserializer)?;
    let read = |(name, table): (String, T)| Ok((any_domain(&name)?, table));
    named.into_iter().map(read).collect::<Result<_, String>>().map_err(D::Error::custom)
}
