//! Starting a traced command: a launcher process of our own waits until its process is
//! followed, then becomes the command.
//!
//! The command gets standard input, output and error, and no other descriptor and no
//! capability of memtrace.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, ExitCode, Stdio},
};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::user::Account;

/// The hidden first argument that makes memtrace a launcher.
pub use crate::host::process::LAUNCH;
/// Exit status: the launcher or memtrace failed.
pub const STATUS_FAILED: u8 = 125;
/// Exit status: the command cannot be executed.
pub const STATUS_CANNOT_EXECUTE: u8 = 126;
/// Exit status: the command is not found.
pub const STATUS_NOT_FOUND: u8 = 127;

/// A command whose process exists and waits.
#[derive(Debug)]
pub struct Launched {
    /// The process.
    pub child: Child,
    /// Says that it may become the command; closed, that it is to end.
    pub go: File,
    /// Where it says why it cannot become the command.
    pub failed: File,
}

/// The command could not be executed.
#[derive(Debug, thiserror::Error)]
#[error("cannot execute {command}: {source}")]
pub struct CannotExecute {
    /// The command as it was given.
    pub command: String,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl CannotExecute {
    /// The exit status that says so: not found, or not executable.
    #[must_use]
    pub fn status(&self) -> u8 {
        if self.source.kind() == io::ErrorKind::NotFound {
            STATUS_NOT_FOUND
        } else {
            STATUS_CANNOT_EXECUTE
        }
    }
}

/// Makes the process that will become the command.
///
/// # Errors
/// What the system said.
pub fn prepare(command: &[OsString], user: Option<&Account>) -> io::Result<Launched> {
    let (go_read, go_write) = io::pipe()?;
    let (failed_read, failed_write) = io::pipe()?;
    // Kept over the launcher's own exec; it closes them before the command's.
    inherit(&go_read)?;
    inherit(&failed_write)?;
    let mut launcher = Command::new("/proc/self/exe");
    launcher.arg0("memtrace").arg(LAUNCH);
    launcher.arg(go_read.as_raw_fd().to_string()).arg(failed_write.as_raw_fd().to_string());
    launcher.arg(user.map_or("", |user| &user.name)).args(command);
    launcher.stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
    let child = launcher.spawn()?;
    Ok(Launched {
        child,
        go: File::from(OwnedFd::from(go_write)),
        failed: File::from(OwnedFd::from(failed_read)),
    })
}

impl Launched {
    /// Lets the process become the command; returns when it has, or cannot.
    ///
    /// # Errors
    /// Why the command cannot be executed.
    pub fn go(mut self, command: &OsStr) -> Result<Child, CannotExecute> {
        let command = || command.to_string_lossy().into_owned();
        let result = self.go.write_all(b"g").and_then(|()| {
            let mut errno = [0; 4];
            match self.failed.read_exact(&mut errno) {
                Ok(()) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
                // Closed by the exec: it has become the command.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
                Err(error) => Err(error),
            }
        });
        match result {
            Ok(()) => Ok(self.child),
            Err(source) => {
                // It ends by itself; this only takes its status away.
                let _ = self.child.wait();
                Err(CannotExecute { command: command(), source })
            }
        }
    }
}

fn inherit(fd: impl AsFd) -> io::Result<()> {
    fcntl_setfd(fd, FdFlags::empty()).map_err(io::Error::from)
}

/// The launcher: waits for the word, becomes the command. Returns only if it cannot.
pub fn launcher(arguments: Vec<OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let mut number = || arguments.next()?.to_str()?.parse::<i32>().ok();
    let (Some(go), Some(failed)) = (number(), number()) else {
        eprintln!("memtrace: {LAUNCH} is memtrace's own; use memtrace run");
        return ExitCode::from(STATUS_FAILED);
    };
    let (Some(user), Some(command)) = (arguments.next(), arguments.next()) else {
        return ExitCode::from(STATUS_FAILED);
    };
    let (Some(mut go), Some(mut failed)) = (adopt(go), adopt(failed)) else {
        eprintln!("memtrace: {LAUNCH} is memtrace's own; use memtrace run");
        return ExitCode::from(STATUS_FAILED);
    };
    let mut word = [0];
    if go.read_exact(&mut word).is_err() {
        // memtrace has ended before it began.
        return ExitCode::from(STATUS_FAILED);
    }
    let error = execute(&user, &command, arguments);
    let errno = error.raw_os_error().unwrap_or(libc_einval());
    // If memtrace has ended nobody is left to be told.
    let _ = failed.write_all(&errno.to_ne_bytes());
    ExitCode::from(STATUS_CANNOT_EXECUTE)
}

const fn libc_einval() -> i32 {
    rustix::io::Errno::INVAL.raw_os_error()
}

/// Takes possession of a descriptor that `prepare` has passed on, not to be passed on further.
fn adopt(fd: i32) -> Option<File> {
    if fd <= 2 {
        return None;
    }
    // SAFETY: nothing in this process has opened anything yet; if the number is no open
    // descriptor the next line says so, before it is used.
    let file = unsafe { File::from_raw_fd(fd) };
    match fcntl_getfd(&file).and_then(|flags| fcntl_setfd(&file, flags | FdFlags::CLOEXEC)) {
        Ok(()) => Some(file),
        Err(_) => {
            std::mem::forget(file);
            None
        }
    }
}

/// Becomes the command; returns why it could not.
fn execute(user: &OsStr, command: &OsStr, arguments: impl Iterator<Item = OsString>) -> io::Error {
    let mut command = Command::new(command);
    command.args(arguments);
    if !user.is_empty() {
        let account = match Account::find(&user.to_string_lossy()) {
            Ok(account) => account,
            Err(sentence) => return io::Error::new(io::ErrorKind::InvalidInput, sentence),
        };
        if let Err(error) = account.become_it() {
            return error.into();
        }
        command.env("HOME", &account.home).env("USER", &account.name).env("LOGNAME", &account.name);
    }
    if let Err(error) = drop_capabilities() {
        return error;
    }
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("MEMTRACE_") {
            command.env_remove(name);
        }
    }
    command.exec()
}

/// Gives up what an unprivileged memtrace was lent: ambient and inheritable capabilities.
/// root's own, which come with its user id, stay: the command is root then by the user's wish.
fn drop_capabilities() -> io::Result<()> {
    let sets = capabilities(None)?;
    // Clearing the inheritable set clears the ambient one with it.
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { inheritable, ..sets }).map_err(io::Error::from)
}
