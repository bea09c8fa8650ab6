//! Patterns that somebody met in production, each a small program, and what memtrace says about
//! it in the end and on the way. All run side by side, once, for all tests of this file.
//!
//! The rows are those of the cases that the verdict is held against; what belongs to memory
//! that no probe sees yet, or needs hours, is tested in virtual time.

use anyhow::{Context, Result, ensure};
use memtrace_tests::cases::{Outcome, Sequence, title};
use memtrace_tests::dump::{Finding, Process, amount};

fn site(name: &str, domain: &str, function: &str) -> Result<Sequence<'static>> {
    Outcome::get()?.site(name, domain, function)
}

/// A leak of which nothing is freed: in time, found in the right function, said to whom it matters.
fn leaks_without_frees(name: &str, domain: &str, function: &str) -> Result<()> {
    let site = site(name, domain, function)?;
    site.leaks_without_frees(0.0)?;
    site.ends("leak")?;
    site.is_news()?;
    site.names_its_line()
}

/// A leak of what has no bytes: said of objects, and with none of bytes.
fn leaks_counted(name: &str, domain: &str, function: &str) -> Result<()> {
    let site = site(name, domain, function)?;
    site.was("leak")?;
    site.ends("leak")?;
    site.is_news()?;
    site.names_its_line()?;
    let finding = site.finding()?;
    let number = |key: &str| finding.evidence.get(key).and_then(serde_json::Value::as_f64);
    ensure!(number("floor_last_objects") > number("floor_first_objects"), "{finding:#?}");
    ensure!(number("slope_objects_per_second") > Some(0.0), "{finding:#?}");
    ensure!(number("slope_bytes_per_second").is_none(), "{finding:#?}");
    ensure!(finding.exhaustion.is_none(), "nothing that could run out is known: {finding:#?}");
    Ok(())
}

/// A leak at a site that frees as well.
fn leaks_with_frees(name: &str, domain: &str, function: &str) -> Result<()> {
    let site = site(name, domain, function)?;
    site.leaks_with_frees(0.0)?;
    site.ends("leak")?;
    site.is_news()?;
    site.names_its_line()
}

/// A leak of one object that becomes ever larger.
fn leaks_in_size(name: &str, domain: &str, function: &str) -> Result<()> {
    let site = site(name, domain, function)?;
    site.leaks_in_size(0.0)?;
    site.ends("leak")?;
    site.is_news()?;
    site.names_its_line()
}

