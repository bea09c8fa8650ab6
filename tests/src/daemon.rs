//! A daemon for one test: own socket, port and state directory, ended by its guard.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::dump::Dump;
use crate::fixture::Fixtures;
use crate::http::{self, Answer};
use crate::memtrace;
use crate::process::{Running, Said};
use crate::scratch::Scratch;

/// How long a start may take, probes and symbols included.
const START: Duration = Duration::from_secs(60);

/// What a daemon is started with.
#[derive(Debug, Default)]
pub struct Options {
    /// Text of a configuration file.
    pub configuration: Option<String>,
    /// Hidden switches.
    pub environment: Vec<(&'static str, String)>,
}

impl Options {
    /// With these libraries named in the configuration: probed before it is ready.
    #[must_use]
    pub fn knowing(self, fixtures: &Fixtures) -> Self {
        let libraries = [fixtures.cudart(), fixtures.cuda()];
        let text = self.configuration.unwrap_or_default();
        Self { configuration: Some(format!("libraries = {libraries:?}\n{text}")), ..self }
    }
}

/// A daemon that runs. Dropped, it is killed by its pid.
#[derive(Debug)]
pub struct Daemon {
    running: Running,
    scratch: Scratch,
    address: String,
}

impl Daemon {
    /// Starts one and waits until it is ready.
    ///
    /// # Errors
    ///
    /// When it ends before that, with what it said.
    pub fn start() -> anyhow::Result<Self> {
        Self::start_with(&Options::default())
    }

    /// Starts one that probes the stub libraries before anybody runs: a library that is new to
    /// the host is probed some milliseconds after its first mapping, which is another test's.
    ///
    /// # Errors
    ///
    /// As [`Daemon::start`].
    pub fn start_knowing(fixtures: &Fixtures) -> anyhow::Result<Self> {
        Self::start_with(&Options::default().knowing(fixtures))
    }

    /// The same with options.
    ///
    /// # Errors
    ///
    /// As [`Daemon::start`].
    pub fn start_with(options: &Options) -> anyhow::Result<Self> {
        let program = crate::paths::memtrace()?;
        Self::start_by(Command::new(program), options)
    }

    /// The same by a command that ends in the binary, such as `setpriv … memtrace`.
    ///
    /// # Errors
    ///
    /// As [`Daemon::start`].
    pub fn start_by(command: Command, options: &Options) -> anyhow::Result<Self> {
        let mut daemon = Self::launch(command, options)?;
        let ended = crate::until("waiting for the daemon", START, || daemon.ready_or_ended())?;
        if let Some(status) = ended {
            let said = daemon.running.finish(START)?;
            bail!("the daemon ended with {status} at its start: {said:?}");
        }
        Ok(daemon)
    }

    /// Starts one that is expected to refuse, and gives what it said.
    ///
    /// # Errors
    ///
    /// When it does not end by itself.
    pub fn refused_by(command: Command, options: &Options) -> anyhow::Result<Said> {
        Self::launch(command, options)?.running.finish(START)
    }

    fn launch(mut command: Command, options: &Options) -> anyhow::Result<Self> {
        let scratch = Scratch::new()?;
        let address = free_address()?;
        command.arg("daemon").args(["--listen", &address]);
        command.arg("--socket").arg(scratch.join("socket"));
        command.arg("--state-dir").arg(scratch.path());
        command.env("SCRATCH", scratch.path());
        if let Some(text) = &options.configuration {
            command.arg("--config").arg(scratch.write("memtrace.toml", text)?);
        }
        command.envs(options.environment.iter().map(|(name, value)| (name, value)));
        Ok(Self { running: Running::start(&mut command)?, scratch, address })
    }

    /// `None` once it is ready, its status once it has ended.
    fn ready_or_ended(&mut self) -> anyhow::Result<Option<i32>> {
        if let Some(status) = self.running.ended()? {
            return Ok(Some(status));
        }
        let answer = self.get("/readyz")?;
        ensure!(answer.status == 200, "/readyz: {answer:?}");
        Ok(None)
    }

    /// Its unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.scratch.join("socket")
    }

    /// Its TCP address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Asks over its socket.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn get(&self, path: &str) -> anyhow::Result<Answer> {
        http::get_unix(&self.socket(), path, &[])
    }

    /// Calls `memtrace SUBCOMMAND --socket …` with more arguments.
    ///
    /// # Errors
    ///
    /// When it does not end.
    pub fn call(&self, subcommand: &str, arguments: &[&str]) -> anyhow::Result<Said> {
        let mut command = memtrace::command([subcommand, "--socket"])?;
        command.arg(self.socket()).args(arguments);
        crate::process::run(&mut command, memtrace::LIMIT)
    }

    /// The dump as it is now.
    ///
    /// # Errors
    ///
    /// When it cannot be had or read.
    pub fn dump(&self) -> anyhow::Result<Dump> {
        Dump::parse(&self.call("dump", &["--format", "json"])?.expect_status(0)?.stdout)
    }

    /// The same, asked of the socket without the binary in between, for who asks often.
    ///
    /// # Errors
    ///
    /// When it cannot be had or read.
    pub fn dump_by_socket(&self) -> anyhow::Result<Dump> {
        let answer = self.get("/api/v1/dump")?;
        ensure!(answer.status == 200, "/api/v1/dump: {answer:?}");
        Dump::parse(&answer.body)
    }

    /// Dumps until a check holds: counters arrive once a second, so the truth may be late.
    ///
    /// # Errors
    ///
    /// The last complaint of the check when it did not hold in time.
    pub fn dump_until<T>(
        &self,
        what: &str,
        limit: Duration,
        mut check: impl FnMut(&Dump) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        crate::until(what, limit, || check(&self.dump()?))
    }

    /// The value of a metric whose line begins with `start`, such as `memtrace_lost_total{cause="x"}`.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn metric(&self, start: &str) -> anyhow::Result<f64> {
        let body = http::get_tcp(&self.address, "/metrics", &[])?.body;
        let line = body.lines().find(|line| line.starts_with(start));
        let line = line.with_context(|| format!("no metric {start} in\n{body}"))?;
        let value = line.rsplit(' ').next().context("a line without value")?;
        value.parse().with_context(|| format!("the value of {line}"))
    }

    /// Ends it with SIGTERM and gives what it said.
    ///
    /// # Errors
    ///
    /// When it does not end.
    pub fn stop(mut self) -> anyhow::Result<Said> {
        self.running.signal(rustix::process::Signal::TERM)?;
        self.running.finish(Duration::from_secs(30))
    }
}

/// An address of the loopback interface whose port nobody uses now.
///
/// # Errors
///
/// When there is none.
pub fn free_address() -> anyhow::Result<String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("looking for a port")?;
    Ok(listener.local_addr()?.to_string())
}
