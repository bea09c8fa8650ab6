//! Library calls on the books, against the true books of the stub CUDA libraries: single
//! threads and calls that fail, are nothing, or are nested. The process is the subject of
//! `lifecycle.rs`.

use anyhow::{Context, Result, ensure};
use memtrace_tests::dump::{Site, amount, sums};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{Run, Traced};

/// Runs a scenario of the client; conservation must hold.
fn traced(variant: Variant, arguments: &[&str]) -> Result<Traced> {
    let client = fixture::build(variant)?.client();
    let traced = Run::new("cuda,managed,pinned").trace(client, arguments)?;
    traced.dump.check_conservation()?;
    Ok(traced)
}

/// The same, when nothing may be lost and all must be as the stub says.
fn exact(variant: Variant, arguments: &[&str]) -> Result<Traced> {
    let traced = traced(variant, arguments)?;
    // A stub is called faster than stacks are unwound: some may be taken by frame pointers, which
    // costs no byte and, in these programs, no caller.
    let mut lost = traced.dump.losses();
    lost.remove("stack_budget");
    assert!(lost.is_empty(), "lost: {lost:?}");
    traced.truth()?.check_ended(traced.process()?).with_context(|| format!("{arguments:?}"))?;
    Ok(traced)
}

fn traced_without_loss(arguments: &[&str]) -> Result<Traced> {
    let traced = traced(Variant::Plain, arguments)?;
    assert!(traced.dump.losses().is_empty(), "lost: {:?}", traced.dump.losses());
    Ok(traced)
}

fn plain(arguments: &[&str]) -> Result<Traced> {
    exact(Variant::Plain, arguments)
}

