//! Starts and stops what traces the loops: nothing, empty programs, memtrace, bpftrace.
//!
//! Each is a child that is ended by its process id when its guard is dropped. Nothing is mounted
//! for anybody else: the tracefs that bpftrace needs is mounted in a namespace of its own.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::readings;

/// How long a tracer may take to start, and to end.
const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// The binaries.
#[derive(Clone, Debug)]
pub struct Programs {
    /// memtrace itself.
    pub memtrace: PathBuf,
    /// The loops.
    pub loops: PathBuf,
    /// Empty programs on the same hooks.
    pub empty: PathBuf,
    /// Feeds the engine.
    pub engine: PathBuf,
    /// Measures the unwinding of copied stacks.
    pub unwinding: PathBuf,
    /// Measures the naming of stacks.
    pub naming: PathBuf,
}

/// What traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tracer {
    /// Nothing.
    Untraced,
    /// Programs that return at once.
    Empty,
    /// `memtrace daemon` with its default domains.
    Memtrace,
    /// Bytes and kernel stack by pointer, deleted at kfree.
    Bpftrace,
}

impl Tracer {
    /// As in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Untraced => "untraced",
            Self::Empty => "empty",
            Self::Memtrace => "memtrace",
            Self::Bpftrace => "bpftrace",
        }
    }
}

/// The equivalent of a kernel memleak in bpftrace.
const BPFTRACE: &str = r#"
BEGIN { printf("ready\n"); }
tracepoint:kmem:kmalloc { @bytes[args->ptr] = args->bytes_alloc; @stack[args->ptr] = kstack; }
tracepoint:kmem:kfree { delete(@bytes[args->ptr]); delete(@stack[args->ptr]); }
"#;
/// Enough that no insert fails: a failing insert would be cheaper.
const BPFTRACE_KEYS: &str = "262144";
const BPFTRACE_SHELL: &str = "[ -e /sys/kernel/tracing/events/kmem ] \
     || mount -t tracefs tracefs /sys/kernel/tracing; exec bpftrace -e \"$0\"";

/// A tracer that runs; it ends when this is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    tracer: Tracer,
    /// memtrace's.
    socket: PathBuf,
}

/// Starts one and waits until it is attached. `empty` is what [`Programs::empty`] is told;
/// `scratch` a directory for the socket and logs.
///
/// # Errors
///
/// Where it cannot be started, or ends instead of getting ready: with what it said.
pub fn start(
    tracer: Tracer,
    programs: &Programs,
    empty: &[&str],
    scratch: &Path,
) -> anyhow::Result<Option<Running>> {
    let socket = scratch.join("memtrace.sock");
    let log = scratch.join(format!("{}.log", tracer.name()));
    let mut command = match tracer {
        Tracer::Untraced => return Ok(None),
        Tracer::Empty => {
            let mut command = Command::new(&programs.empty);
            command.args(empty);
            command
        }
        Tracer::Memtrace => {
            let mut command = Command::new(&programs.memtrace);
            command.args(["daemon", "--listen", "127.0.0.1:0", "--socket"]).arg(&socket);
            command.arg("--state-dir").arg(scratch).arg("--config").arg(config(scratch)?);
            command
        }
        Tracer::Bpftrace => {
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", BPFTRACE_SHELL, BPFTRACE]);
            command.env("BPFTRACE_MAP_KEYS_MAX", BPFTRACE_KEYS);
            command
        }
    };
    let errors = File::create(&log).with_context(|| format!("making {}", log.display()))?;
    // Only those that say "ready" there are read; nobody may fill a pipe that is not.
    let output = if tracer == Tracer::Memtrace { Stdio::null() } else { Stdio::piped() };
    command.stdin(Stdio::piped()).stdout(output).stderr(errors);
    let child = command.spawn().with_context(|| format!("starting {}", tracer.name()))?;
    let mut running = Running { child, tracer, socket };
    if let Err(error) = running.wait_until_ready() {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        bail!("{error:#}; it said: {}", said.trim());
    }
    Ok(Some(running))
}

/// The daemon's configuration: the loops call faster than any service, and no stack may be taken
/// the cheap way because there were too many.
fn config(scratch: &Path) -> anyhow::Result<PathBuf> {
    let path = scratch.join("memtrace.toml");
    std::fs::write(&path, "[stacks]\ncopy_bytes_per_second = \"8GiB\"\n")
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

impl Running {
    /// The socket, when it is memtrace.
    pub fn socket(&self) -> Option<&Path> {
        (self.tracer == Tracer::Memtrace).then_some(self.socket.as_path())
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let name = self.tracer.name();
        if self.tracer != Tracer::Memtrace {
            let output = self.child.stdout.as_mut().context("standard output is piped")?;
            let said = BufReader::new(output).lines().map_while(Result::ok);
            return match said.into_iter().find(|line| line == "ready") {
                Some(_) => Ok(()),
                None => bail!("{name} ended before it was attached"),
            };
        }
        let start = Instant::now();
        while start.elapsed() < START {
            if readings::is_ready(&self.socket) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{name} ended before it was ready, {status}");
            }
            sleep(POLL);
        }
        bail!("{name} was not ready within {} s", START.as_secs())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Empty probes end with their standard input, memtrace by a signal; bpftrace would
        // print a quarter of a million stacks first.
        drop(self.child.stdin.take());
        match self.tracer {
            Tracer::Memtrace => {
                // It may be gone already.
                let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            }
            Tracer::Bpftrace => {
                let _ = self.child.kill();
            }
            Tracer::Untraced | Tracer::Empty => {}
        }
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > END {
                eprintln!("{} did not end within {} s: killed", self.tracer.name(), END.as_secs());
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            sleep(POLL);
        }
    }
}
