//! The fixtures on their own: that they do what the suites take for granted. Needs no root.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::cases::{SCENARIOS, WINDOWS};
use memtrace_tests::dump::amount;
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::ipc::Left;
use memtrace_tests::process::{self, Running, Said};
use memtrace_tests::truth::Truth;

const KERNEL: &str = env!("CARGO_BIN_EXE_fixture-kernel");
const LIMIT: Duration = Duration::from_secs(60);

fn client(variant: Variant, arguments: &[&str]) -> Result<Truth> {
    let client = fixture::build(variant)?.client();
    let said = process::run(Command::new(client).args(arguments), LIMIT)?;
    Truth::parse(said.expect_status(0)?.last_json()?)
}

fn kernel(arguments: &[&str]) -> Result<Said> {
    process::run(Command::new(KERNEL).args(arguments), LIMIT)?.expect_status(0)
}

/// The first instruction of each exported function of a library, as objdump has it.
fn first_instructions(library: &Path, prefix: &str) -> Result<Vec<String>> {
    let output =
        Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(library).output()?;
    let text = String::from_utf8(output.stdout)?;
    let mut lines = text.lines();
    let mut first = Vec::new();
    while let Some(line) = lines.next() {
        if line.contains(&format!("<{prefix}")) && line.ends_with(">:") {
            let next = lines.next().context("a function without code")?;
            first.push(next.split('\t').nth(1).unwrap_or_default().to_owned());
        }
    }
    ensure!(!first.is_empty(), "no function {prefix}… in {}", library.display());
    Ok(first)
}

#[test]
fn stub_functions_begin_with_push_as_the_real_ones_do() -> Result<()> {
    let built = fixture::build(Variant::Plain)?;
    for (library, prefix) in [(built.cudart(), "cuda"), (built.cuda(), "cuMem")] {
        for instruction in first_instructions(&library, prefix)? {
            assert!(instruction.starts_with("push"), "{prefix}: {instruction}");
        }
    }
    Ok(())
}

#[test]
fn the_endbr_variant_begins_with_endbr64() -> Result<()> {
    let built = fixture::build(Variant::Endbr)?;
    for instruction in first_instructions(&built.cudart(), "cuda")? {
        assert_eq!(instruction.trim(), "endbr64");
    }
    Ok(())
}

#[test]
fn the_tail_call_variant_jumps_to_the_driver() -> Result<()> {
    let library = fixture::build(Variant::TailCall)?.cudart();
    for (from, to) in [("cudaFree", "cuMemFree_v2@plt"), ("cudaHostAlloc", "cuMemHostAlloc@plt")] {
        let option = format!("--disassemble={from}");
        let output = Command::new("objdump").arg(option).arg(&library).output()?;
        let text = String::from_utf8(output.stdout)?;
        assert!(text.lines().any(|line| line.contains("jmp") && line.contains(to)), "{text}");
    }
    Ok(())
}

#[test]
fn stub_symbols_carry_the_versions_of_the_real_runtime() -> Result<()> {
    let library = fixture::build(Variant::Plain)?.cudart();
    let output = Command::new("nm").args(["-D", "--with-symbol-versions"]).arg(library).output()?;
    let text = String::from_utf8(output.stdout)?;
    assert!(text.contains("cudaMalloc@@libcudart.so.12"), "{text}");
    Ok(())
}

#[test]
fn the_stub_books_what_each_scenario_says() -> Result<()> {
    let three_threads = client(Variant::Plain, &["threads", "100", "1000"])?.domain("cuda");
    assert_eq!(three_threads.seen, amount(200, 100_000 + 100 * 4_096));
    assert_eq!(three_threads.live, amount(100, 100_000));

    let failing = client(Variant::Plain, &["failing", "20"])?.domain("cuda");
    assert_eq!((failing.seen, failing.failures), (amount(0, 0), 20));

    let unseen = client(Variant::Plain, &["freed-unseen"])?.domain("cuda");
    assert_eq!((unseen.freed_unseen, unseen.live), (amount(3, 3_000), amount(1, 2_000)));

    let pitched = client(Variant::Plain, &["kinds"])?;
    assert_eq!(pitched.domain("cuda").seen, amount(3, 1_001 + 512 * 7 + 1_006));
    assert_eq!(pitched.domain("pinned").seen, amount(4, 1_004 + 1_005 + 1_008 + 1_009));
    Ok(())
}

