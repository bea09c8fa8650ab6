//! Runs what may never come back (a file on a dead network mount, /proc of a process that is
//! stuck in a driver) on an expendable thread.
//!
//! A thread that has missed its deadline is left alone: it cannot be stopped, it holds nothing
//! that others wait for, and its late answer is dropped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// A file that cannot be looked at within this time lies on something dead.
pub const FILE_DEADLINE: Duration = Duration::from_secs(2);
/// Threads that may be stuck at a time; beyond that nothing more is started.
const MAX_STUCK: usize = 16;

static STUCK: AtomicUsize = AtomicUsize::new(0);

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Late {
    /// No answer in time.
    #[error("did not answer within {} s", .0.as_secs_f32())]
    Deadline(Duration),
    /// Too many threads are stuck already, or none can be made.
    #[error("not tried: {MAX_STUCK} earlier reads are still stuck")]
    TooManyStuck,
}

/// Runs `work` on a thread of its own and waits for its answer until the deadline.
///
/// # Errors
/// That there was no answer in time, or that too many are stuck already.
pub fn run<T: Send + 'static>(
    deadline: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Late> {
    run_counted(&STUCK, deadline, work)
}

fn run_counted<T: Send + 'static>(
    stuck: &'static AtomicUsize,
    deadline: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Late> {
    if stuck.load(Ordering::Relaxed) >= MAX_STUCK {
        return Err(Late::TooManyStuck);
    }
    let (send, receive) = mpsc::channel();
    let running = Running::new(stuck);
    thread::Builder::new()
        .name("mt-expendable".to_owned())
        .spawn(move || {
            let result = work();
            drop(running);
            // The receiver may have gone: the answer is late.
            let _ = send.send(result);
        })
        .map_err(|_| Late::TooManyStuck)?;
    receive.recv_timeout(deadline).map_err(|_| Late::Deadline(deadline))
}

/// Counts a thread until its work has come back, or has panicked.
struct Running(&'static AtomicUsize);

impl Running {
    fn new(stuck: &'static AtomicUsize) -> Self {
        stuck.fetch_add(1, Ordering::Relaxed);
        Self(stuck)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_back() {
        assert_eq!(run(Duration::from_secs(60), || 6 * 7), Ok(42));
    }

    #[test]
    fn the_stuck_are_left_behind_and_bounded() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (release, wait) = mpsc::channel::<()>();
        let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
        let soon = Duration::from_millis(1);
        for _ in 0..MAX_STUCK {
            let wait = std::sync::Arc::clone(&wait);
            let result = run_counted(&COUNT, soon, move || {
                let _ = wait.lock().map(|wait| wait.recv());
            });
            assert_eq!(result, Err(Late::Deadline(soon)));
        }
        assert_eq!(run_counted(&COUNT, soon, || ()), Err(Late::TooManyStuck));
        drop(release);
        while COUNT.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        assert_eq!(run_counted(&COUNT, Duration::from_secs(60), || 1), Ok(1));
    }
}
