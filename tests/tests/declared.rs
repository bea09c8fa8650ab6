//! Allocators that the daemon's configuration declares: booked as declared, against what the
//! program that calls them says it holds; and refused in one line where they make no sense.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::{Amount, ProcessTerms, amount};
use memtrace_tests::fixture::{self, Fixtures, Variant};
use memtrace_tests::memtrace::{self, LIMIT};
use memtrace_tests::process::{self, Running};
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;
use serde_json::Value;

const KERNEL: &str = env!("CARGO_BIN_EXE_fixture-kernel");
const LATE: Duration = Duration::from_secs(20);

const DECLARED: &str = r#"
[[allocator]]
library = "libpool.so"
symbol = "pool_take"
domain = "heap"
pointers = "pool"
size = [1, 2]
pointer = "return"

[[allocator]]
library = "libpool.so"
symbol = "pool_make"
domain = "heap"
pointers = "pool"
size = 1
pointer = { out = 0 }

[[allocator]]
library = "libpool.so"
symbol = "wrap_cuda"
domain = "cuda"
pointers = "device"
size = 0
pointer = { out = 1 }

[[free]]
library = "libpool.so"
symbol = "pool_give"
domain = "heap"
pointers = "pool"
argument = 1
success = "always"
"#;

fn number(line: &Value, path: &str) -> Result<u64> {
    line.pointer(path).and_then(Value::as_u64).with_context(|| format!("no {path} in {line}"))
}

