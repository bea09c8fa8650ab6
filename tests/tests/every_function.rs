//! Every function of the catalog against the true books of the stub libraries: success, failure,
//! free by another thread, free of an address of nobody, an exit without a free, fork, exec and
//! kill. What only calls inside calls show is in `cuda.rs`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use memtrace_daemon::catalog::{self, Function};
use memtrace_tests::dump::{amount, sums};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{Run, Traced};
use memtrace_tests::truth::Truth;

const DOMAINS: &str = "cuda,managed,pinned,cuda_ipc,handles";

fn exact(client: &Path, scenario: &str) -> Result<Traced> {
    let traced = Run::new(DOMAINS).trace(client, [scenario])?;
    traced.dump.check_conservation()?;
    let mut lost = traced.dump.losses();
    lost.remove("stack_budget");
    assert!(lost.is_empty(), "{scenario} lost: {lost:?}");
    traced.truth()?.check_ended(traced.process()?).with_context(|| scenario.to_owned())?;
    Ok(traced)
}

/// Books of a child, of a program that is replaced and of one that is killed.
fn families(client: &Path) -> Result<()> {
    let traced = exact(client, "every-forked")?;
    // The child did what its parent had done, and nothing else.
    let truth = traced.truth()?;
    let child = truth.child.context("no child")?;
    Truth { pid: child, ..truth }.check_ended(traced.dump.process(child)?).context("the child")?;
    let traced = Run::new(DOMAINS).trace(client, ["every-replaced"])?;
    traced.dump.check_conservation()?;
    let (truth, process) = (traced.truth()?, traced.process()?);
    for domain in DOMAINS.split(',') {
        let (truly, terms) = (truth.domain(domain), process.domain(domain).terms);
        ensure!(terms.seen == truly.seen && terms.live == amount(0, 0), "{domain}: {terms:?}");
        ensure!(terms.closed == truly.closed + truly.live, "{domain}: {terms:?}, truly {truly:?}");
    }
    let traced = exact(client, "every-killed")?;
    let first = traced.said.stdout.lines().next().context("nothing was said")?;
    let killed = Truth::parse(serde_json::from_str(first)?)?;
    ensure!(killed.pid != traced.process()?.pid, "{first}");
    killed.check_ended(traced.dump.process(killed.pid)?).context("the one that was killed")
}

