//! `memtrace top` as a person has it: in a terminal of 80 columns, with keys, with a daemon that
//! goes away, and with signals, after each of which the terminal is as it was.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::{Daemon, Options, free_address};
use memtrace_tests::fixture::{self, Fixtures, Variant};
use memtrace_tests::memtrace::{self, LIMIT};
use memtrace_tests::process::Running;
use memtrace_tests::scratch::Scratch;
use memtrace_tests::tmux::Session;
use memtrace_tests::{http, paths};
use rustix::process::{Pid, Signal};

/// A daemon that has only the stubs' client on its books.
fn daemon(fixtures: &Fixtures, sections: &str) -> Result<Daemon> {
    let configuration = Some(format!("[include]\ncomm = [\"client\"]\n{sections}"));
    Daemon::start_with(&Options { configuration, ..Options::default() }.knowing(fixtures))
}

/// A client that holds 40 blocks of 1,000,000 bytes until it is dropped.
fn holds_38_mib(fixtures: &Fixtures, name: &str) -> Result<Running> {
    let mut command = Command::new(fixtures.client());
    let mut client =
        Running::start_talking(command.arg0(name).args(["leak", "40", "1000000", "--hold"]))?;
    client.read_json()?;
    Ok(client)
}

/// The shell's line that starts `top`, leaves its pid in a file, and says how it ended.
fn top(socket: &Path, pid: &Path) -> Result<String> {
    Ok(format!(
        "clear; sh -c 'echo $$ > {}; exec {} top --socket {}'; echo ended with $?",
        pid.display(),
        paths::memtrace()?.display(),
        socket.display()
    ))
}

/// The line of a screen that has all of these.
fn line<'a>(screen: &'a str, words: &[&str]) -> Option<&'a str> {
    screen.lines().find(|line| words.iter().all(|word| line.contains(word)))
}

