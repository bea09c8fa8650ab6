//! The daemon's configuration file: TOML, every key optional, unknown keys refused.
//!
//! This room turns a file into values that make sense, or into one line that says which key
//! on which line does not. It attaches nothing and asks the host nothing.

pub mod policy;
pub mod sections;
pub mod values;

use std::path::{Path, PathBuf};
use std::time::Duration;

use memtrace_common::Domain;
use serde::Deserialize;

use crate::catalog::{self, AllocatorRow, FreeRow};

pub use policy::{Exclude, Include};
pub use sections::{
    CeilingSection, DomainSection, Maps, StacksSection, TorchSection, VerdictSection,
};
pub use values::{Domains, Listen};

/// Where the daemon looks when no `--config` is given; it need not exist.
pub const DEFAULT_PATH: &str = "/etc/memtrace/memtrace.toml";
/// Where `/metrics` is served. 9753 is in no registry of exporters' ports.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:9753";
/// The socket that `dump`, `status` and `top` talk to; systemd makes its directory.
pub const DEFAULT_SOCKET: &str = "/run/memtrace/memtrace.sock";
/// What is kept over a restart; systemd makes it.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/memtrace";
/// How long after the end of a process its descriptors may take to be closed. 5,000 eventfds
/// took 100 ms; this is five times that.
pub const DEFAULT_SETTLE: Duration = Duration::from_millis(500);

/// A configuration file, with defaults where it says nothing.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Kinds of memory that are booked.
    pub domains: Domains,
    /// Whether named slab caches are booked beside kmalloc.
    pub kmem_cache: bool,
    /// Whether every kernel allocation's stack is walked, not only samples.
    pub exact: bool,
    /// Kernel functions whose call sites are followed by whole stacks although `exact` is off.
    pub exact_sites: Vec<String>,
    /// Library files that are probed although nothing maps them yet.
    pub libraries: Vec<PathBuf>,
    /// Where `/metrics`, `/healthz` and `/readyz` are served by TCP.
    pub listen: Listen,
    /// Names that a `Host` header may carry beside IP addresses and `localhost`.
    pub allowed_hosts: Vec<String>,
    /// The unix socket.
    pub socket: PathBuf,
    /// What is kept over a restart.
    pub state_dir: PathBuf,
    /// How long after the end of a process its kernel books may still settle.
    #[serde(deserialize_with = "values::duration")]
    pub settle: Duration,
    /// A kernel stack is sampled when live bytes of its call site have grown by this much, bytes.
    #[serde(deserialize_with = "values::bytes")]
    pub quantum: u64,
    /// Sizes of the kernel maps.
    pub maps: Maps,
    /// How stacks are read.
    pub stacks: StacksSection,
    /// When tensors are looked at although their domain is off.
    pub torch: TorchSection,
    /// If not empty, only these processes are booked.
    pub include: Include,
    /// These are never booked; wins over `include`.
    pub exclude: Exclude,
    /// When growth becomes a finding.
    pub verdict: VerdictSection,
    /// From when on probes cost too much.
    pub ceiling: CeilingSection,
    /// Functions that give memory, beside those that memtrace knows.
    pub allocator: Vec<AllocatorRow>,
    /// Functions that take memory back, beside those that memtrace knows.
    pub free: Vec<FreeRow>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            domains: Domains::default(),
            kmem_cache: false,
            exact: false,
            exact_sites: Vec::new(),
            libraries: Vec::new(),
            listen: Listen::default(),
            allowed_hosts: Vec::new(),
            socket: PathBuf::from(DEFAULT_SOCKET),
            state_dir: PathBuf::from(DEFAULT_STATE_DIR),
            settle: DEFAULT_SETTLE,
            quantum: memtrace_common::tunables::SAMPLE_QUANTUM_BYTES,
            maps: Maps::default(),
            stacks: StacksSection::default(),
            torch: TorchSection::default(),
            include: Include::default(),
            exclude: Exclude::default(),
            verdict: VerdictSection::default(),
            ceiling: CeilingSection::default(),
            allocator: Vec::new(),
            free: Vec::new(),
        }
    }
}

/// Why a configuration cannot be used. One line.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}; name another with --config")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What came back.
        source: std::io::Error,
    },
    /// A line of it is not TOML, names an unknown key, or has a value of the wrong form.
    #[error("{path} line {line}: {message}")]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// A value has the right form and makes no sense.
    #[error("{path}: {message}")]
    Value {
        /// Which file.
        path: PathBuf,
        /// Which key, and what is wrong with it.
        message: String,
    },
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    ///
    /// One line that names the file, and where there is one the line and the key.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(path, &text)
    }

    /// Reads the file that was named; or, if none was, the default file if it exists; or
    /// takes the defaults.
    ///
    /// # Errors
    ///
    /// As [`Config::load`].
    pub fn load_or_default(named: Option<&Path>) -> Result<Self, ConfigError> {
        match named {
            Some(path) => Self::load(path),
            None => match Self::load(Path::new(DEFAULT_PATH)) {
                Err(ConfigError::Read { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound =>
                {
                    Ok(Self::default())
                }
                other => other,
            },
        }
    }

    /// Reads the text of a configuration file; `path` is only for messages.
    ///
    /// # Errors
    ///
    /// As [`Config::load`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            ConfigError::Line {
                path: path.to_owned(),
                line: before.matches('\n').count() + 1,
                message: one_line(error.message()),
            }
        })?;
        config
            .validate()
            .map_err(|message| ConfigError::Value { path: path.to_owned(), message })?;
        Ok(config)
    }

    /// Says what makes no sense, with its key.
    fn validate(&self) -> Result<(), String> {
        self.maps.validate()?;
        self.stacks.validate()?;
        self.torch.validate()?;
        self.include.validate()?;
        self.exclude.validate()?;
        self.verdict.validate()?;
        self.ceiling.validate()?;
        self.validate_domains()?;
        for (key, path) in [("socket", &self.socket), ("state_dir", &self.state_dir)] {
            if !path.is_absolute() {
                return Err(format!("{key}: `{}` is not an absolute path", path.display()));
            }
        }
        if let Some(path) = self.libraries.iter().find(|path| !path.is_absolute()) {
            return Err(format!("libraries: `{}` is not an absolute path", path.display()));
        }
        if self.quantum < 4096 {
            return Err("quantum: less than 4KiB samples nearly every allocation; use exact".into());
        }
        Ok(())
    }
}

impl Config {
    /// That whatever is to be booked has functions, and whatever has functions is to be booked.
    fn validate_domains(&self) -> Result<(), String> {
        let declared = catalog::declared_domains(&self.allocator, &self.free)?;
        for (domain, symbol) in &declared {
            if !self.domains.contains(*domain) {
                return Err(format!(
                    "[[allocator]] {symbol}: its domain is off; add \"{}\" to `domains`",
                    domain.name()
                ));
            }
        }
        let declared: Vec<Domain> = declared.into_iter().map(|(domain, _)| domain).collect();
        for domain in self.domains.iter().chain(self.verdict.domain.keys().copied()) {
            values::has_probes(domain, &declared)?;
        }
        Ok(())
    }
}

/// A message without line breaks.
fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
