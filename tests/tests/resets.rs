//! Memory that goes with its device's reset or with its context: `closed`, by device and context,
//! against the true books of the stub libraries.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::{Dump, amount};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{self, Run, Traced};
use memtrace_tests::process::Running;
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;

const DOMAINS: &str = "cuda,managed,pinned,cuda_ipc,handles";
/// Counters arrive once a second.
const LATE: Duration = Duration::from_secs(20);

fn exact(client: &Path, scenario: &str) -> Result<Traced> {
    let traced = Run::new(DOMAINS).trace(client, [scenario])?;
    traced.dump.check_conservation()?;
    let mut lost = traced.dump.losses();
    lost.remove("stack_budget");
    assert!(lost.is_empty(), "{scenario} lost: {lost:?}");
    traced.truth()?.check_ended(traced.process()?).with_context(|| scenario.to_owned())?;
    Ok(traced)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_reset_closes_what_is_on_its_device_and_nothing_else() -> Result<()> {
    for variant in [Variant::Plain, Variant::Endbr, Variant::TailCall] {
        let traced = exact(&fixture::build(variant)?.client(), "reset")?;
        let cuda = traced.process()?.domain("cuda");
        assert_eq!(cuda.terms.freed, amount(2, 87), "{variant:?}");
        assert_eq!((cuda.failed_frees, cuda.unknown_frees), (2, 0), "{variant:?}");
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_device_is_the_one_of_the_thread() -> Result<()> {
    exact(&fixture::build(Variant::Plain)?.client(), "reset-thread")?;
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_destroyed_context_takes_what_was_made_in_it() -> Result<()> {
    let traced = exact(&fixture::build(Variant::Plain)?.client(), "contexts")?;
    let handles = traced.process()?.domain("handles");
    assert_eq!((handles.terms.seen, handles.terms.freed), (amount(4, 0), amount(2, 0)));
    assert_eq!(handles.failed_frees, 2);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_primary_context_goes_with_its_last_reference_unless_the_runtime_has_one() -> Result<()> {
    let traced = exact(&fixture::build(Variant::Plain)?.client(), "primary")?;
    let handles = traced.process()?.domain("handles");
    assert_eq!((handles.terms.seen, handles.terms.freed), (amount(2, 0), amount(2, 0)));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_device_of_hip_is_reset_like_one_of_cuda() -> Result<()> {
    exact(&fixture::build(Variant::Plain)?.hip_client(), "reset")?;
    Ok(())
}

/// Contexts are followed for what is bound to them, whether or not anybody wants their books.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn contexts_that_are_not_booked_still_take_their_memory_along() -> Result<()> {
    let client = fixture::build(Variant::Plain)?.client();
    for scenario in ["contexts", "primary"] {
        let traced = Run::new("cuda,managed,pinned").trace(&client, [scenario])?;
        traced.dump.check_conservation()?;
        let (process, truth) = (traced.process()?, traced.truth()?);
        for domain in ["cuda", "managed", "pinned"] {
            let (terms, truth) = (process.domain(domain).terms, truth.domain(domain));
            assert_eq!(terms.closed, truth.closed + truth.live, "{scenario}: {domain}");
            assert_eq!(terms.freed, truth.freed, "{scenario}: {domain}");
        }
        assert!(!process.domains.contains_key("handles"), "{scenario}: {:?}", process.domains);
    }
    Ok(())
}

/// Scenarios that stop at each checkpoint: the books of the moment are the stub's.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_books_of_a_running_process_follow_its_resets() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let options = Options {
        configuration: Some(format!("domains = {:?}", DOMAINS.split(',').collect::<Vec<_>>())),
        ..Options::default()
    };
    let daemon = Daemon::start_with(&options.knowing(&fixtures))?;
    for (scenario, checkpoints) in
        [("reset", 3), ("reset-thread", 2), ("contexts", 2), ("devices", 2)]
    {
        let mut client = Command::new(fixtures.client());
        let mut client = Running::start_talking(client.args([scenario, "--hold"]))?;
        for _ in 0..checkpoints {
            let truth = Truth::parse(client.read_json()?)?;
            daemon.dump_until(scenario, LATE, |dump| {
                dump.check_conservation()?;
                let process = dump.process(truth.pid)?;
                truth.check_devices(process)?;
                truth.check_running(process)
            })?;
            client.go_on()?;
        }
        client.finish(memtrace::LIMIT)?.expect_status(0)?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_reset_of_very_many_blocks_is_exact() -> Result<()> {
    let client = fixture::build(Variant::Plain)?.client();
    let traced = Run::new(DOMAINS).trace(&client, ["reset-many", "20000"])?;
    traced.dump.check_conservation()?;
    traced.truth()?.check_ended(traced.process()?)?;
    Ok(())
}

/// Records of what is closed find no room in a tiny ring: the totals and, after the live map was
/// read again, the sites are right all the same.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_reset_whose_records_are_lost_moves_no_number() -> Result<()> {
    let client = fixture::build(Variant::Plain)?.client();
    let run = Run::new(DOMAINS).switch("MEMTRACE_TUNE_RING_BYTES", 64 << 10);
    let traced = run.trace(&client, ["reset-many", "3000"])?;
    traced.dump.check_conservation()?;
    let (process, truth) = (traced.process()?, traced.truth()?);
    let (terms, truth) = (process.domain("cuda").terms, truth.domain("cuda"));
    assert_eq!((terms.seen, terms.freed), (truth.seen, truth.freed));
    assert_eq!(terms.closed, truth.closed + truth.live);
    assert!(traced.dump.losses().contains_key("ring_full"), "{:?}", traced.dump.losses());
    assert_eq!(process.all("cuda").live, truth.live);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_childs_reset_is_its_own_affair() -> Result<()> {
    let traced =
        Run::new(DOMAINS).trace(fixture::build(Variant::Plain)?.client(), ["reset-fork"])?;
    traced.dump.check_conservation()?;
    let truth = traced.truth()?;
    truth.check_ended(traced.process()?)?;
    let child = traced.dump.process(truth.child.context("no child")?)?;
    assert_eq!(child.domain("cuda").terms.closed, amount(2, 50));
    assert_eq!(child.all("cuda").live, amount(1, 30));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_exec_after_a_reset_closes_the_rest() -> Result<()> {
    let traced =
        Run::new(DOMAINS).trace(fixture::build(Variant::Plain)?.client(), ["reset-exec"])?;
    traced.dump.check_conservation()?;
    let lines = traced.said.stdout.lines();
    let truths: Vec<Truth> =
        lines.map(|line| Truth::parse(serde_json::from_str(line)?)).collect::<Result<_>>()?;
    assert_eq!(truths.len(), 2, "one of each program");
    let process = traced.process()?;
    for domain in ["cuda", "managed", "pinned"] {
        let (mut seen, mut closed) = (amount(0, 0), amount(0, 0));
        for truth in &truths {
            let truth = truth.domain(domain);
            seen = seen + truth.seen;
            closed = closed + truth.closed + truth.live;
        }
        let terms = process.domain(domain).terms;
        assert_eq!((terms.seen, terms.closed), (seen, closed), "{domain}");
    }
    Ok(())
}

/// Whoever is followed from the middle of its life has chosen its device before: it is not known,
/// until it chooses again.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_device_that_was_chosen_before_memtrace_came_is_unknown() -> Result<()> {
    let scratch = Scratch::new()?;
    let report = scratch.join("report.json");
    let mut client = Command::new(fixture::build(Variant::Plain)?.client());
    let mut client = Running::start_talking(client.args(["reset", "--hold"]))?;
    client.read_json()?;
    let options = ["--domains", DOMAINS, "--format", "json", "-o"].map(OsStr::new);
    let options = options.into_iter().chain([report.as_os_str()]);
    let mut tracer = memtrace::attach(client.pid(), options)?;
    client.go_on()?;
    client.read_json()?;
    client.go_on()?;
    client.read_json()?;
    client.go_on()?;
    client.finish(memtrace::LIMIT)?.expect_status(0)?;
    tracer.finish(memtrace::LIMIT)?.expect_status(0)?;
    let dump = Dump::parse(&std::fs::read_to_string(&report)?)?;
    let process = dump.process(client.pid())?;
    let devices = |api: &str| {
        let own = process.sites.iter().filter(|site| site.api == api);
        own.map(|site| site.device).collect::<Vec<_>>()
    };
    // Device 1, of which nobody knows; then device 0, which is said.
    let unknown = devices("cudaMalloc");
    assert!(unknown.contains(&None) && !unknown.contains(&Some(1)), "{:?}", process.sites);
    assert_eq!(devices("cudaMallocManaged"), [Some(0)], "{:?}", process.sites);
    assert_eq!(process.domain("cuda").unknown_frees, 0);
    Ok(())
}