fn held(line: &Value, term: &str) -> Result<Amount> {
    let of = |what| number(line, &format!("/heap/{term}/{what}"));
    Ok(amount(of("count")?, of("bytes")?))
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn declared_functions_are_booked_as_they_are_declared() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let libraries = [fixtures.pool(), fixtures.cudart(), fixtures.cuda()];
    let configuration =
        format!("domains = [\"cuda\", \"heap\"]\nlibraries = {libraries:?}\n{DECLARED}");
    let options = Options { configuration: Some(configuration), ..Options::default() };
    let daemon = Daemon::start_with(&options)?;
    let mut client = Command::new(fixtures.pool_client());
    let said = process::run(client.arg("mixed"), LIMIT)?.expect_status(0)?;
    let line = said.last_json()?;
    let truth = Truth::parse(line.clone())?;
    daemon.dump_until("the pool's client", LATE, |dump| {
        dump.check_conservation()?;
        let process = dump.process(truth.pid)?;
        ensure!(process.ended, "it still runs");
        let heap = process.domain("heap");
        let (seen, freed) = (held(&line, "seen")?, held(&line, "freed")?);
        ensure!(heap.terms.seen == seen, "heap: {heap:?}, truly seen {seen:?}");
        ensure!(heap.terms.freed == freed, "heap: {heap:?}, truly freed {freed:?}");
        ensure!(heap.failures == number(&line, "/heap/failures")?, "heap: {heap:?}");
        ensure!(heap.unknown_frees == number(&line, "/heap/unknown_frees")?, "heap: {heap:?}");
        ensure!(process.at("heap", "site_take").live == amount(6, 600), "{:#?}", process.sites);
        ensure!(process.at("heap", "site_make").live == amount(1, 500), "{:#?}", process.sites);
        // A wrapper of cudaMalloc: the same memory, once, under the name of the outer function.
        let cuda = process.domain("cuda").terms;
        ensure!(cuda.seen == truth.domain("cuda").seen, "cuda: {cuda:?}");
        ensure!(cuda.freed == truth.domain("cuda").freed, "cuda: {cuda:?}");
        let mut names = process.sites("cuda").map(|site| site.api.as_str());
        ensure!(names.all(|name| name == "wrap_cuda"), "{:#?}", process.sites);
        Ok(())
    })?;
    let dump = daemon.dump()?;
    let row = dump.coverage_of(&fixtures.pool())?;
    assert_eq!(row.library.as_deref(), Some("libpool"));
    assert!(row.attached && row.missing.is_empty(), "{row:?}");
    assert_eq!(row.functions.len(), 4, "{row:?}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn b19_a_declared_library_that_the_go_linker_made_is_not_probed() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let scratch = Scratch::new()?;
    for file in [fixtures.cudart(), fixtures.cuda(), fixtures.pool_client()] {
        scratch.copy(&file)?;
    }
    let own = Fixtures::at(scratch.path());
    std::fs::copy(fixtures.directory().join("libpool-go.so"), own.pool())?;
    let configuration = Some(format!("domains = [\"cuda\", \"heap\"]\n{DECLARED}"));
    let options = Options { configuration, ..Options::default() };
    let daemon = Daemon::start_with(&options.knowing(&own))?;
    // It holds the library, so that there is time to look at it.
    let mut loader = Command::new(fixtures.loader());
    let mut loader = Running::start_talking(loader.arg(own.pool()).args(["1", "0", "--hold"]))?;
    loader.go_on()?;
    loader.read_json()?;
    let why = "made by the Go linker, whose functions must not be probed";
    daemon.dump_until("its coverage", LATE, |dump| {
        let row = dump.coverage_of(&own.pool())?;
        ensure!(row.library.as_deref() == Some("libpool"), "{row:?}");
        ensure!(!row.attached && row.reason.as_deref() == Some(why), "{row:?}");
        let row = dump.coverage_of_process(loader.pid())?;
        let reason = row.reason.as_deref().unwrap_or_default();
        ensure!(reason.contains(&format!("libpool.so.3: {why}")), "{row:?}");
        Ok(())
    })?;
    let mut client = Command::new(own.pool_client());
    let said = process::run(client.arg("mixed"), LIMIT)?.expect_status(0)?;
    let truth = Truth::parse(said.last_json()?)?;
    daemon.dump_until("the pool's client", LATE, |dump| {
        dump.check_conservation()?;
        let process = dump.process(truth.pid)?;
        truth.check_ended(process)?;
        let heap = process.domain("heap");
        ensure!(heap == ProcessTerms::default(), "heap: {heap:?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn b9_memory_that_grows_without_a_call_of_an_allocator_is_said() -> Result<()> {
    let configuration = Some(format!("domains = [\"kernel\", \"cuda\", \"heap\"]\n{DECLARED}"));
    let daemon = Daemon::start_with(&Options { configuration, ..Options::default() })?;
    let mut program =
        Running::start_talking(Command::new(KERNEL).args(["resident", "64", "--hold"]))?;
    program.read_json()?;
    // Processes are measured every 5 s.
    daemon.dump_until("its first measurement", LATE, |dump| {
        dump.process(program.pid())?.measured.anonymous_bytes.context("not measured")
    })?;
    program.go_on()?;
    program.read_json()?;
    daemon.dump_until("its coverage", LATE, |dump| {
        let row = dump.coverage_of_process(program.pid())?;
        let reason = row.reason.as_deref().unwrap_or_default();
        let said = "no events from an allocating process: its anonymous memory grew by 64";
        ensure!(!row.attached && reason.contains(said), "{row:?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_check_says_in_one_line_what_makes_no_sense() -> Result<()> {
    let scratch = Scratch::new()?;
    for (from, to, expected) in [
        ("pool_make", "pool_take", "[[allocator]] pool_take: libpool has it twice"),
        ("\"device\"", "\"gpu\"", "nothing frees pointers `gpu`"),
        ("size = 1", "size = 7", "[[allocator]] pool_make: argument 7 is not in a register"),
        ("pool_make", "_ZN4pool4makeEm", "may throw"),
        ("\"cuda\"\npointers", "\"gpu\"\npointers", "unknown domain `gpu`"),
    ] {
        let text = format!("domains = [\"cuda\", \"heap\"]\n{}", DECLARED.replace(from, to));
        let path = scratch.write("memtrace.toml", &text)?;
        let mut command = memtrace::command(["daemon", "--check", "--config"])?;
        let said = process::run(command.arg(&path), LIMIT)?.expect_status(1)?;
        let error = said.stderr.trim();
        assert!(error.contains(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let text = format!("domains = [\"cuda\", \"heap\"]\n{DECLARED}");
    let path = scratch.write("memtrace.toml", &text)?;
    let mut command = memtrace::command(["daemon", "--check", "--config"])?;
    process::run(command.arg(&path), LIMIT)?.expect_status(0)?;
    Ok(())
}
