//! Descriptors: kernel memory that the process' end gives back, and loops that give it back
//! at once.

use std::os::fd::OwnedFd;

use anyhow::Context;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::Arguments;

/// Lets this process have so many descriptors and a few to spare.
fn allow(descriptors: u64) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = descriptors + 64;
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum })
        .with_context(|| format!("raising the limit of open files to {wanted}"))
}

/// `eventfds N`: opens N and ends without closing one.
pub fn eventfds(arguments: &Arguments) -> anyhow::Result<()> {
    let number = arguments.number(0)?;
    allow(number)?;
    let held: Vec<OwnedFd> = (0..number)
        .map(|_| eventfd(0, EventfdFlags::CLOEXEC))
        .collect::<Result<_, _>>()
        .context("eventfd")?;
    arguments.checkpoint(json!({ "eventfds": held.len() }))?;
    leave_open(held);
    Ok(())
}

/// `pipes N`: opens N pipes with a byte in each and ends without closing one.
pub fn pipes(arguments: &Arguments) -> anyhow::Result<()> {
    let number = arguments.number(0)?;
    allow(number * 2)?;
    let mut held = Vec::new();
    for _ in 0..number {
        let (read, write) = rustix::pipe::pipe().context("pipe")?;
        rustix::io::write(&write, &[1]).context("writing into a pipe")?;
        held.extend([read, write]);
    }
    arguments.checkpoint(json!({ "pipes": number }))?;
    leave_open(held);
    Ok(())
}

/// `waits N`: has one epoll instance wait for N eventfds, then for none. Each wait is one object
/// of the named cache `eventpoll_pwq`, taken at its beginning and given back at its end.
pub fn waits(arguments: &Arguments) -> anyhow::Result<()> {
    let number = arguments.number(0)?;
    allow(number)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll_create1")?;
    let events: Vec<OwnedFd> = (0..number)
        .map(|_| eventfd(0, EventfdFlags::CLOEXEC))
        .collect::<Result<_, _>>()
        .context("eventfd")?;
    for event in &events {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, event, data, epoll::EventFlags::IN).context("adding to epoll")?;
    }
    arguments.checkpoint(json!({ "waits": number }))?;
    for event in &events {
        epoll::delete(&epoll, event).context("deleting from epoll")?;
    }
    arguments.checkpoint(json!({ "waits": 0 }))
}

/// The kernel closes what the end of the process finds open; that is what is to be seen.
fn leave_open(held: Vec<OwnedFd>) {
    std::mem::forget(held);
}

/// `epoll-loop N`: opens and closes an epoll instance N times; freed by kfree_rcu.
pub fn epoll_loop(arguments: &Arguments) -> anyhow::Result<()> {
    for _ in 0..arguments.number(0)? {
        drop(epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll_create1")?);
    }
    arguments.checkpoint(json!({ "loops": arguments.number(0)? }))
}

/// `pipe-loop N`: opens and closes a pipe N times.
pub fn pipe_loop(arguments: &Arguments) -> anyhow::Result<()> {
    for _ in 0..arguments.number(0)? {
        drop(rustix::pipe::pipe().context("pipe")?);
    }
    arguments.checkpoint(json!({ "loops": arguments.number(0)? }))
}
