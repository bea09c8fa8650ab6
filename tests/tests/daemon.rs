//! One daemon a host: what a second one says, what a dead one leaves, what systemd is told.

use std::os::unix::net::UnixDatagram;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::free_address;
use memtrace_tests::http;
use memtrace_tests::memtrace::{self, LIMIT};
use memtrace_tests::process::{self, Running};
use memtrace_tests::scratch::Scratch;
use rustix::process::Signal;

/// A daemon at a socket of this directory, beside whatever else is in it.
fn at_the_socket_of(scratch: &Scratch) -> Result<Command> {
    let mut command = memtrace::command(["daemon", "--listen", &free_address()?])?;
    command.arg("--socket").arg(scratch.join("socket"));
    command.arg("--state-dir").arg(scratch.path());
    Ok(command)
}

fn wait_until_ready(scratch: &Scratch) -> Result<()> {
    memtrace_tests::until("a daemon", LIMIT, || {
        let answer = http::get_unix(&scratch.join("socket"), "/readyz", &[])?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_second_daemon_explains_and_ends() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut first = Running::start(&mut at_the_socket_of(&scratch)?)?;
    wait_until_ready(&scratch)?;
    let said = process::run(&mut at_the_socket_of(&scratch)?, LIMIT)?.expect_status(1)?;
    let line = said.one_line()?;
    assert!(line.contains("another memtrace daemon") && line.contains("memtrace status"), "{line}");
    assert_eq!(first.ended()?, None);
    // The first one's socket is still its own.
    wait_until_ready(&scratch)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_taken_port_is_one_line_and_leaves_no_socket() -> Result<()> {
    let scratch = Scratch::new()?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let mut command = memtrace::command(["daemon", "--listen"])?;
    command.arg(taken.local_addr()?.to_string()).arg("--socket").arg(scratch.join("socket"));
    let said = process::run(&mut command, LIMIT)?.expect_status(1)?;
    assert!(said.one_line()?.contains("cannot listen at 127.0.0.1"), "{said:?}");
    assert!(!scratch.join("socket").exists());
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_killed_daemons_socket_is_replaced() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut killed = Running::start(&mut at_the_socket_of(&scratch)?)?;
    wait_until_ready(&scratch)?;
    killed.signal(Signal::KILL)?;
    killed.finish(LIMIT)?.expect_status(128 + 9)?;
    assert!(scratch.join("socket").exists(), "nobody removes a killed daemon's socket");
    let mut status = memtrace::command(["status", "--socket"])?;
    let said = process::run(status.arg(scratch.join("socket")), LIMIT)?.expect_status(1)?;
    assert!(said.one_line()?.contains("nobody listens"), "{said:?}");
    let _next = Running::start(&mut at_the_socket_of(&scratch)?)?;
    wait_until_ready(&scratch)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn systemd_is_told_of_readiness_of_life_and_of_the_end() -> Result<()> {
    let scratch = Scratch::new()?;
    let path = scratch.join("notify");
    let socket = UnixDatagram::bind(&path)?;
    socket.set_read_timeout(Some(LIMIT))?;
    let mut command = at_the_socket_of(&scratch)?;
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "30000000");
    let mut daemon = Running::start(&mut command)?;
    let next = || -> Result<String> {
        let mut text = [0; 4096];
        let length = socket.recv(&mut text).context("nothing more is told")?;
        Ok(String::from_utf8_lossy(text.get(..length).unwrap_or_default()).into_owned())
    };
    // The engine lives before the probes are attached: it may be heard first.
    let mut told = next()?;
    while told.trim() == "WATCHDOG=1" {
        told = next()?;
    }
    assert!(told.lines().any(|line| line == "READY=1"), "{told:?}");
    let ready = http::get_unix(&scratch.join("socket"), "/readyz", &[])?;
    assert_eq!(ready.status, 200, "READY=1 was told while {}", ready.body);
    for _ in 0..3 {
        assert_eq!(next()?.trim(), "WATCHDOG=1");
    }
    daemon.signal(Signal::TERM)?;
    let mut told = next()?;
    while told.trim() == "WATCHDOG=1" {
        told = next()?;
    }
    assert_eq!(told.trim(), "STOPPING=1");
    daemon.finish(LIMIT)?.expect_status(0)?;
    Ok(())
}