/// What `cargo xtask test --gpu` asks of a real driver.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_program_for_real_drivers_is_booked_to_the_byte() -> Result<()> {
    memtrace_tests::gpu::check(&fixture::build(Variant::Plain)?.gpu_client())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn three_threads_at_two_sites_are_exact_per_site() -> Result<()> {
    for variant in [Variant::Plain, Variant::Endbr, Variant::TailCall] {
        let traced = exact(variant, &["threads", "100", "1000"])?;
        let process = traced.process()?;
        let leaking = process.at("cuda", "site_a");
        assert_eq!(leaking.live, amount(100, 100_000), "{variant:?}");
        assert_eq!(leaking.freed, amount(0, 0), "{variant:?}");
        let balanced = process.at("cuda", "site_b");
        assert_eq!(balanced.allocated, amount(100, 409_600), "{variant:?}");
        assert_eq!(balanced.freed, balanced.allocated, "{variant:?}: freed by another pair");
        assert_eq!(balanced.live, amount(0, 0), "{variant:?}");
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_direct_caller_of_every_function_is_the_first_frame() -> Result<()> {
    // By a jump too: what a jumping function returns to is the site.
    for variant in [Variant::Plain, Variant::Endbr, Variant::TailCall] {
        let traced = exact(variant, &["kinds"])?;
        let mut callers = Vec::new();
        for site in &traced.process()?.sites {
            let first = site.frames.first().with_context(|| format!("no frames: {site:?}"))?;
            ensure!(first.line.is_some(), "{variant:?}: {first:?}");
            callers.push((site.api.as_str(), first.symbol.as_deref().unwrap_or_default()));
        }
        callers.sort_unstable();
        let expected = [
            ("cuMemAllocHost_v2", "site_driver_host"),
            ("cuMemAllocManaged", "site_driver_managed"),
            ("cuMemAlloc_v2", "site_driver"),
            ("cuMemHostAlloc", "site_driver_host_alloc"),
            ("cudaHostAlloc", "site_host_alloc"),
            ("cudaMalloc", "site_a"),
            ("cudaMallocHost", "site_host"),
            ("cudaMallocManaged", "site_managed"),
            ("cudaMallocPitch", "site_pitch"),
        ];
        assert_eq!(callers, expected, "{variant:?}");
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_frame_has_its_function_file_line_and_place_in_its_module() -> Result<()> {
    let traced = plain(&["leak", "3", "1000"])?;
    let sites: Vec<&Site> = traced.process()?.sites("cuda").collect();
    assert_eq!(sites.len(), 1, "{sites:#?}");
    let first = sites[0].frames.first().context("no frames")?;
    assert_eq!(first.symbol.as_deref(), Some("site_a"));
    assert_eq!(first.kind, "native");
    assert!(
        first.file.as_deref().is_some_and(|file| file.ends_with("client_sites.c")),
        "{first:?}"
    );
    assert!(first.line.is_some(), "{first:?}");
    assert!(first.module.as_deref().is_some_and(|module| module.ends_with("client")), "{first:?}");
    assert!(first.build_id.is_some() && first.offset.is_some(), "{first:?}");
    for caller in ["leak", "main"] {
        assert!(sites[0].passes(caller), "{caller} is not in {:#?}", sites[0].frames);
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_site_has_the_same_id_in_every_run() -> Result<()> {
    let id = || -> Result<String> {
        let traced = plain(&["leak", "3", "1000"])?;
        let site = traced.process()?.sites("cuda").next().context("no site")?;
        site.id.clone().context("a site without id")
    };
    let first = id()?;
    assert_eq!(first.len(), 16, "{first}");
    assert_eq!(first, id()?);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn failing_calls_move_nothing_and_are_counted_at_their_site() -> Result<()> {
    for scenario in ["failing", "failing-driver"] {
        let traced = plain(&[scenario, "20"])?;
        let process = traced.process()?;
        assert_eq!(process.domain("cuda").terms.seen, amount(0, 0), "{scenario}");
        assert_eq!(process.domain("cuda").failures, 20, "{scenario}: no call counts twice");
        assert_eq!(process.at("cuda", "site_a").failures, 20, "{scenario}");
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn memory_that_a_failing_call_gave_back_is_freed() -> Result<()> {
    let traced = plain(&["failing-late", "5"])?;
    let process = traced.process()?;
    assert_eq!(process.domain("cuda").terms.freed, amount(5, 15_000));
    assert_eq!(process.at("cuda", "site_b").live, amount(1, 700));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn memory_that_a_failing_call_kept_is_booked_under_its_inner_name() -> Result<()> {
    let traced = plain(&["failing-kept", "5"])?;
    let process = traced.process()?;
    assert_eq!(process.domain("cuda").failures, 5);
    let kept: Vec<&Site> = process.sites("cuda").filter(|s| s.api == "cuMemAlloc_v2").collect();
    assert_eq!(sums(kept.iter().copied()).live, amount(5, 15_000));
    assert!(kept.iter().all(|site| site.passes("site_a")), "{kept:#?}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_address_of_a_failing_call_that_another_thread_gets_is_counted_once() -> Result<()> {
    let traced = plain(&["failing-late-threads", "2000"])?;
    let process = traced.process()?;
    assert_eq!(process.domain("cuda").failures, 4_000);
    assert_eq!(process.domain("cuda").terms.seen, amount(8_000, 8_000_000));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_failing_free_keeps_its_allocation() -> Result<()> {
    for scenario in ["failing-free", "failing-free-driver"] {
        for variant in [Variant::Plain, Variant::TailCall] {
            let traced = exact(variant, &[scenario])?;
            let process = traced.process()?;
            assert_eq!(process.at("cuda", "site_a").live, amount(2, 2_000), "{scenario}");
            assert_eq!(process.domain("cuda").failed_frees, 1, "{scenario} {variant:?}");
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_failing_free_of_an_unknown_address_is_a_failed_free() -> Result<()> {
    let traced = plain(&["free-unknown"])?;
    let terms = traced.process()?.domain("cuda");
    assert_eq!((terms.failed_frees, terms.unknown_frees), (1, 0));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_free_of_null_is_nothing() -> Result<()> {
    let traced = plain(&["free-null", "10"])?;
    for domain in ["cuda", "pinned"] {
        let terms = traced.process()?.domain(domain);
        assert_eq!((terms.failed_frees, terms.unknown_frees), (0, 0), "{domain}");
        assert_eq!(terms.terms.freed, amount(0, 0), "{domain}");
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn every_function_books_its_domain_and_size() -> Result<()> {
    let traced = plain(&["kinds"])?;
    let process = traced.process()?;
    assert_eq!(process.at("cuda", "site_a").live, amount(1, 1_001));
    assert_eq!(process.at("cuda", "site_pitch").live, amount(1, 512 * 7), "pitch × height");
    assert_eq!(process.at("cuda", "site_driver").live, amount(1, 1_006));
    assert_eq!(process.at("managed", "site_managed").live, amount(1, 1_003));
    assert_eq!(process.at("managed", "site_driver_managed").live, amount(1, 1_007));
    assert_eq!(process.at("pinned", "site_host").live, amount(1, 1_004));
    assert_eq!(process.at("pinned", "site_host_alloc").live, amount(1, 1_005));
    assert_eq!(process.at("pinned", "site_driver_host").live, amount(1, 1_008));
    assert_eq!(process.at("pinned", "site_driver_host_alloc").live, amount(1, 1_009));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_free_by_the_other_layer_finds_its_allocation() -> Result<()> {
    for variant in [Variant::Plain, Variant::TailCall] {
        let traced = exact(variant, &["kinds-freed"])?;
        for domain in memtrace_tests::truth::DOMAINS {
            let terms = traced.process()?.domain(domain);
            assert_eq!(terms.terms.closed, amount(0, 0), "{variant:?} {domain}");
            assert_eq!(terms.unknown_frees, 0, "{variant:?} {domain}");
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn success_with_a_null_pointer_is_empty() -> Result<()> {
    let terms = plain(&["empty", "4"])?.process()?.domain("cuda");
    assert_eq!((terms.empty, terms.terms.seen), (4, amount(1, 1_000)));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn sizes_that_cannot_be_true_are_counted_and_not_booked() -> Result<()> {
    let traced = traced(Variant::Plain, &["implausible"])?;
    let terms = traced.process()?.domain("cuda");
    assert_eq!((terms.implausible, terms.terms.seen), (2, amount(1, 1_000)));
    assert_eq!(traced.dump.losses().into_iter().collect::<Vec<_>>(), [("implausible", 2)]);
    traced.truth()?.check_ended(traced.process()?)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_size_that_cannot_be_true_counts_once_however_deep_the_call() -> Result<()> {
    let traced = traced(Variant::Plain, &["implausible-runtime"])?;
    assert_eq!(traced.dump.losses().into_iter().collect::<Vec<_>>(), [("implausible", 1)]);
    traced.truth()?.check_ended(traced.process()?)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_inner_allocation_with_another_pointer_is_booked_on_its_own() -> Result<()> {
    // One waits for the outer call, five are more than there is room for.
    for blocks in [1, 5] {
        let traced = plain(&["extra-inner", &blocks.to_string()])?;
        let process = traced.process()?;
        let inner: Vec<&Site> =
            process.sites("cuda").filter(|s| s.api == "cuMemAlloc_v2").collect();
        let live = sums(inner.iter().copied()).live;
        assert_eq!(live, amount(blocks + 1, blocks * 8_000 + 500));
        assert_eq!(process.domain("cuda").terms.seen, live + amount(2, 2_000));
        // Its direct caller is the runtime; whoever called that comes behind.
        for site in inner {
            let module = site.frames.first().and_then(|first| first.module.as_deref());
            assert!(module.is_some_and(|module| module.ends_with("/libcudart.so.12")), "{site:#?}");
            assert!(site.passes("site_a") || site.passes("site_host"), "{site:#?}");
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn inner_allocations_behind_the_outers_own_count_nothing_twice() -> Result<()> {
    let traced = plain(&["extra-after", "1"])?;
    assert_eq!(traced.process()?.at("cuda", "site_a").live, amount(2, 9_000));
    // With five the outer's own was booked under its inner name before the outer returned.
    let traced = traced_without_loss(&["extra-after", "5"])?;
    let process = traced.process()?;
    traced.truth()?.check_ended_but_names(process)?;
    assert_eq!(process.at("cuda", "site_a").live, amount(6, 41_000));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_address_handed_out_again_closes_its_old_entry() -> Result<()> {
    let traced = plain(&["freed-unseen"])?;
    let process = traced.process()?;
    assert_eq!(process.domain("cuda").terms.freed_unseen, amount(3, 3_000));
    assert_eq!(process.at("cuda", "site_b").freed, amount(3, 1_500));
    let closed = process.at("cuda", "site_a");
    assert_eq!(closed.live, amount(1, 2_000));
    assert_eq!(closed.freed, amount(0, 0), "frees counts real frees only");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_address_given_to_another_thread_while_its_free_is_inside_is_right() -> Result<()> {
    let traced = plain(&["in-flight"])?;
    let process = traced.process()?;
    assert_eq!(process.at("cuda", "site_a").freed, amount(1, 1_000));
    assert_eq!(process.at("cuda", "site_b").live, amount(1, 2_000));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_free_that_fails_after_its_address_was_given_away_is_freed_unseen() -> Result<()> {
    let traced = plain(&["in-flight-failing"])?;
    let process = traced.process()?;
    assert_eq!(process.domain("cuda").terms.freed_unseen, amount(1, 1_000));
    assert_eq!(process.domain("cuda").failed_frees, 1);
    assert_eq!(process.at("cuda", "site_b").live, amount(1, 2_000));
    Ok(())
}

/// What a scenario that leaves calls without returning must look like: so many missed returns,
/// nothing else lost, and the rest exact.
fn with_missed_returns(arguments: &[&str], missed: u64) -> Result<Traced> {
    let traced = traced(Variant::Plain, arguments)?;
    let losses: Vec<_> = traced.dump.losses().into_iter().collect();
    assert_eq!(losses, [("missed_return", missed)], "{arguments:?}");
    traced.truth()?.check_ended(traced.process()?).with_context(|| format!("{arguments:?}"))?;
    Ok(traced)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_longjmp_out_of_a_call_is_a_missed_return_and_spoils_nothing() -> Result<()> {
    with_missed_returns(&["longjmp", "3"], 3)?;
    with_missed_returns(&["longjmp-below", "3"], 3)?;
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn memory_given_before_a_call_was_left_is_booked_where_it_was_asked_for() -> Result<()> {
    let traced = traced(Variant::Plain, &["longjmp-after", "3"])?;
    assert_eq!(traced.dump.losses().into_iter().collect::<Vec<_>>(), [("missed_return", 3)]);
    let process = traced.process()?;
    traced.truth()?.check_ended_but_names(process)?;
    assert_eq!(process.at("cuda", "site_a").live, amount(3, 3_000));
    assert_eq!(process.at("cuda", "site_b").live, amount(10, 10_000));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn calls_below_one_that_was_left_are_not_its_inner_ones() -> Result<()> {
    let traced = with_missed_returns(&["longjmp-then-below"], 1)?;
    assert_eq!(traced.process()?.at("cuda", "site_driver").live, amount(10, 10_000));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_program_replaced_from_inside_a_call_starts_with_empty_books() -> Result<()> {
    let traced = with_missed_returns(&["exec-inside"], 1)?;
    assert_eq!(traced.process()?.at("cuda", "site_b").live, amount(3, 6_000));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_thread_that_ends_inside_a_call_is_a_missed_return_and_spoils_nothing() -> Result<()> {
    with_missed_returns(&["thread-exit"], 3)?;
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn calls_nested_as_deep_as_the_stack_in_flight_are_exact() -> Result<()> {
    // Three calls of the runtime and the innermost one's call of the driver: four.
    let traced = plain(&["nested", "3"])?;
    assert_eq!(traced.process()?.at("cuda", "site_b").live, amount(3, 300));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn calls_nested_deeper_are_counted_as_lost_and_the_others_are_exact() -> Result<()> {
    let traced = traced(Variant::Plain, &["nested", "6"])?;
    // Two of the runtime, and the driver's under the fourth, the fifth and the sixth.
    assert_eq!(traced.dump.losses().into_iter().collect::<Vec<_>>(), [("inflight_full", 5)]);
    assert_eq!(traced.process()?.at("cuda", "site_b").live, amount(4, 400));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_pointer_that_cannot_be_read_is_seen_dropped_and_counted() -> Result<()> {
    let traced = traced(Variant::Plain, &["unreadable"])?;
    assert_eq!(traced.dump.losses().into_iter().collect::<Vec<_>>(), [("unreadable_pointer", 1)]);
    let process = traced.process()?;
    let terms = process.domain("cuda").terms;
    assert_eq!((terms.seen, terms.dropped), (amount(2, 1_500), amount(1, 1_000)));
    assert_eq!(process.at("cuda", "site_b").live, amount(1, 500));
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_pointer_that_only_the_inner_call_can_say_is_on_the_books_once() -> Result<()> {
    let traced = traced(Variant::Plain, &["unreadable-outer"])?;
    assert_eq!(traced.dump.losses().into_iter().collect::<Vec<_>>(), [("unreadable_pointer", 1)]);
    traced.truth()?.check_ended_but_names(traced.process()?)
}
