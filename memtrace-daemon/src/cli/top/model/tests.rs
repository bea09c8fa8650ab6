//! What keys and newer dumps do to what is shown.

use std::time::Duration;

use proptest::prelude::*;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{Model, Outcome, Sort};
use crate::cli::top::wire::{Dump, parse, sent};
use crate::report::fixture;
use crate::snapshot::Snapshot;

const SECOND: Duration = Duration::from_secs(1);

fn read(snapshot: &Snapshot) -> Dump {
    parse(&sent(snapshot)).unwrap()
}

fn busy() -> Model {
    Model::new(read(&fixture::busy()), SECOND)
}

fn press(model: &mut Model, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            other => KeyCode::Char(other),
        };
        assert_eq!(model.key(KeyEvent::new(code, KeyModifiers::NONE)), Outcome::Stay, "{key:?}");
    }
}

/// The functions of the rows that are shown, in order.
fn shown(model: &mut Model) -> Vec<String> {
    let (rows, _) = model.window(100);
    rows.into_iter().map(|row| row.function.split(' ').next().unwrap_or("").to_owned()).collect()
}

fn selected(model: &Model) -> (String, String) {
    let row = model.selected().unwrap();
    (row.pids.clone(), row.domain.clone())
}

#[test]
fn findings_come_first_and_then_sites_by_what_they_hold() {
    let mut model = busy();
    let (rows, at) = model.window(100);
    let rows: Vec<_> =
        rows.iter().map(|row| (row.is_finding(), row.verdict.as_str(), row.live_bytes)).collect();
    assert_eq!(
        rows,
        [
            (true, "LEAK", 3_328_599_654),
            (true, "GROWING", 38 << 20),
            (false, "plateau", 61 << 30),
            (false, "steady", 64 << 20),
            (false, "steady", 4096),
        ],
        "a site with a finding is one row, not two"
    );
    assert_eq!(at, Some(0));
}

#[test]
fn each_order_is_its_own_and_can_be_turned() {
    let mut model = busy();
    let found = shown(&mut model);
    let mut orders = vec![found.clone()];
    for sort in [Sort::Live, Sort::Growth, Sort::Process, Sort::Domain] {
        press(&mut model, "s");
        assert_eq!(model.sort, sort);
        orders.push(shown(&mut model));
    }
    assert_eq!(orders[1][0], "encode_prompt", "the pool holds most");
    assert_eq!(model.window(100).0[0].domain, "cuda");
    let mut turned = shown(&mut model);
    press(&mut model, "r");
    turned.reverse();
    assert_eq!(shown(&mut model), turned);
    press(&mut model, "rs");
    assert_eq!(model.sort, Sort::AsFound);
    assert_eq!(shown(&mut model), found);
}

#[test]
fn what_does_not_say_how_it_grows_comes_last() {
    let mut model = busy();
    press(&mut model, "ss");
    let (rows, _) = model.window(100);
    let growth: Vec<_> = rows.iter().map(|row| row.growth).collect();
    assert_eq!(growth, [Some(20_971.52), Some(7_000.0), Some(0.0), None, None]);
}

#[test]
fn the_selection_stays_on_its_row() {
    let mut model = busy();
    press(&mut model, "j");
    assert_eq!(selected(&model), ("977".into(), "kernel".into()));
    press(&mut model, "sss");
    assert_eq!(selected(&model), ("977".into(), "kernel".into()));
    // The finding goes: the site is what it was about.
    let mut calm = fixture::busy();
    calm.findings.truncate(1);
    model.take(read(&calm), SECOND);
    assert_eq!(selected(&model), ("977".into(), "kernel".into()));
    assert!(!model.selected().unwrap().is_finding());
    // A process of the same id that was started later is another one.
    calm.processes[1].start_ns += 1;
    let place = model.window(100).1;
    model.take(read(&calm), SECOND);
    assert_eq!(model.window(100).1, place, "where it was");
    // Nothing is left, and something comes again.
    model.take(read(&fixture::empty()), SECOND);
    assert!(model.selected().is_none());
    press(&mut model, "jkGg\n\n");
    model.take(read(&calm), SECOND);
    assert!(model.selected().is_some());
}