/// Never a leak, and this in the end.
fn ends_without_a_leak(name: &str, domain: &str, function: &str, verdict: &str) -> Result<()> {
    let site = site(name, domain, function)?;
    site.never("leak")?;
    site.ends(verdict)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a1_a_name_lost_each_call_is_a_leak_through_a_pause_and_balanced_traffic_is_none() -> Result<()> {
    leaks_without_frees("a1", "cuda", "copy_name")?;
    ends_without_a_leak("a1", "cuda", "borrow", "steady")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a2_a_cache_grows_and_is_a_plateau_at_its_cap() -> Result<()> {
    site("a2-cap", "pinned", "cache_prompt")?.was("growing")?;
    ends_without_a_leak("a2-cap", "pinned", "cache_prompt", "plateau")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a2_a_cache_below_its_cap_is_growing_and_the_finding_says_what_would_decide() -> Result<()> {
    ends_without_a_leak("a2-beyond", "pinned", "cache_prompt", "growing")?;
    let site = site("a2-beyond", "pinned", "cache_prompt")?;
    site.is_news()?;
    let finding = site.finding()?;
    ensure!(!finding.decided_by.is_empty(), "nothing said: {finding:#?}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a3_a_cache_of_known_keys_is_a_plateau_and_the_same_one_with_unique_keys_a_leak() -> Result<()> {
    let site = site("a3", "cuda", "compile_grammar")?;
    site.is_at(40.0, "plateau")?;
    site.leaks_without_frees(40.0)?;
    site.ends("leak")?;
    site.is_news()?;
    site.names_its_line()?;
    ends_without_a_leak("a3", "cuda", "read_request", "steady")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a4_a_queue_of_releases_that_nobody_empties_is_a_leak() -> Result<()> {
    leaks_without_frees("a4-unbounded", "cuda", "map_region")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a4_a_bounded_queue_of_releases_is_a_plateau() -> Result<()> {
    ends_without_a_leak("a4-bounded", "cuda", "map_region", "plateau")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a4_a_queue_that_is_emptied_more_slowly_than_it_fills_is_a_leak_in_the_end() -> Result<()> {
    site("a4-slow", "cuda", "map_region")?.ends("leak")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a6_kernel_memory_that_outlives_its_process_is_a_leak_of_a_process_that_ended() -> Result<()> {
    let site = site("a6", "kernel", "load_msg")?;
    site.leaks_without_frees(0.0)?;
    site.ends("leak")?;
    site.is_news()?;
    let case = Outcome::get()?.case("a6")?;
    let owner = case.processes.first().context("the owner is not on the books")?;
    ensure!(owner.ended, "its owner has ended");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a9_a_growing_list_is_a_leak_over_its_steps() -> Result<()> {
    leaks_in_size("a9", "cuda", "new_list")?;
    ends_without_a_leak("a9", "cuda", "borrow", "steady")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a10_one_block_that_is_made_ever_larger_is_a_leak() -> Result<()> {
    leaks_in_size("a10", "cuda", "larger_block")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a15_a_caching_allocator_is_a_plateau_before_and_after_a_change_of_load() -> Result<()> {
    site("a15", "cuda", "grow_cache")?.is_at(60.0, "plateau")?;
    ends_without_a_leak("a15", "cuda", "grow_cache", "plateau")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a17_handles_that_are_unmapped_and_never_released_are_a_leak() -> Result<()> {
    leaks_without_frees("a17", "cuda", "create_segment")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a18_mappings_of_each_peer_that_are_never_closed_are_a_leak_and_those_made_once_are_none()
-> Result<()> {
    leaks_counted("a18", "cuda_ipc", "open_peer")?;
    ends_without_a_leak("a18-once", "cuda_ipc", "open_peer", "steady")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a19_a_leak_in_a_stripped_library_is_named_by_library_and_offset() -> Result<()> {
    let site = site("a19", "cuda", "libstripped.so")?;
    site.leaks_without_frees(0.0)?;
    site.ends("leak")?;
    site.is_news()?;
    let finding = site.finding()?;
    let named = finding.function.as_deref().is_some_and(|name| name.starts_with("libstripped.so+"));
    ensure!(named, "{finding:#?}");
    site.passes("stripped_entry")?;
    site.passes("in_a_stripped_library")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a21_descriptors_made_on_changes_of_shape_and_never_destroyed_are_a_leak() -> Result<()> {
    leaks_without_frees("a21", "cuda", "create_descriptor")?;
    ends_without_a_leak("a21", "cuda", "borrow", "steady")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a21_handles_that_are_made_on_changes_of_shape_are_counted_and_a_leak() -> Result<()> {
    leaks_counted("a21-handles", "handles", "create_shape")?;
    ends_without_a_leak("a21-handles", "handles", "borrow_shape", "steady")?;
    ends_without_a_leak("a21-handles", "handles", "descriptors_of_shapes", "steady")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a23_an_arena_that_doubles_is_a_plateau() -> Result<()> {
    ends_without_a_leak("a23", "cuda", "double_arena", "plateau")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a23_one_handle_of_a_thousand_that_is_lost_is_a_leak_and_the_arena_beside_it_is_none()
-> Result<()> {
    leaks_with_frees("a23-lost", "cuda", "make_handle")?;
    ends_without_a_leak("a23-lost", "cuda", "double_arena", "plateau")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a24_a_cache_bounded_by_entries_grows_and_is_a_plateau() -> Result<()> {
    site("a24", "cuda", "make_primitive")?.was("growing")?;
    ends_without_a_leak("a24", "cuda", "make_primitive", "plateau")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a25_a_pinned_pool_that_steps_with_concurrency_is_a_plateau() -> Result<()> {
    ends_without_a_leak("a25", "pinned", "grow_pinned", "plateau")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a26_a_buffer_kept_every_fifth_window_is_a_leak_although_rare() -> Result<()> {
    leaks_without_frees("a26", "pinned", "stage_adapter")?;
    ends_without_a_leak("a26", "cuda", "load_weights", "steady")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a29_descriptors_never_closed_are_a_kernel_leak_with_their_syscalls() -> Result<()> {
    for (function, syscall) in [
        ("do_eventfd", "__x64_sys_eventfd2"),
        ("alloc_pipe_info", "__x64_sys_pipe2"),
        // Of a memfd, its name; the call's entry jumps to what does it.
        ("__d_alloc", "__do_sys_memfd_create"),
    ] {
        let site = site("a29", "kernel", function)?;
        site.leaks_without_frees(0.0)?;
        site.ends("leak")?;
        site.is_news()?;
        site.passes(syscall)?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a35_a_payload_that_overlaps_the_next_with_rare_new_maxima_is_steady() -> Result<()> {
    ends_without_a_leak("a35", "cuda", "load", "steady")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a36_a_string_for_the_other_language_that_is_never_freed_is_a_leak() -> Result<()> {
    leaks_without_frees("a36", "cuda", "duplicate_string")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a37_a_child_that_leaks_dies_and_is_started_again_is_a_leak_of_its_service() -> Result<()> {
    let case = Outcome::get()?.case("a37")?;
    let of_a_life = |one: &&Process| one.domain("cuda").terms.seen == amount(56, 14_000_000);
    let lives = case.processes.iter().filter(|one| one.ended).filter(of_a_life).count();
    ensure!(lives == 9, "{lives} children on the books, there were 9");
    // No child lives for long enough to say it of that child.
    site("a37", "cuda", "collect_samples")?.never("leak")?;
    let leak = case.last_findings().iter().any(|one| {
        let Finding { level, domain, comm, verdict, .. } = one;
        (&**level, &**domain, &**comm, &**verdict) == ("service", "cuda", "a37", "leak")
    });
    ensure!(leak, "no leak of the service\n{}", case.findings_text());
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a38_a_worker_that_keeps_device_memory_without_its_parent_is_orphaned() -> Result<()> {
    let site = site("a38", "cuda", "load_model")?;
    site.never("leak")?;
    let case = Outcome::get()?.case("a38")?;
    let orphaned =
        case.last_findings().iter().any(|one| one.domain == "cuda" && one.verdict == "orphaned");
    ensure!(orphaned, "no orphan\n{site}{}", case.findings_text());
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a40_ever_smaller_first_requests_are_warm_up_and_then_steady() -> Result<()> {
    site("a40", "cuda", "workspace")?.only(&["warming", "steady"])?;
    ends_without_a_leak("a40", "cuda", "workspace", "steady")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a41_what_a_pool_gives_in_stream_order_and_gets_back_is_steady() -> Result<()> {
    ends_without_a_leak("a41", "cuda", "allocate_in_order", "steady")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a42_memory_that_follows_the_requests_in_flight_is_steady() -> Result<()> {
    ends_without_a_leak("a42", "cuda", "activations", "steady")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a43_a_pool_whose_elements_never_come_back_is_a_leak_where_it_maps() -> Result<()> {
    leaks_without_frees("a43", "cuda", "map_chunk")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_books_of_every_scenario_are_what_it_says_itself() -> Result<()> {
    for case in Outcome::get()?.cases() {
        case.books.clone().map_err(|difference| anyhow::anyhow!("{}: {difference}", case.name))?;
    }
    Ok(())
}

/// What the slab takes for itself where objects are never given back grows as they do.
const OF_THE_SLAB: &str = "alloc_slab_obj_exts";

/// The sites that may be called leaks, all others must not, the kernel's included.
const LEAKS: &[(&str, &[&str])] = &[
    ("a1", &["copy_name"]),
    ("a3", &["compile_grammar"]),
    ("a4-unbounded", &["map_region"]),
    ("a4-slow", &["map_region"]),
    ("a6", &["load_msg"]),
    ("a9", &["new_list"]),
    ("a10", &["larger_block"]),
    ("a18", &["open_peer"]),
    ("a19", &["libstripped.so"]),
    ("a21", &["create_descriptor"]),
    ("a21-handles", &["create_shape"]),
    ("a23-lost", &["make_handle"]),
    ("a17", &["create_segment"]),
    ("a26", &["stage_adapter"]),
    ("a29", &["do_eventfd", "alloc_pipe_info", "__d_alloc"]),
    ("a36", &["duplicate_string"]),
    ("a43", &["map_chunk"]),
];

#[test]
#[ignore = "needs root: cargo xtask test"]
fn no_other_site_of_any_scenario_was_ever_a_finding_of_a_leak() -> Result<()> {
    for case in Outcome::get()?.cases() {
        let named = LEAKS.iter().find(|(name, _)| *name == case.name);
        let known = named.map(|(_, functions)| *functions).unwrap_or_default();
        for look in &case.looks {
            let leaks = look.findings.iter().filter(|one| one.verdict == "leak");
            for finding in leaks.filter(|finding| finding.level == "site") {
                let name = finding.function.as_deref().unwrap_or_default();
                if name == OF_THE_SLAB || known.iter().any(|one| name.starts_with(one)) {
                    continue;
                }
                let site = look.sites.iter().find(|(_, site)| site.id == finding.site);
                let title = site.and_then(|(_, site)| title(site));
                anyhow::bail!(
                    "{} at window {:.1}: {:?} is no leak: {finding:#?}\n{}",
                    case.name,
                    look.at,
                    title,
                    Outcome::get()?.site(case.name, &finding.domain, name)?
                );
            }
        }
    }
    Ok(())
}
