//! SysV messages: `msgsnd` of n bytes is one kmalloc of n + 48 in `load_msg`, `msgrcv` its kfree.
//! They outlive their sender until their queue is removed.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::json;

use crate::Arguments;

/// What a queue may hold, fs.msgmnb's default.
const QUEUE_BYTES: usize = 16_384;
/// No message of ours is longer than this.
const LONGEST: usize = 4_000;

/// A message as `msgsnd` takes it.
#[repr(C)]
struct Message {
    kind: libc::c_long,
    text: [u8; LONGEST],
}

impl Message {
    const fn new() -> Self {
        Self { kind: 1, text: [0; LONGEST] }
    }
}

/// Queues of one's own, removed on drop unless they are left on purpose.
#[derive(Default)]
pub struct Queues {
    ids: Vec<i32>,
}

impl Queues {
    fn add(&mut self) -> anyhow::Result<i32> {
        // SAFETY: msgget takes numbers only.
        let id = unsafe { libc::msgget(libc::IPC_PRIVATE, libc::IPC_CREAT | 0o600) };
        if id < 0 {
            return Err(std::io::Error::last_os_error()).context("msgget");
        }
        self.ids.push(id);
        Ok(id)
    }

    /// Sends messages of one size, over as many new queues as they need.
    pub fn send(&mut self, messages: u64, size: usize) -> anyhow::Result<()> {
        ensure!(size > 0 && size <= LONGEST, "a message has 1 to {LONGEST} bytes");
        let mut room = 0;
        let mut id = -1;
        for _ in 0..messages {
            if room < size {
                id = self.add()?;
                room = QUEUE_BYTES;
            }
            send(id, size)?;
            room -= size;
        }
        Ok(())
    }

    /// Receives all messages.
    fn receive_all(&self) -> anyhow::Result<u64> {
        let mut received = 0;
        for id in &self.ids {
            while take(*id)? {
                received += 1;
            }
        }
        Ok(received)
    }

    /// Leaves the queues behind; whoever reads the ids removes them.
    pub fn leave(mut self) -> Vec<i32> {
        std::mem::take(&mut self.ids)
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        for id in &self.ids {
            // SAFETY: IPC_RMID reads no buffer; the id is one of ours.
            unsafe { libc::msgctl(*id, libc::IPC_RMID, std::ptr::null_mut()) };
        }
    }
}

fn send(id: i32, size: usize) -> anyhow::Result<()> {
    let message = Message::new();
    // SAFETY: the message is longer than its kind and `size` bytes of text.
    let status = unsafe { libc::msgsnd(id, (&raw const message).cast(), size, libc::IPC_NOWAIT) };
    if status != 0 {
        return Err(std::io::Error::last_os_error()).context("msgsnd");
    }
    Ok(())
}

/// Receives one message; false when there is none.
fn take(id: i32) -> anyhow::Result<bool> {
    let mut message = Message::new();
    // SAFETY: the message has room for a kind and LONGEST bytes of text.
    let length =
        unsafe { libc::msgrcv(id, (&raw mut message).cast(), LONGEST, 0, libc::IPC_NOWAIT) };
    if length >= 0 {
        return Ok(true);
    }
    let error = std::io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENOMSG) {
        return Ok(false);
    }
    Err(error).context("msgrcv")
}

/// `keep N SIZE`: sends and ends; the queues stay.
pub fn keep(arguments: &Arguments) -> anyhow::Result<()> {
    let mut queues = Queues::default();
    queues.send(arguments.number(0)?, arguments.size(1)?)?;
    arguments.checkpoint(json!({ "sent": arguments.number(0)?, "queues": queues.leave() }))
}

/// `receive N SIZE`: sends, says so, receives all, says so, and removes its queues.
pub fn receive(arguments: &Arguments) -> anyhow::Result<()> {
    let sent = arguments.number(0)?;
    let mut queues = Queues::default();
    queues.send(sent, arguments.size(1)?)?;
    arguments.checkpoint(json!({ "sent": sent, "received": 0 }))?;
    let received = queues.receive_all()?;
    if received != sent {
        bail!("sent {sent} and received {received}");
    }
    let made = queues.ids.clone();
    drop(queues);
    arguments.checkpoint(json!({ "sent": sent, "received": received, "made": made }))
}

/// `flood MILLISECONDS KEPT`: sends and receives for that long, then keeps some and ends.
pub fn flood(arguments: &Arguments) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_millis(arguments.number(0)?);
    let mut queues = Queues::default();
    let id = queues.add()?;
    let mut pairs = 0u64;
    while Instant::now() < end {
        for _ in 0..100 {
            send(id, 1_000)?;
            ensure!(take(id)?, "a message was lost");
        }
        pairs += 100;
    }
    let kept = arguments.number(1)?;
    queues.send(kept, 1_000)?;
    arguments.checkpoint(json!({
        "sent": pairs + kept, "received": pairs, "queues": queues.leave(),
    }))
}

/// `mixed THREADS ROUNDS`: each thread sends 5 messages of growing sizes and receives 4 of them,
/// ROUNDS times, over queues of its own; the queues are removed, one message each at a time.
pub fn mixed(arguments: &Arguments) -> anyhow::Result<()> {
    let rounds = arguments.number(1)?;
    let threads: Vec<_> = (0..arguments.number(0)?)
        .map(|thread| std::thread::spawn(move || mixed_thread(thread, rounds)))
        .collect();
    let mut sent = 0;
    for thread in threads {
        sent += thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    arguments.checkpoint(json!({ "sent": sent, "received": sent }))
}

fn mixed_thread(thread: u64, rounds: u64) -> anyhow::Result<u64> {
    let mut sent = 0;
    for round in 0..rounds {
        let mut queues = Queues::default();
        let id = queues.add()?;
        for step in 0..5 {
            let size = 1 + (thread * 389 + round * 97 + step * 613) % 3_000;
            send(id, usize::try_from(size)?)?;
            sent += 1;
        }
        for _ in 0..4 {
            ensure!(take(id)?, "a message was lost");
        }
        // The last one goes with its queue.
    }
    Ok(sent)
}
