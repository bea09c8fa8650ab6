//! The unix socket: one daemon at a path, and no leftovers.
//!
//! A lock beside the socket says whether a daemon is alive, so a socket file that a dead one
//! left is replaced and a live one's is not. The socket appears under its name with its mode
//! already set.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tokio::net::UnixListener;

/// Owner and group: whoever may read everybody's command lines and stacks.
const MODE: u32 = 0o660;

/// Why the socket cannot be used. One line.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// There is a daemon.
    #[error(
        "another memtrace daemon is listening at {0}; one a host is enough, \
         ask it with `memtrace status`"
    )]
    Taken(PathBuf),
    /// Something else has that name.
    #[error("{0} exists and is no socket; name another path with --socket")]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot make the socket {path}: {source}; name another path with --socket")]
    Make {
        /// Which path.
        path: PathBuf,
        /// What came back.
        source: io::Error,
    },
}

/// A bound socket. Its file goes when this is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    file: SocketFile,
}

/// The socket's file and the lock that guards its name.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: u64,
    /// Held, never read.
    _lock: File,
}

impl Socket {
    /// Binds a socket, mode 0660. Its directory is made if it is missing.
    ///
    /// # Errors
    ///
    /// [`SocketError`].
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Make { path: path.to_owned(), source };
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(failed)?;
        }
        match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(SocketError::NotASocket(path.to_owned()));
            }
            // The lock decides; this is for a daemon whose lock file was removed.
            Ok(_) if UnixStream::connect(path).is_ok() => {
                return Err(SocketError::Taken(path.to_owned()));
            }
            Ok(_) | Err(_) => {}
        }
        let lock = File::create(beside(path, "lock")).map_err(failed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
            if error == rustix::io::Errno::WOULDBLOCK {
                SocketError::Taken(path.to_owned())
            } else {
                failed(error.into())
            }
        })?;
        let fresh = beside(path, "new");
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&fresh).map_err(failed)?;
        let inode = fs::set_permissions(&fresh, fs::Permissions::from_mode(MODE))
            .and_then(|()| fs::rename(&fresh, path))
            .and_then(|()| fs::symlink_metadata(path))
            .map_err(failed)?
            .ino();
        Ok(Self { listener, file: SocketFile { path: path.to_owned(), inode, _lock: lock } })
    }

    pub(super) fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.listener, self.file)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Whatever has the name now, if it is not ours, is not ours to remove.
        if fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode) {
            drop(fs::remove_file(&self.path));
        }
    }
}

/// `memtrace.sock` → `memtrace.sock.lock`.
fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("memtrace-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        path
    }

    #[tokio::test]
    async fn a_dead_daemons_socket_is_replaced_and_a_live_ones_is_not() {
        let directory = directory("socket");
        let path = directory.join("memtrace.sock");
        fs::create_dir_all(&directory).unwrap();
        // std leaves the file behind, as a killed daemon does.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());

        let socket = Socket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, MODE);
        UnixStream::connect(&path).unwrap();
        let second = Socket::bind(&path).unwrap_err().to_string();
        let expected = format!("another memtrace daemon is listening at {}", path.display());
        assert!(second.starts_with(&expected), "{second}");
        // Even if somebody removed the socket: the lock holds.
        fs::remove_file(&path).unwrap();
        assert!(matches!(Socket::bind(&path), Err(SocketError::Taken(_))));

        drop(socket);
        drop(Socket::bind(&path).unwrap());
        assert!(!path.exists(), "the file goes with the socket");
        fs::remove_dir_all(directory).unwrap();
    }

    #[tokio::test]
    async fn other_peoples_files_are_left_alone() {
        let directory = directory("no-socket");
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("precious");
        fs::write(&path, "data").unwrap();
        assert!(matches!(Socket::bind(&path), Err(SocketError::NotASocket(_))));
        assert_eq!(fs::read(&path).unwrap(), b"data");
        let deep = directory.join("x".repeat(120));
        let error = Socket::bind(&deep).unwrap_err().to_string();
        assert!(error.starts_with("cannot make the socket"), "{error}");
        fs::remove_dir_all(directory).unwrap();
    }
}