#[test]
fn until_somebody_chooses_the_first_row_is_selected_whichever_it_is() {
    let mut calm = fixture::busy();
    let findings = std::mem::take(&mut calm.findings);
    let mut model = Model::new(read(&calm), SECOND);
    assert_eq!(model.selected().unwrap().verdict, "plateau", "the largest");
    calm.findings = findings;
    model.take(read(&calm), SECOND);
    assert_eq!(model.selected().unwrap().verdict, "LEAK");
    press(&mut model, "s");
    assert_eq!(model.window(100).1, Some(0));
    // Back at the top is no choice any more.
    press(&mut model, "sjg");
    press(&mut model, "sss");
    assert_eq!(model.selected().unwrap().verdict, "LEAK");
}

#[test]
fn a_filter_looks_at_process_function_domain_and_verdict() {
    for (text, rows) in [
        ("serve", 3),
        ("ENCODE_prompt", 2),
        ("pinned", 1),
        ("leak", 1),
        ("977", 1),
        // A function farther out, and one of the example of who called.
        ("do_syscall", 1),
        ("server.py", 0),
        ("no such thing", 0),
    ] {
        let mut model = busy();
        press(&mut model, "/");
        press(&mut model, text);
        assert_eq!(model.counts(), (rows, 5), "{text}");
        assert!(model.typing);
        press(&mut model, "\n");
        assert!(!model.typing);
        assert_eq!(model.filter, text, "Enter keeps it");
        press(&mut model, "\x1b");
        assert_eq!(model.counts(), (5, 5), "Esc clears it");
    }
}

#[test]
fn letters_of_a_filter_are_no_commands() {
    let mut model = busy();
    press(&mut model, "/qsrdp?x\x08");
    assert_eq!(model.filter, "qsrdp?");
    assert_eq!((model.sort, model.paused, model.help), (Sort::AsFound, false, false));
    press(&mut model, "\x1b");
    assert_eq!((model.filter.as_str(), model.typing), ("", false));
}

#[test]
fn domains_come_in_turn_and_then_all_again() {
    let mut model = busy();
    let mut seen = vec![];
    for _ in 0..4 {
        press(&mut model, "d");
        seen.push((model.domain.clone(), model.counts().0));
    }
    assert_eq!(
        seen,
        [
            (Some("cuda".into()), 2),
            (Some("kernel".into()), 2),
            (Some("pinned".into()), 1),
            (None, 5)
        ]
    );
}

#[test]
fn a_window_follows_the_selection() {
    let mut model = busy();
    assert_eq!(model.window(2).1, Some(0));
    press(&mut model, "G");
    assert_eq!(model.window(2).1, Some(1));
    let page = |code| KeyEvent::new(code, KeyModifiers::NONE);
    model.key(page(KeyCode::PageUp));
    assert_eq!(model.window(2).1, Some(0));
    model.key(page(KeyCode::Home));
    assert_eq!(model.window(2).1, Some(0));
    // A screen that grows shows what there is, one without room shows nothing.
    press(&mut model, "G");
    assert_eq!(model.window(50).0.len(), 5);
    assert_eq!(model.window(0).0.len(), 0);
}

#[test]
fn ctrl_c_ends_it_wherever_it_is() {
    for before in ["", "/", "?", "p"] {
        let mut model = busy();
        press(&mut model, before);
        let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(model.key(key), Outcome::Quit, "after {before:?}");
    }
    let quit = busy().key(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE));
    assert_eq!(quit, Outcome::Quit);
}

#[test]
fn trouble_is_over_when_a_dump_comes() {
    let mut model = busy();
    model.trouble = Some("no memtrace daemon".into());
    model.take(read(&fixture::busy()), 4 * SECOND);
    assert_eq!((model.trouble, model.every), (None, 4 * SECOND));
}

proptest! {
    /// Whatever is pressed and whatever comes, what is selected is one of what is shown.
    #[test]
    fn the_selection_is_always_shown(keys in "[jkgGsrd/eq?p \n\x1b\x08]{0,40}", height in 0usize..8) {
        let mut model = busy();
        for (index, key) in keys.chars().enumerate() {
            if key != 'q' || model.typing {
                press(&mut model, &key.to_string());
            }
            if index % 7 == 6 {
                let snapshot = if index % 2 == 0 { fixture::run() } else { fixture::busy() };
                model.take(read(&snapshot), SECOND);
            }
            let (rows, at) = model.window(height);
            prop_assert!(at.is_none_or(|at| at < rows.len()));
            prop_assert_eq!(at.is_some(), !rows.is_empty());
        }
    }
}
