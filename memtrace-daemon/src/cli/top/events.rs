//! The loop: keys, signals and dumps to the model, the model to the screen. A dump is asked for
//! by a task of its own, and keys are read by a thread of their own, so none waits for another.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::model::{Model, Outcome};
use super::terminal::{self, Terminal};
use super::view::{self, Look};
use super::wire::{self, Dump};

/// How often a dump is read, where that is cheap.
pub const EVERY: Duration = Duration::from_secs(1);
/// A large host's dump takes its daemon a second: reading takes at most a fifth of the time.
const REST: u32 = 4;
/// A terminal that takes no output (a connection that hangs) must not keep the process alive
/// after it was told to end.
const END_WITHIN: Duration = Duration::from_secs(3);

/// A dump, and how long it took.
type Answer = (anyhow::Result<Dump>, Duration);

/// How long to wait between dumps that take so long.
fn pause(took: Duration) -> Duration {
    EVERY.max(took.saturating_mul(REST))
}

/// Asks for a dump and says how long that took.
pub async fn ask(socket: PathBuf) -> Answer {
    let start = Instant::now();
    let dump = wire::ask(&socket).await;
    (dump, start.elapsed())
}

/// Runs until somebody wants it to end.
///
/// # Errors
///
/// One line: the terminal or the signals cannot be had.
pub async fn run(
    terminal: &mut Terminal,
    model: &mut Model,
    look: Look,
    socket: PathBuf,
) -> anyhow::Result<()> {
    let mut ends = ends()?;
    let mut keys = keys();
    let mut asked: Option<JoinHandle<Answer>> = None;
    let mut next = Instant::now() + model.every;
    loop {
        terminal.screen().draw(|frame| view::draw(frame, model, look)).map_err(gone)?;
        tokio::select! {
            () = any(&mut ends) => return Ok(()),
            event = keys.recv() => match event {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    match model.key(key) {
                        Outcome::Stay => {}
                        Outcome::Quit => return Ok(()),
                        Outcome::Suspend => terminal.suspend().map_err(gone)?,
                        Outcome::Redraw => terminal.redraw().map_err(gone)?,
                    }
                }
                // A new size is found by drawing.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(gone(error)),
                None => anyhow::bail!("nobody reads the keys any more; this is a fault of memtrace"),
            },
            () = sleep_until(next), if asked.is_none() && !model.paused => {
                asked = Some(tokio::spawn(ask(socket.clone())));
            }
            answer = answer(&mut asked), if asked.is_some() => {
                asked = None;
                let (dump, took) = answer?;
                let every = pause(took);
                next = Instant::now() + every;
                match dump {
                    // What was asked for before the pause began would move the picture.
                    Ok(_) if model.paused => {}
                    Ok(dump) => model.take(dump, every),
                    Err(error) => model.trouble = Some(crate::cli::line::error_line(&error)),
                }
            }
        }
    }
}

async fn answer(asked: &mut Option<JoinHandle<Answer>>) -> anyhow::Result<Answer> {
    match asked {
        Some(task) => task.await.map_err(|_| {
            anyhow::anyhow!("the task that asks the daemon failed; this is a fault of memtrace")
        }),
        None => std::future::pending().await,
    }
}

fn gone(error: io::Error) -> anyhow::Error {
    anyhow::anyhow!("the terminal is gone: {error}; `memtrace dump` needs none")
}

/// Keys and sizes, as they come. The thread ends with the process, or when nobody listens.
fn keys() -> mpsc::Receiver<io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(64);
    std::thread::spawn(move || {
        loop {
            let event = event::read();
            let failed = event.is_err();
            if sender.blocking_send(event).is_err() || failed {
                return;
            }
        }
    });
    receiver
}

/// The signals that end it. Ctrl-C is a key while the terminal is ours; these are sent.
fn ends() -> anyhow::Result<Vec<Signal>> {
    let kinds = [
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::quit(),
    ];
    let take = || kinds.into_iter().map(signal).collect::<io::Result<Vec<Signal>>>();
    let cannot = |error| anyhow::anyhow!("cannot take signals: {error}; this host forbids it");
    let mut others = take().map_err(cannot)?;
    tokio::spawn(async move {
        any(&mut others).await;
        sleep(END_WITHIN).await;
        terminal::give_back();
        std::process::exit(1);
    });
    take().map_err(cannot)
}

/// Waits for any of these signals.
async fn any(signals: &mut [Signal]) {
    std::future::poll_fn(|context| {
        let come = signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
        if come { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_takes_a_fifth_of_the_time_at_most() {
        assert_eq!(pause(Duration::from_millis(20)), Duration::from_secs(1));
        assert_eq!(pause(Duration::from_secs(1)), Duration::from_secs(4));
        assert_eq!(pause(Duration::MAX), Duration::MAX);
    }
}
