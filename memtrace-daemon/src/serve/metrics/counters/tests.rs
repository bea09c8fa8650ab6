//! Whatever the books do, no counter goes back and no byte of `other` is counted twice.

use proptest::prelude::*;

use super::*;

fn row(pid: u32, start: u64, site: Option<u64>, live: u64, allocated: u64, freed: u64) -> Row {
    Row {
        key: RowKey {
            who: (pid, start),
            domain: "cuda",
            api: "cudaMalloc",
            context: "process",
            site,
        },
        comm: "python3".into(),
        function: "encode".into(),
        live,
        counters: Counters { allocated, freed },
    }
}

fn allocated(series: &SiteSeries) -> Vec<(u64, u64)> {
    series.named.iter().map(|(labels, shown)| (labels.site, shown.counters.allocated)).collect()
}

#[test]
fn a_named_series_shows_the_totals_of_the_books_and_other_what_happened_in_it() {
    let mut counters = SiteCounters::new(1);
    let first = counters
        .update(vec![row(1, 1, Some(1), 50, 80, 30), row(1, 1, Some(2), 10, 10, 0)], ["cuda"]);
    assert_eq!(allocated(&first), [(1, 80)]);
    let other = Shown { live: 10, counters: Counters { allocated: 10, freed: 0 } };
    assert_eq!(first.other["cuda"], other);
    // Site 2 overtakes; what happens to site 1 is in `other` from now on.
    let second = counters
        .update(vec![row(1, 1, Some(1), 50, 85, 35), row(1, 1, Some(2), 200, 200, 0)], ["cuda"]);
    assert_eq!(allocated(&second), [(2, 200)]);
    assert_eq!(second.other["cuda"].counters, Counters { allocated: 15, freed: 5 });
    assert_eq!(second.other["cuda"].live, 50);
}

#[test]
fn a_pid_used_anew_goes_on_where_the_old_one_ended() {
    let mut counters = SiteCounters::new(9);
    counters.update(vec![row(7, 1, Some(1), 50, 100, 50)], []);
    counters.update(vec![], []);
    let after = counters.update(vec![row(7, 2, Some(1), 5, 5, 0)], []);
    assert_eq!(allocated(&after), [(1, 105)]);
}

#[test]
fn a_row_that_begins_again_goes_on() {
    let mut counters = SiteCounters::new(9);
    counters.update(vec![row(7, 1, Some(1), 50, 100, 50)], []);
    let after = counters.update(vec![row(7, 1, Some(1), 5, 5, 0)], []);
    assert_eq!(allocated(&after), [(1, 105)]);
}

#[test]
fn a_stack_that_gets_its_name_is_no_growth() {
    let mut counters = SiteCounters::new(0);
    counters.update(vec![row(1, 1, None, 100, 100, 0)], []);
    let named =
        counters.update(vec![row(1, 1, None, 20, 20, 0), row(1, 1, Some(3), 90, 90, 0)], []);
    // 80 bytes moved, 10 are new.
    assert_eq!(named.other["cuda"].counters.allocated, 110);
    assert_eq!(named.other["cuda"].live, 110);
}

#[test]
fn a_function_keeps_its_first_name() {
    let mut counters = SiteCounters::new(9);
    counters.update(vec![row(1, 1, Some(1), 1, 1, 0)], []);
    let renamed = Row { function: "decode".into(), ..row(1, 1, Some(1), 2, 2, 0) };
    let series = counters.update(vec![renamed], []);
    assert_eq!(series.named.keys().next().unwrap().function.as_ref(), "encode");
}

#[test]
fn a_domain_has_its_other_from_the_start() {
    let series = SiteCounters::new(9).update(vec![], ["cuda", "kernel"]);
    assert_eq!(series.other.keys().collect::<Vec<_>>(), [&"cuda", &"kernel"]);
}

