//! Whom the daemon books and whom not, as its configuration says: by name, user, cgroup, unit,
//! by domain, and by library. Who is left out comes first, so that when the books of the other
//! are complete, nothing of the first can still be on its way.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use memtrace_tests::cgroup::Cgroup;
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::{Amount, Dump, amount};
use memtrace_tests::fixture::{self, Fixtures, Variant};
use memtrace_tests::ipc::Left;
use memtrace_tests::memtrace::LIMIT;
use memtrace_tests::process::{self, Running};
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::{DOMAINS, Truth};

const KERNEL: &str = env!("CARGO_BIN_EXE_fixture-kernel");
const LATE: Duration = Duration::from_secs(20);

/// A daemon that probes the stubs from the start and is configured with these sections.
fn daemon(fixtures: &Fixtures, sections: &str) -> Result<Daemon> {
    let libraries = [fixtures.cudart(), fixtures.cuda()];
    let configuration = Some(format!("libraries = {libraries:?}\n{sections}"));
    Daemon::start_with(&Options { configuration, ..Options::default() })
}

/// Runs a program of the stubs to its end.
fn call(command: &mut Command) -> Result<Truth> {
    Truth::parse(process::run(command, LIMIT)?.expect_status(0)?.last_json()?)
}

fn client(fixtures: &Fixtures) -> Result<Truth> {
    call(Command::new(fixtures.client()).arg("kinds"))
}

/// Sends 100 messages of 1,000 bytes and keeps them; who it was, and how to remove them.
fn messages() -> Result<(u32, Left)> {
    let said = process::run(Command::new(KERNEL).args(["keep", "100", "1000"]), LIMIT)?;
    let line = said.expect_status(0)?.last_json()?;
    let pid = line.get("pid").and_then(serde_json::Value::as_u64);
    Ok((u32::try_from(pid.unwrap_or_default())?, Left::parse(&line)?))
}

/// What a process has had, in all domains; nothing where it is not on the books.
fn seen(dump: &Dump, pid: u32) -> Amount {
    let process = dump.process(pid).ok();
    process.into_iter().flat_map(|one| one.domains.values()).map(|one| one.terms.seen).sum()
}

fn left_out(dump: &Dump, pid: u32) -> Result<()> {
    let seen = seen(dump, pid);
    ensure!(seen == Amount::default(), "{pid} is on the books with {seen:?}");
    Ok(())
}