/// All ways of using a function, with the client of one library.
fn every(client: &Path) -> Result<()> {
    for scenario in [
        "every-kept",
        "every-freed",
        "every-failing",
        "every-failing-free",
        "every-foreign",
        "every-thread",
    ] {
        exact(client, scenario)?;
    }
    families(client)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn every_function_of_cuda_is_exact_in_every_way() -> Result<()> {
    for variant in [Variant::Plain, Variant::Endbr, Variant::TailCall] {
        every(&fixture::build(variant)?.client()).with_context(|| format!("{variant:?}"))?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn every_function_of_hip_is_exact_in_every_way() -> Result<()> {
    every(&fixture::build(Variant::Plain)?.hip_client())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn every_function_of_libraries_above_them_is_exact_in_every_way() -> Result<()> {
    every(&fixture::build(Variant::Plain)?.library_client())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn every_function_of_the_catalog_is_called() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let mut called = Vec::new();
    for (client, scenarios) in [
        (fixtures.client(), &["every-kept", "every-failing-free", "kinds"][..]),
        (fixtures.hip_client(), &["every-kept", "every-failing-free"][..]),
        (fixtures.library_client(), &["every-kept", "every-failing-free"][..]),
    ] {
        for scenario in scenarios {
            let traced = exact(&client, scenario)?;
            let sites = &traced.process()?.sites;
            called.extend(sites.iter().map(|site| site.api.clone()));
        }
    }
    // What is only ever given again is nobody's first reference: see `retained`, `virtual` of HIP.
    let first = |function: &&Function| !function.symbol.ends_with("MemRetainAllocationHandle");
    let allocators = catalog::library_functions().iter().filter(|function| function.allocates());
    for function in allocators.filter(first) {
        assert!(called.iter().any(|api| api == function.symbol), "{}", function.symbol);
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_handle_of_another_process_opened_again_is_one_more_reference() -> Result<()> {
    let traced = exact(&fixture::build(Variant::Plain)?.client(), "ipc-twice")?;
    let terms = traced.process()?.domain("cuda_ipc");
    assert_eq!((terms.terms.seen, terms.terms.freed), (amount(3, 0), amount(2, 0)));
    assert_eq!(terms.terms.closed, amount(1, 0), "one of three references is left");
    assert_eq!(terms.failed_frees, 1);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn memory_without_an_address_is_freed_when_it_is_released_and_unmapped() -> Result<()> {
    let traced = exact(&fixture::build(Variant::Plain)?.client(), "virtual")?;
    let terms = traced.process()?.domain("cuda");
    let mib = |count, mib: u64| amount(count, mib << 20);
    assert_eq!(terms.terms.freed, mib(5, 2 + 4 + 64 + 128 + 256));
    assert_eq!(terms.terms.closed, mib(3, 8 + 16 + 32));
    assert_eq!((terms.unknown_frees, terms.failed_frees), (0, 0));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn memory_of_hip_without_an_address_is_freed_when_it_is_released_and_unmapped() -> Result<()> {
    let traced = exact(&fixture::build(Variant::Plain)?.hip_client(), "virtual")?;
    let process = traced.process()?;
    let cuda = process.domain("cuda");
    let mib = |count, mib: u64| amount(count, mib << 20);
    assert_eq!((cuda.terms.freed, cuda.terms.closed), (mib(1, 2), mib(2, 4 + 8)));
    let borrowed = process.domain("cuda_ipc");
    assert_eq!((borrowed.terms.seen, borrowed.terms.freed), (amount(2, 0), amount(2, 0)));
    assert_eq!((cuda.unknown_frees, borrowed.unknown_frees, borrowed.failures), (0, 0, 1));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn memory_that_is_given_again_by_its_address_is_released_as_often() -> Result<()> {
    let traced = exact(&fixture::build(Variant::Plain)?.client(), "retained")?;
    let process = traced.process()?;
    let cuda = process.domain("cuda");
    assert_eq!((cuda.terms.freed, cuda.terms.closed), (amount(1, 2 << 20), amount(1, 4 << 20)));
    // Imported: two, of which one is still mapped.
    let borrowed = process.domain("cuda_ipc");
    assert_eq!((borrowed.terms.seen, borrowed.terms.freed), (amount(2, 0), amount(1, 0)));
    assert_eq!((cuda.unknown_frees, borrowed.unknown_frees, borrowed.failures), (0, 0, 1));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn borrowed_memory_is_freed_like_memory_of_the_programs_own() -> Result<()> {
    let traced = exact(&fixture::build(Variant::Plain)?.client(), "borrowed")?;
    let process = traced.process()?;
    let (cuda, borrowed) = (process.domain("cuda"), process.domain("cuda_ipc"));
    assert_eq!((cuda.terms.freed, cuda.terms.closed), (amount(1, 1_000), amount(1, 2_000)));
    assert_eq!((borrowed.terms.freed, borrowed.terms.closed), (amount(5, 0), amount(1, 0)));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_is_freed_like_device_memory_is_followed_where_its_own_domain_is_off() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    for (client, scenario) in [
        (fixtures.client(), "retained"),
        (fixtures.client(), "borrowed"),
        (fixtures.hip_client(), "virtual"),
    ] {
        let traced = Run::new("cuda").trace(client, [scenario])?;
        traced.dump.check_conservation()?;
        let lost = traced.dump.losses();
        assert!(lost.is_empty(), "{scenario} lost: {lost:?}");
        let (truth, process) = (traced.truth()?.domain("cuda"), traced.process()?);
        let cuda = process.domain("cuda");
        assert_eq!((cuda.terms.seen, cuda.terms.freed), (truth.seen, truth.freed), "{scenario}");
        let left = (cuda.terms.closed, cuda.terms.freed_unseen);
        assert_eq!(left, (truth.live, amount(0, 0)), "{scenario}");
        assert_eq!((cuda.unknown_frees, cuda.failed_frees), (0, 0), "{scenario}");
        for off in ["cuda_ipc", "handles"] {
            assert!(process.sites(off).next().is_none(), "{scenario}: {off}");
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn memory_of_several_kinds_may_have_one_number() -> Result<()> {
    let traced = exact(&fixture::build(Variant::Plain)?.client(), "same-numbers")?;
    let process = traced.process()?;
    assert_eq!(process.domain("cuda").terms.freed, amount(1, 1_000));
    assert_eq!(process.domain("pinned").terms.closed, amount(1, 2_000));
    assert_eq!(process.domain("cuda_ipc").terms.closed, amount(1, 0));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_array_of_an_unknown_format_is_a_loss() -> Result<()> {
    let client = fixture::build(Variant::Plain)?.client();
    let traced = Run::new(DOMAINS).trace(client, ["unknown-format"])?;
    traced.dump.check_conservation()?;
    let lost: Vec<_> = traced.dump.losses().into_iter().collect();
    assert_eq!(lost, [("unreadable_pointer", 1)]);
    assert_eq!(sums(traced.process()?.sites.iter()).live, amount(0, 0));
    Ok(())
}