/// Books of a few processes and sites: (pid, start, site) → what happens at each step.
#[derive(Clone, Debug)]
enum Step {
    Grow { slot: usize, bytes: u64 },
    Free { slot: usize, share: u64 },
    Vanish { slot: usize },
    BeginAgain { slot: usize },
    Scrape,
}

fn step() -> impl Strategy<Value = Step> {
    let slot = 0..12usize;
    prop_oneof![
        4 => (slot.clone(), 1..1_000u64).prop_map(|(slot, bytes)| Step::Grow { slot, bytes }),
        2 => (slot.clone(), 1..4u64).prop_map(|(slot, share)| Step::Free { slot, share }),
        1 => slot.clone().prop_map(|slot| Step::Vanish { slot }),
        1 => slot.prop_map(|slot| Step::BeginAgain { slot }),
        4 => Just(Step::Scrape),
    ]
}

/// Twelve rows: two pids, each used by two processes, with two sites and an unnamed one.
fn slot_row(slot: usize, live: u64, counters: Counters) -> Row {
    let site = [Some(1), Some(2), None][slot % 3];
    let mut row = row(10 + (slot / 6) as u32, (slot / 3) as u64, site, live, 0, 0);
    row.counters = counters;
    row
}

proptest! {
    #[test]
    fn no_counter_goes_back_whatever_happens(
        steps in proptest::collection::vec(step(), 1..200),
        limit in 0..5usize,
    ) {
        let mut tracked = SiteCounters::new(limit);
        let mut books: [Option<(u64, Counters)>; 12] = [None; 12];
        let mut highest = HashMap::<Labels, Counters>::new();
        let mut other = Counters::default();
        for step in steps {
            match step {
                Step::Grow { slot, bytes } => {
                    let (live, counters) = books[slot].get_or_insert_default();
                    *live += bytes;
                    counters.allocated += bytes;
                }
                Step::Free { slot, share } => {
                    if let Some((live, counters)) = &mut books[slot] {
                        let freed = *live / share;
                        *live -= freed;
                        counters.freed += freed;
                    }
                }
                Step::Vanish { slot } => books[slot] = None,
                Step::BeginAgain { slot } => books[slot] = Some((1, Counters { allocated: 1, freed: 0 })),
                Step::Scrape => {
                    let rows: Vec<Row> = books.iter().enumerate()
                        .filter_map(|(slot, book)| book.map(|(live, c)| slot_row(slot, live, c)))
                        .collect();
                    let live: u64 = rows.iter().map(|row| row.live).sum();
                    let series = tracked.update(rows, ["cuda"]);
                    prop_assert!(series.named.len() <= limit);
                    let shown: u64 = series.named.values().chain(series.other.values()).map(|s| s.live).sum();
                    prop_assert_eq!(shown, live, "live is neither lost nor doubled");
                    for (labels, shown) in &series.named {
                        let high = highest.entry(labels.clone()).or_default();
                        prop_assert!(!shown.counters.went_back(*high), "{:?} {:?} {:?}", labels, high, shown);
                        *high = shown.counters;
                    }
                    let now = series.other["cuda"].counters;
                    prop_assert!(!now.went_back(other));
                    other = now;
                }
            }
        }
    }

    /// Where nothing vanishes, `other` holds exactly the bytes that are not in a named series.
    #[test]
    fn nothing_is_counted_twice(
        growth in proptest::collection::vec((0..6usize, 1..1_000u64), 1..100),
    ) {
        let mut tracked = SiteCounters::new(0);
        let mut books = [0u64; 6];
        for (site, bytes) in growth {
            books[site] += bytes;
            let rows = books.iter().zip(0..).filter(|(bytes, _)| **bytes > 0)
                .map(|(bytes, site)| row(1, 1, Some(site), *bytes, *bytes, 0)).collect();
            let series = tracked.update(rows, []);
            prop_assert_eq!(series.other["cuda"].counters.allocated, books.iter().sum::<u64>());
        }
    }
}
