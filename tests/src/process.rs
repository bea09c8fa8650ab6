//! Programs that the suites start: with a time limit, spoken to line by line, ended by pid.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

/// How long a pipe is read after its program's end.
const OPEN: Duration = Duration::from_secs(5);
const HELD_OPEN: &str = "(the pipe is still held open)";

/// What a program that has ended said.
#[derive(Clone, Debug)]
pub struct Said {
    /// Exit status as a shell has it: 128 + n for a signal.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Said {
    /// The last line of standard output that is a JSON object.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn last_json(&self) -> anyhow::Result<Value> {
        self.stdout
            .lines()
            .rev()
            .find_map(|line| serde_json::from_str::<Value>(line).ok().filter(Value::is_object))
            .with_context(|| format!("no JSON line in {self:?}"))
    }

    /// The one line of standard error.
    ///
    /// # Errors
    ///
    /// When there is not exactly one.
    pub fn one_line(&self) -> anyhow::Result<&str> {
        let lines: Vec<&str> = self.stderr.lines().collect();
        match lines.as_slice() {
            [line] if !line.is_empty() => Ok(line),
            _ => bail!("standard error should be one line: {self:?}"),
        }
    }

    /// This, if the status is the one expected.
    ///
    /// # Errors
    ///
    /// When it is another.
    pub fn expect_status(self, status: i32) -> anyhow::Result<Self> {
        if self.status != status {
            bail!("exit status should be {status}: {self:?}");
        }
        Ok(self)
    }
}

/// The exit status as a shell has it.
#[must_use]
pub fn shell_status(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

/// Runs a program to its end, with nothing on standard input.
///
/// # Errors
///
/// When it cannot be started, or has not ended at `limit` (it is then killed).
pub fn run(command: &mut Command, limit: Duration) -> anyhow::Result<Said> {
    Running::start(command)?.finish(limit)
}

/// Runs a program to its end with a text on standard input.
///
/// # Errors
///
/// As [`run`].
pub fn run_with_input(command: &mut Command, input: &str, limit: Duration) -> anyhow::Result<Said> {
    let mut running = Running::start_talking(command)?;
    if let Some(mut stdin) = running.stdin.take() {
        // A program that ends early closes its end: its status will tell.
        let _ = stdin.write_all(input.as_bytes());
    }
    running.finish(limit)
}

/// A program that runs. Dropped while it runs, it is killed by its pid and reaped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
    stdin: Option<ChildStdin>,
    stdout: Option<Receiver<String>>,
    stderr: Option<Collected>,
}

/// What a program says, while it runs and after.
#[derive(Debug)]
struct Collected {
    so_far: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Running {
    /// Starts it with nothing on standard input.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        Self::spawn(command.stdin(Stdio::null()))
    }

    /// Starts it with a pipe on standard input, for programs that wait for a line.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start_talking(command: &mut Command) -> anyhow::Result<Self> {
        Self::spawn(command.stdin(Stdio::piped()))
    }

    fn spawn(command: &mut Command) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own, so that a kill reaches what it started, and nobody else.
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let stderr = child.stderr.take().map(collect);
        let stdout = child.stdout.take().map(lines);
        Ok(Self { stdin: child.stdin.take(), stdout, stderr, child, name })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads its next line. Blocks: fixtures either answer or end.
    ///
    /// # Errors
    ///
    /// After [`Self::finish`]. At its end the line is empty.
    pub fn read_line(&mut self) -> anyhow::Result<String> {
        let stdout = self.stdout.as_ref().context("its output was taken")?;
        Ok(stdout.recv().unwrap_or_default())
    }

    /// Reads its next line, a JSON object.
    ///
    /// # Errors
    ///
    /// When it ended, or said something else.
    pub fn read_json(&mut self) -> anyhow::Result<Value> {
        let line = self.read_line()?;
        serde_json::from_str(&line).with_context(|| format!("{} said {line:?}", self.name))
    }

    /// Waits until it has said something on standard error; it is said again at the end.
    ///
    /// # Errors
    ///
    /// When it has not said so at `limit`.
    pub fn wait_for(&self, words: &str, limit: Duration) -> anyhow::Result<()> {
        let stderr = self.stderr.as_ref().context("its standard error was taken")?;
        crate::until(words, limit, || {
            let said = said(stderr);
            ensure!(said.contains(words), "{} says {said:?}", self.name);
            Ok(())
        })
    }

    /// Sends an empty line: go on.
    ///
    /// # Errors
    ///
    /// When it has no pipe or has ended.
    pub fn go_on(&mut self) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("started without a pipe")?;
        stdin.write_all(b"\n").with_context(|| format!("talking to {}", self.name))
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// When it cannot be sent.
    pub fn signal(&self, signal: rustix::process::Signal) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal)
            .with_context(|| format!("sending {signal:?} to {}", self.name))
    }

    /// Whether it has ended by now, and how.
    ///
    /// # Errors
    ///
    /// When its status cannot be read.
    pub fn ended(&mut self) -> anyhow::Result<Option<i32>> {
        Ok(self.child.try_wait()?.map(shell_status))
    }

    /// Kills it and what is left of its group, and reaps it.
    fn kill(&mut self) {
        let group = rustix::process::Pid::from_child(&self.child);
        // It may end in between; either way it is reaped.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }

    /// Waits for its end and gives what it said and was not read yet.
    ///
    /// # Errors
    ///
    /// When it has not ended at `limit`; it is then killed.
    pub fn finish(&mut self, limit: Duration) -> anyhow::Result<Said> {
        self.stdin = None;
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break Some(shell_status(status));
            }
            if Instant::now() >= end {
                break None;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        if status.is_none() {
            self.kill();
        }
        let said = Said {
            status: status.unwrap_or(-1),
            stdout: self.stdout.take().map(rest).unwrap_or_default(),
            stderr: joined(self.stderr.take()),
        };
        match status {
            Some(_) => Ok(said),
            None => bail!("{} has not ended within {limit:?}, killed: {said:?}", self.name),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.kill();
        }
    }
}

fn collect(mut from: impl Read + Send + 'static) -> Collected {
    let so_far = Arc::new(Mutex::new(Vec::new()));
    let bytes = Arc::clone(&so_far);
    let reader = std::thread::spawn(move || {
        let mut part = [0; 4096];
        // What was read before an error is still worth showing.
        while let Ok(length @ 1..) = from.read(&mut part) {
            let part = part.get(..length).unwrap_or_default();
            bytes.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(part);
        }
    });
    Collected { so_far, reader }
}

/// Lines as they come, whenever they are wanted: nobody has to wait until somebody reads.
fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while let Ok(1..) = from.read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&std::mem::take(&mut line)).into_owned();
            if sender.send(text).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The lines that were not read yet. Not waited for without end: a grandchild can hold the pipe
/// open.
fn rest(lines: Receiver<String>) -> String {
    let end = Instant::now() + OPEN;
    let mut all = String::new();
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => all.push_str(&line),
            Err(RecvTimeoutError::Disconnected) => return all,
            Err(RecvTimeoutError::Timeout) => return all + HELD_OPEN,
        }
    }
}

fn said(collected: &Collected) -> String {
    let bytes = collected.so_far.lock().unwrap_or_else(PoisonError::into_inner);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What a reader has got. Not waited for without end: a grandchild can hold the pipe open.
fn joined(collected: Option<Collected>) -> String {
    let Some(collected) = collected else { return String::new() };
    let end = Instant::now() + OPEN;
    while !collected.reader.is_finished() {
        if Instant::now() >= end {
            return said(&collected) + HELD_OPEN;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    said(&collected)
}