/// The shell is there again, takes lines and shows what is typed.
fn usable(session: &Session, status: &str) -> Result<()> {
    session.wait_for("the end of top", |screen| line(screen, &["ended with", status]).is_some())?;
    session
        .enter("clear; stty -a | tr ' ;' '\\n\\n' | grep -x -e '-*echo' -e '-*icanon' | sort")?;
    let screen =
        session.wait_for("stty", |screen| screen.lines().any(|line| line.ends_with("icanon")))?;
    let modes: Vec<&str> = screen.lines().filter(|line| !line.contains('$')).take(2).collect();
    ensure!(modes == ["echo", "icanon"], "after top the terminal has\n{screen}");
    session.enter("clear; echo $((6 * 7))")?;
    session.wait_for("a shell that works", |screen| line(screen, &["42"]).is_some())?;
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_person_sees_what_is_held_and_finds_their_way() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let daemon = daemon(&fixtures, "")?;
    let client = holds_38_mib(&fixtures, "client")?;
    let pid = client.pid().to_string();
    let session = Session::start(80, 24)?;
    session.enter(&top(&daemon.socket(), &session.file("pid"))?)?;

    let held = ["client leak", pid.as_str(), "cuda", "38.1 MiB"];
    // The stack's names may be a picture late.
    let screen = session.wait_for("what is held", |screen| {
        line(screen, &held).is_some_and(|line| line.contains("site_a"))
    })?;
    for words in [
        &["memtrace top", "watched for", "UTC"] as &[&str],
        // How much is lost is the host's matter.
        &["no findings", "lost "],
        &["VERDICT", "PROCESS", "PID", "DOMAIN", "LIVE", "GROWTH", "EXHAUSTED IN", "SURE"],
        // The largest is selected at first: its stack, and how much it keeps.
        &["──", "client leak", "site_a"],
        &["site_a", "client_sites.c:"],
        &["keeps 40 of 40 allocations", "cudaMalloc"],
        &["q quit", "? help", "sort: as found", "domain: all"],
    ] {
        ensure!(line(&screen, words).is_some(), "{words:?} is not in\n{screen}");
    }

    session.press(&["?"])?;
    session.wait_for("help", |screen| line(screen, &["Any key closes this"]).is_some())?;
    session.press(&["x", "s", "r"])?;
    session.wait_for("an order", |screen| {
        line(screen, &["sort: live reversed"]).is_some() && line(screen, &held).is_some()
    })?;
    session.press(&["d"])?;
    session.wait_for("a domain", |screen| line(screen, &["domain: cuda"]).is_some())?;
    session.type_text("/no such thing")?;
    session.wait_for("a filter", |screen| line(screen, &["no row fits"]).is_some())?;
    session.press(&["Escape"])?;
    session.type_text("/SITE_A")?;
    session.press(&["Enter"])?;
    session.wait_for("a filter by function", |screen| {
        line(screen, &["filter: SITE_A"]).is_some() && line(screen, &held).is_some()
    })?;

    session.resize(120, 40)?;
    session.wait_for("a wide terminal", |screen| {
        line(screen, &["SURE", "FUNCTION"]).is_some()
            && line(screen, &["38.1 MiB", "site_a"]).is_some()
    })?;
    session.resize(50, 12)?;
    session.wait_for("a narrow terminal", |screen| {
        line(screen, &["PROCESS", "LIVE"]).is_some_and(|line| !line.contains("SURE"))
            && line(screen, &["client leak", "38.1 MiB"]).is_some()
    })?;
    session.press(&["q"])?;
    usable(&session, "0")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn growth_is_a_finding_at_the_top() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let verdict = "[verdict]\nwindow_seconds = 1.0\nminimum_age_seconds = 1.0\n";
    let daemon = daemon(&fixtures, verdict)?;
    let mut command = Command::new(fixtures.client());
    let _client = Running::start(command.args(["slow-leak", "6000", "200000", "50"]))?;
    let session = Session::start(80, 24)?;
    session.enter(&top(&daemon.socket(), &session.file("pid"))?)?;
    memtrace_tests::until("a finding", LIMIT, || {
        let screen = session.screen()?;
        let first = screen.lines().nth(3).unwrap_or_default();
        let finding = first.starts_with("GROWING") || first.starts_with("LEAK");
        ensure!(finding && first.contains("client slow") && first.contains("/min"), "{screen}");
        ensure!(line(&screen, &["findings: 1 "]).is_some(), "{screen}");
        ensure!(screen.contains("\n· "), "no reason is given:\n{screen}");
        ensure!(line(&screen, &["site_a", "client_sites.c:"]).is_some(), "{screen}");
        Ok(())
    })?;
    session.press(&["q"])?;
    usable(&session, "0")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn names_of_other_users_are_text() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let daemon = daemon(&fixtures, "")?;
    let _client = holds_38_mib(&fixtures, "\x1b[2J\x1b]0;title\x07\nLEAK\u{202e}")?;
    let session = Session::start(120, 30)?;
    session.enter(&top(&daemon.socket(), &session.file("pid"))?)?;
    let screen = session.wait_for("the name", |screen| {
        line(screen, &["── \\x1b[2J\\x1b]0;title\\x07\\nLEAK\\u{202e} leak 40"]).is_some()
            && line(screen, &["38.1 MiB", "cuda"]).is_some()
    })?;
    ensure!(screen.starts_with("memtrace top"), "something moved the screen:\n{screen}");
    session.press(&["q"])?;
    usable(&session, "0")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn whatever_ends_it_the_terminal_is_as_it_was() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let daemon = daemon(&fixtures, "")?;
    let session = Session::start(80, 24)?;
    let pid = session.file("pid");
    let started = || -> Result<Pid> {
        session.enter(&top(&daemon.socket(), &pid)?)?;
        session.wait_for("top", |screen| screen.starts_with("memtrace top"))?;
        let number = std::fs::read_to_string(&pid)?.trim().parse()?;
        Pid::from_raw(number).context("no pid")
    };
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT] {
        rustix::process::kill_process(started()?, signal)?;
        usable(&session, "0").with_context(|| format!("after {signal:?}"))?;
    }
    for keys in [["C-c"], ["q"]] {
        started()?;
        session.press(&keys)?;
        usable(&session, "0").with_context(|| format!("after {keys:?}"))?;
    }
    // Stopped and waked by the shell, it draws again and still listens.
    started()?;
    session.press(&["C-z"])?;
    session.wait_for("a shell", |screen| line(screen, &["Stopped"]).is_some())?;
    session.enter("fg")?;
    session.wait_for("top again", |screen| screen.starts_with("memtrace top"))?;
    session.press(&["?"])?;
    session.wait_for("help", |screen| line(screen, &["Any key closes this"]).is_some())?;
    session.press(&["x", "q"])?;
    session.wait_for("a shell", |screen| !screen.starts_with("memtrace top"))?;
    session.enter("echo ended with $?")?;
    usable(&session, "0")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_daemon_that_goes_away_is_waited_for() -> Result<()> {
    let scratch = Scratch::new()?;
    let socket = scratch.join("socket");
    let session = Session::start(100, 24)?;
    session.enter(&top(&socket, &session.file("pid"))?)?;
    session.wait_for("why it does not start", |screen| {
        line(screen, &["memtrace: no memtrace daemon at", "there is no such"]).is_some()
    })?;
    usable(&session, "1")?;

    let start = || -> Result<Running> {
        let mut command = memtrace::command(["daemon", "--listen", &free_address()?])?;
        command.arg("--socket").arg(&socket).arg("--state-dir").arg(scratch.path());
        let daemon = Running::start(&mut command)?;
        memtrace_tests::until("a daemon", LIMIT, || {
            let answer = http::get_unix(&socket, "/readyz", &[])?;
            ensure!(answer.status == 200, "{answer:?}");
            Ok(())
        })?;
        Ok(daemon)
    };
    let mut first = start()?;
    session.enter(&top(&socket, &session.file("pid"))?)?;
    session.wait_for("top", |screen| line(screen, &["memtrace top", "every"]).is_some())?;
    first.signal(Signal::KILL)?;
    first.finish(LIMIT)?.expect_status(128 + 9)?;
    session.wait_for("a banner", |screen| {
        line(screen, &["no memtrace daemon at"]).is_some()
            && screen.contains("trying again")
            && line(screen, &["as it was at"]).is_some()
    })?;
    // It still listens.
    session.press(&["s"])?;
    session.wait_for("an order", |screen| line(screen, &["sort: live"]).is_some())?;
    let _second = start()?;
    session.wait_for("the next daemon", |screen| {
        line(screen, &["memtrace top", "every"]).is_some() && !screen.contains("trying again")
    })?;
    session.press(&["q"])?;
    usable(&session, "0")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn without_a_terminal_it_says_what_to_use() -> Result<()> {
    let said = memtrace::call(["top"])?.expect_status(1)?;
    assert_eq!(
        said.one_line()?,
        "memtrace: `top` needs a terminal, and standard input or output is none; \
         `memtrace status` and `memtrace dump` print text anywhere"
    );
    assert_eq!(said.stdout, "");
    Ok(())
}
