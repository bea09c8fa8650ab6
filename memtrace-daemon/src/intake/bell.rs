//! Waiting until the kernel side rings: it does so when the ring buffer fills faster than the
//! timer empties it, and never otherwise.

use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The ring buffer's descriptor in tokio's poll set.
#[derive(Debug)]
pub struct Bell(AsyncFd<OwnedFd>);

impl Bell {
    /// For this ring buffer. Within a tokio runtime.
    ///
    /// # Errors
    /// The system's, where the descriptor cannot be duplicated or polled.
    pub fn new(ring: impl AsFd) -> io::Result<Self> {
        let fd = ring.as_fd().try_clone_to_owned()?;
        // SAFETY: the descriptor is owned by what is registered, and stays open and the same
        // for as long as that lives.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        registered.map(Self).map_err(io::Error::from)
    }

    /// Waits for the next ring. Safe to drop and to call again.
    pub async fn rung(&self) {
        match self.0.readable().await {
            Ok(mut ready) => ready.clear_ready(),
            // The runtime is ending.
            Err(_) => pending().await,
        }
    }
}