fn messages_are_booked(dump: &Dump, pid: u32) -> Result<()> {
    let live = dump.process(pid)?.called_in("kernel", "load_msg").live;
    ensure!(live == amount(100, 204_800), "{live:?}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_included_name_is_booked_and_nobody_else() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let daemon = daemon(&fixtures, "[include]\ncomm = [\"client\"]\n")?;
    let (sender, _left) = messages()?;
    let truth = client(&fixtures)?;
    daemon.dump_until("the client alone", LATE, |dump| {
        dump.check_conservation()?;
        truth.check_ended(dump.process(truth.pid)?)?;
        left_out(dump, sender)?;
        let others = dump.processes.iter().filter(|one| one.pid != truth.pid);
        let others: Vec<_> =
            others.filter(|one| one.domains.values().any(|d| d.terms.seen.count > 0)).collect();
        ensure!(others.is_empty(), "also on the books: {others:?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_excluded_name_is_not_booked_and_all_others_are() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    // Between fork and exec a process has the name of the thread that starts it: this one.
    let own = std::fs::read_to_string("/proc/thread-self/comm")?;
    let daemon = daemon(&fixtures, &format!("[exclude]\ncomm = [\"client\", {:?}]\n", own.trim()))?;
    let truth = client(&fixtures)?;
    let (sender, _left) = messages()?;
    daemon.dump_until("the sender", LATE, |dump| {
        dump.check_conservation()?;
        messages_are_booked(dump, sender)?;
        left_out(dump, truth.pid)
    })
}

/// As `User=` does it: the program is executed as another user.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn users_are_included_and_excluded_as_they_are_when_they_execute() -> Result<()> {
    let built = fixture::build(Variant::Plain)?;
    let scratch = Scratch::new()?;
    scratch.copy(&built.cudart())?;
    scratch.copy(&built.cuda())?;
    let client = scratch.copy(&built.client())?;
    let fixtures = Fixtures::at(scratch.path());
    let other = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=4711", "--regid=4711", "--clear-groups"]).arg(&client).arg("kinds");
        command
    };
    for (sections, booked) in
        [("[include]\nuid = [4711]\n", true), ("[exclude]\nuid = [4711]\n", false)]
    {
        let daemon = daemon(&fixtures, sections)?;
        let (left_out_one, booked_one) = if booked {
            let own = call(Command::new(&client).arg("kinds"))?;
            (own, call(&mut other())?)
        } else {
            let others = call(&mut other())?;
            (others, call(Command::new(&client).arg("kinds"))?)
        };
        daemon.dump_until(sections, LATE, |dump| {
            dump.check_conservation()?;
            booked_one.check_ended(dump.process(booked_one.pid)?)?;
            for domain in DOMAINS {
                let process = dump.process(left_out_one.pid).ok();
                let terms = process.map(|one| one.domain(domain)).unwrap_or_default();
                ensure!(terms.terms.seen == Amount::default(), "{domain}: {terms:?}");
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// A shell in a group that executes what it is told, line by line.
struct Shell(Running);

impl Shell {
    fn inside(group: &Cgroup, fixtures: &Fixtures) -> Result<Self> {
        // Executed anew when it is inside, as a service is.
        let script = "read go; exec sh -c 'while read go; do \"$0\" kinds; done' \"$0\"";
        let client = fixtures.client().display().to_string();
        let running = Running::start_talking(Command::new("sh").args(["-c", script, &client]))?;
        group.take(running.pid())?;
        let mut shell = Self(running);
        shell.0.go_on()?;
        Ok(shell)
    }

    /// Runs the client in the group.
    fn client(&mut self) -> Result<Truth> {
        self.0.go_on()?;
        Truth::parse(self.0.read_json()?)
    }

    fn finish(mut self) -> Result<()> {
        self.0.finish(LIMIT)?.expect_status(0)?;
        Ok(())
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_included_cgroup_is_booked_and_its_new_children_from_their_first_call() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let group = Cgroup::new(&format!("memtrace-test-{}", std::process::id()))?;
    let daemon = daemon(&fixtures, &format!("[include]\ncgroup = [{:?}]\n", group.path()))?;
    let (sender, _left) = messages()?;
    let outside = client(&fixtures)?;
    let mut shell = Shell::inside(&group, &fixtures)?;
    // Until the daemon has heard where the shell is.
    daemon.dump_until("the group", LATE, |dump| {
        let first = shell.client()?;
        ensure!(seen(dump, first.pid) == Amount::default(), "it cannot be in a dump from before");
        std::thread::sleep(Duration::from_millis(1_500));
        ensure!(seen(&daemon.dump()?, first.pid).count > 0, "not booked yet");
        Ok(())
    })?;
    let truth = shell.client()?;
    daemon.dump_until("its child", LATE, |dump| {
        dump.check_conservation()?;
        truth.check_ended(dump.process(truth.pid)?)?;
        left_out(dump, sender)?;
        left_out(dump, outside.pid)
    })?;
    shell.finish()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_excluded_units_new_children_are_not_booked() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let unit = format!("memtrace-test-{}.service", std::process::id());
    let group = Cgroup::new(&unit)?;
    let daemon = daemon(&fixtures, &format!("[exclude]\nunit = [{unit:?}]\n"))?;
    let mut shell = Shell::inside(&group, &fixtures)?;
    daemon.dump_until("the unit", LATE, |_| {
        let first = shell.client()?;
        std::thread::sleep(Duration::from_millis(1_500));
        left_out(&daemon.dump()?, first.pid)
    })?;
    let inside = shell.client()?;
    let outside = client(&fixtures)?;
    daemon.dump_until("the one outside", LATE, |dump| {
        dump.check_conservation()?;
        outside.check_ended(dump.process(outside.pid)?)?;
        left_out(dump, inside.pid)
    })?;
    shell.finish()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_domain_that_is_off_is_neither_probed_nor_in_the_dump() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let daemon = daemon(&fixtures, "domains = [\"cuda\"]\n")?;
    let (sender, _left) = messages()?;
    let truth = client(&fixtures)?;
    daemon.dump_until("device memory alone", LATE, |dump| {
        dump.check_conservation()?;
        let domains: Vec<_> = dump.domains.keys().collect();
        ensure!(domains == ["cuda"], "{domains:?}");
        let process = dump.process(truth.pid)?;
        let (books, truly) = (process.domain("cuda").terms, truth.domain("cuda"));
        ensure!((books.seen, books.closed) == (truly.seen, truly.live), "{books:?}, {truly:?}");
        left_out(dump, sender)?;
        let row = dump.coverage_of(&fixtures.cudart())?;
        let probed = |name: &str| row.functions.iter().any(|one| one == name);
        ensure!(probed("cudaMalloc") && !probed("cudaMallocHost"), "{row:?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn with_the_kernel_alone_no_library_is_probed() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let configuration = Some("domains = [\"kernel\"]\n".to_owned());
    let daemon = Daemon::start_with(&Options { configuration, ..Options::default() })?;
    let truth = client(&fixtures)?;
    let (sender, _left) = messages()?;
    daemon.dump_until("messages", LATE, |dump| {
        dump.check_conservation()?;
        messages_are_booked(dump, sender)?;
        ensure!(dump.coverage.iter().all(|row| !row.attached), "{:?}", dump.coverage);
        let others = dump.process(truth.pid)?.domains.keys().filter(|name| *name != "kernel");
        ensure!(others.count() == 0, "a domain that is off");
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn excluded_libraries_are_not_probed_and_coverage_says_so() -> Result<()> {
    let built = fixture::build(Variant::Plain)?;
    let build_id = build_id(&built)?;
    for word in ["by its path", "by its build id", "by its version"] {
        let scratch = Scratch::new()?;
        let runtime = scratch.copy(&built.cudart())?;
        scratch.copy(&built.cuda())?;
        let client = scratch.copy(&built.client())?;
        // The runtime alone by its build id and its version, both by the directory.
        let exclude = match word {
            "by its path" => format!("library_path = [{:?}]", scratch.path()),
            "by its build id" => format!("library_build_id = [{build_id:?}]"),
            _ => "library_version = [\"libcudart.so.12\"]".to_owned(),
        };
        let configuration = Some(format!("[exclude]\n{exclude}\n"));
        let daemon = Daemon::start_with(&Options { configuration, ..Options::default() })?;
        let mut command = Command::new(&client);
        let mut held = Running::start_talking(command.args(["kinds", "--hold"]))?;
        held.read_json()?;
        daemon.dump_until("the excluded library", LATE, |dump| {
            let row = dump.coverage_of(&runtime)?;
            ensure!(!row.attached && row.functions.is_empty(), "{row:?}");
            ensure!(row.reason.as_deref().is_some_and(|why| why.contains(word)), "{row:?}");
            Ok(())
        })?;
        let truth = call(Command::new(&client).arg("kinds"))?;
        daemon.dump_until("nothing by it", LATE, |dump| {
            dump.check_conservation()?;
            let process = dump.process(truth.pid)?;
            ensure!(process.ended, "still running");
            let rows = process.sites.iter().filter(|site| site.api.starts_with("cuda"));
            ensure!(rows.count() == 0, "an excluded library is on the books");
            Ok(())
        })?;
    }
    Ok(())
}

/// The build id of the stub runtime, as `file` and readelf print it.
fn build_id(fixtures: &Fixtures) -> Result<String> {
    let said = process::run(Command::new("readelf").arg("-n").arg(fixtures.cudart()), LIMIT)?;
    let id = said.stdout.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    ensure!(id.is_some(), "the stub has no build id: {said:?}");
    Ok(id.unwrap_or_default().to_owned())
}