#[test]
fn every_scenario_runs_in_every_variant() -> Result<()> {
    let scenarios = [
        "failing",
        "failing-driver",
        "failing-late",
        "failing-kept",
        "failing-late-threads",
        "failing-free",
        "failing-free-driver",
        "free-unknown",
        "kinds",
        "kinds-freed",
        "empty",
        "implausible",
        "implausible-runtime",
        "extra-inner",
        "extra-after",
        "freed-unseen",
        "threads",
        "leader",
        "thread-exit",
        "exec",
        "fork",
        "vfork",
        "vfork-exec",
        "mid-life",
        "longjmp",
        "longjmp-below",
        "longjmp-after",
        "longjmp-then-below",
        "exec-inside",
        "nested",
        "unreadable",
        "unreadable-outer",
        "mixed",
        "leak",
    ];
    for variant in [Variant::Plain, Variant::Endbr, Variant::TailCall] {
        for scenario in scenarios {
            client(variant, &[scenario]).with_context(|| format!("{variant:?} {scenario}"))?;
        }
    }
    // A tail call cannot pause, and passes NULL on to the driver.
    for variant in [Variant::Plain, Variant::Endbr] {
        for scenario in ["in-flight", "in-flight-failing", "free-null"] {
            client(variant, &[scenario]).with_context(|| format!("{variant:?} {scenario}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_mixed_workload_adds_up_in_the_stubs_own_books() -> Result<()> {
    let truth = client(Variant::Plain, &["mixed", "8", "2000", "7"])?;
    for domain in memtrace_tests::truth::DOMAINS {
        let books = truth.domain(domain);
        assert!(books.seen.count > 0, "{domain} was not used");
        assert_eq!(books.seen, books.live + books.freed + books.freed_unseen, "{domain}");
    }
    Ok(())
}

#[test]
fn a_held_scenario_waits_for_a_line() -> Result<()> {
    let client = fixture::build(Variant::Plain)?.client();
    let mut running = Running::start_talking(Command::new(client).args(["leader", "--hold"]))?;
    let first = Truth::parse(running.read_json()?)?;
    assert_eq!(first.domain("cuda").live, amount(8, 8_000));
    running.go_on()?;
    let second = Truth::parse(running.read_json()?)?;
    assert_eq!(second.domain("cuda").live, amount(6, 6_000));
    assert_eq!(running.ended()?, None);
    running.go_on()?;
    assert_eq!(running.finish(LIMIT)?.status, 0);
    Ok(())
}

#[test]
fn the_loader_counts_its_early_and_late_calls() -> Result<()> {
    let built = fixture::build(Variant::Plain)?;
    let mut command = Command::new(built.loader());
    let said = process::run(command.arg(built.cudart()).args(["7", "1"]), LIMIT)?;
    let line = said.expect_status(0)?.last_json()?;
    assert_eq!(line["late"]["bytes"], 7_000);
    Ok(())
}

#[test]
fn kept_messages_outlive_their_sender_until_their_queues_are_removed() -> Result<()> {
    let line = kernel(&["keep", "100", "1000"])?.last_json()?;
    let mut left = Left::parse(&line)?;
    assert_eq!(left.sysv.len(), 7, "16 messages of 1,000 bytes fit into a queue");
    left.remove()
}

#[test]
fn both_paths_leave_queues_of_both_kinds() -> Result<()> {
    let line = kernel(&["both-paths", "20", "1000"])?.last_json()?;
    let mut left = Left::parse(&line)?;
    assert_eq!((left.sysv.len(), left.posix.len()), (2, 2));
    left.remove()
}

#[test]
fn received_messages_leave_no_queue() -> Result<()> {
    let line = kernel(&["receive", "100", "1000"])?.last_json()?;
    assert_eq!(line["received"], 100);
    let queues = std::fs::read_to_string("/proc/sysvipc/msg")?;
    let there: Vec<_> = queues.lines().filter_map(|row| row.split_whitespace().nth(1)).collect();
    for made in line["made"].as_array().context("no ids")? {
        assert!(!there.contains(&made.to_string().as_str()), "queue {made} is still there");
    }
    Ok(())
}

#[test]
fn mixed_messages_are_counted() -> Result<()> {
    assert_eq!(kernel(&["mixed", "8", "20"])?.last_json()?["sent"], 800);
    Ok(())
}

#[test]
fn descriptors_are_opened_by_the_thousand() -> Result<()> {
    assert_eq!(kernel(&["eventfds", "5000"])?.last_json()?["eventfds"], 5_000);
    assert_eq!(kernel(&["pipes", "100"])?.last_json()?["pipes"], 100);
    assert_eq!(kernel(&["epoll-loop", "100"])?.last_json()?["loops"], 100);
    assert_eq!(kernel(&["pipe-loop", "100"])?.last_json()?["loops"], 100);
    Ok(())
}

#[test]
fn a_program_that_does_not_end_is_killed_and_told() {
    let error = process::run(Command::new("sleep").arg("60"), Duration::from_millis(100));
    let text = format!("{:#}", error.unwrap_err());
    assert!(text.contains("has not ended within"), "{text}");
}

#[test]
fn every_scenario_of_the_verdicts_says_what_it_has_and_ends_with_its_listener() -> Result<()> {
    let cases = fixture::build(Variant::Plain)?.cases();
    for scenario in SCENARIOS {
        let name = scenario.name;
        // Five thousand times as fast as it is traced.
        let arguments = [name, "0.2", &WINDOWS.to_string()];
        let mut program = Running::start_talking(Command::new(&cases).args(arguments))?;
        let start = program.read_json()?;
        let _left = Left::parse(&start).unwrap_or_default();
        let mut line = start;
        while line.get("at").is_none_or(|at| at != "end") {
            line = program.read_json().with_context(|| format!("{name} has no end"))?;
        }
        let of_kernel = line.get("sent").or(line.get("eventfds")).and_then(|sent| sent.as_u64());
        let books = Truth::parse(line)?.books;
        let seen: u64 = books.domains.values().map(|domain| domain.seen.count).sum();
        // What the supervisor's children had is on their books.
        ensure!(seen + of_kernel.unwrap_or(0) > 2 || name == "a37", "{name} has had {seen}");
        let status = program.finish(LIMIT)?.status;
        let expected = match name {
            "a6" => 0,
            "a38" => 128 + 9,
            _ => 75,
        };
        ensure!(status == expected, "{name} ended with {status}");
    }
    Ok(())
}
