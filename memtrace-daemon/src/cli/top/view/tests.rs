//! Screens of three sizes, and of hostile names.

use std::time::Duration;

use proptest::prelude::*;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use ratatui::{Terminal, buffer::Buffer};

use super::{Look, Model, draw};
use crate::cli::top::wire::{parse, sent};
use crate::report::fixture;
use crate::snapshot::Snapshot;

fn model(snapshot: &Snapshot) -> Model {
    Model::new(parse(&sent(snapshot)).unwrap(), Duration::from_secs(1))
}

fn press(model: &mut Model, keys: &str) {
    for key in keys.chars() {
        let code = if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) };
        model.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
}

fn buffer(model: &mut Model, (width, height): (u16, u16), colour: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, Look { colour })).unwrap();
    terminal.backend().buffer().clone()
}

/// The screen as text, without spaces at the ends of lines.
fn screen(model: &mut Model, size: (u16, u16)) -> String {
    let buffer = buffer(model, size, true);
    let mut lines = vec![];
    for y in 0..size.1 {
        let mut line = String::new();
        let mut x = 0;
        while x < size.0 {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            // A wide letter has the cell behind it too.
            x += u16::try_from(crate::report::escape::columns(symbol)).unwrap().max(1);
        }
        lines.push(line.trim_end().to_owned());
    }
    lines.join("\n")
}

const SMALL: (u16, u16) = (60, 20);
const USUAL: (u16, u16) = (80, 24);
const LARGE: (u16, u16) = (120, 40);

#[test]
fn a_busy_host() {
    for (name, size) in [("60x20", SMALL), ("80x24", USUAL), ("120x40", LARGE)] {
        insta::assert_snapshot!(format!("busy-{name}"), screen(&mut model(&fixture::busy()), size));
    }
}

#[test]
fn a_kernel_site_shows_who_called() {
    let mut model = model(&fixture::busy());
    press(&mut model, "j\n");
    insta::assert_snapshot!("kernel-80x24", screen(&mut model, USUAL));
}

#[test]
fn help_filter_trouble_and_pause() {
    let mut model = model(&fixture::busy());
    press(&mut model, "?");
    insta::assert_snapshot!("help-80x24", screen(&mut model, USUAL));
    press(&mut model, "?ssr/serve");
    insta::assert_snapshot!("filter-80x24", screen(&mut model, USUAL));
    press(&mut model, "\n");
    model.trouble = Some(
        "no memtrace daemon at /run/memtrace/memtrace.sock: nobody listens at that socket; \
         start it with `systemctl start memtrace`"
            .into(),
    );
    insta::assert_snapshot!("trouble-80x24", screen(&mut model, USUAL));
    press(&mut model, "p");
    let paused = screen(&mut model, USUAL);
    assert!(paused.starts_with("memtrace top · gpu-17 · watched for 2 h 15 min"), "{paused}");
    assert!(paused.lines().next().unwrap().ends_with("PAUSED at 23:10:04 UTC"), "{paused}");
}

#[test]
fn nothing_on_the_books() {
    insta::assert_snapshot!("empty-60x20", screen(&mut model(&fixture::empty()), SMALL));
}

#[test]
fn without_colour_there_is_none() {
    let mut model = model(&fixture::busy());
    model.trouble = Some("gone".into());
    let colours = |buffer: Buffer| {
        buffer
            .content
            .iter()
            .filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
            .count()
    };
    assert!(colours(buffer(&mut model, USUAL, true)) > 0);
    assert_eq!(colours(buffer(&mut model, USUAL, false)), 0);
}

#[test]
fn wide_letters_move_no_column() {
    let mut snapshot = fixture::busy();
    snapshot.processes[0].cmdline = Some("模型服务 --port 8000".into());
    let screen = screen(&mut model(&snapshot), USUAL);
    let columns = crate::report::escape::columns;
    let places: Vec<usize> = screen
        .lines()
        .skip(2)
        .take(3)
        .zip(["DOMAIN", "cuda ", "kernel "])
        .map(|(line, word)| columns(line.split(word).next().unwrap()))
        .collect();
    assert_eq!(places, [places[0]; 3], "{screen}");
}

proptest! {
    /// A program may call itself anything, a screen may have any size: nothing panics, and no
    /// cell holds what a terminal would obey.
    #[test]
    fn nothing_raw_reaches_a_terminal(
        name in any::<String>(),
        keys in "[jksrd/?p\n]{0,6}",
        width in 0u16..130,
        height in 0u16..45,
    ) {
        let mut snapshot = fixture::busy();
        snapshot.host.name.clone_from(&name);
        for process in &mut snapshot.processes {
            process.cmdline = Some(name.clone());
            process.comm.clone_from(&name);
            for site in &mut process.sites {
                site.frames = vec![fixture::frame(&name, &name, &name, 7)].into();
            }
        }
        for finding in &mut snapshot.findings {
            finding.function = Some(name.clone());
            finding.decided_by = vec![name.clone()];
        }
        let mut model = model(&snapshot);
        model.trouble = Some(name.clone());
        press(&mut model, &keys);
        let buffer = buffer(&mut model, (width.max(1), height.max(1)), true);
        for cell in &buffer.content {
            let symbol = cell.symbol();
            prop_assert!(!symbol.chars().any(char::is_control), "{symbol:?}");
            prop_assert_eq!(crate::report::escape::escape(symbol), symbol);
        }
    }
}
