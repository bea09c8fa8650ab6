//! What `top` shows and what keys do to it. Pure: dumps, failures and keys come in, the view
//! reads it; no terminal, no socket and no clock.

use std::cmp::Ordering;
use std::ops::Range;
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::rows::{self, Key, Row};
use super::wire::Dump;

/// In which order rows are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Findings, worst first, then sites by live bytes.
    #[default]
    AsFound,
    /// Largest first.
    Live,
    /// Fastest first.
    Growth,
    /// By name.
    Process,
    /// By name.
    Domain,
}

impl Sort {
    fn next(self) -> Self {
        match self {
            Self::AsFound => Self::Live,
            Self::Live => Self::Growth,
            Self::Growth => Self::Process,
            Self::Process => Self::Domain,
            Self::Domain => Self::AsFound,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::AsFound => "as found",
            Self::Live => "live",
            Self::Growth => "growth",
            Self::Process => "process",
            Self::Domain => "domain",
        }
    }

    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let by_live = || b.live_bytes.cmp(&a.live_bytes);
        // What does not grow, as far as is known, comes last.
        let growth = |row: &Row| row.growth.unwrap_or(f64::NEG_INFINITY);
        match self {
            Self::AsFound => Ordering::Equal,
            Self::Live => by_live(),
            Self::Growth => growth(b).total_cmp(&growth(a)).then_with(by_live),
            Self::Process => a.process.cmp(&b.process).then_with(by_live),
            Self::Domain => a.domain.cmp(&b.domain).then_with(by_live),
        }
    }
}

/// What a key asks for beyond a change of what is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stay,
    Quit,
    /// Stop until the shell says to go on.
    Suspend,
    /// Draw everything anew.
    Redraw,
}

/// The state.
#[derive(Debug)]
pub struct Model {
    dump: Dump,
    rows: Vec<Row>,
    /// Which rows are shown, in order.
    shown: Vec<usize>,
    /// Which of those is selected.
    selected: usize,
    /// Whether somebody chose it. Until then it is the first, whichever that is: the worst.
    chosen: bool,
    /// The first that the last drawing had room for, and how many it had room for.
    first: usize,
    room: usize,
    pub sort: Sort,
    pub reverse: bool,
    /// Only this one.
    pub domain: Option<String>,
    /// Only rows with this text.
    pub filter: String,
    /// Whether keys go into the filter.
    pub typing: bool,
    pub help: bool,
    /// Whether the details have most of the screen.
    pub large_details: bool,
    pub paused: bool,
    /// Why there is no newer dump.
    pub trouble: Option<String>,
    /// How often there is one.
    pub every: Duration,
}

impl Model {
    pub fn new(dump: Dump, every: Duration) -> Self {
        let mut model = Self {
            rows: rows::of(&dump),
            dump,
            shown: vec![],
            selected: 0,
            chosen: false,
            first: 0,
            room: 1,
            sort: Sort::default(),
            reverse: false,
            domain: None,
            filter: String::new(),
            typing: false,
            help: false,
            large_details: false,
            paused: false,
            trouble: None,
            every,
        };
        model.arrange(None);
        model
    }

    /// Takes a newer dump; the selection stays on its row, wherever that is now.
    pub fn take(&mut self, dump: Dump, every: Duration) {
        let key = self.chosen();
        self.rows = rows::of(&dump);
        self.dump = dump;
        self.every = every;
        self.trouble = None;
        self.arrange(key.as_ref());
    }

    pub fn dump(&self) -> &Dump {
        &self.dump
    }

    pub fn selected(&self) -> Option<&Row> {
        self.rows.get(*self.shown.get(self.selected)?)
    }

    /// Rows in order, and how many there would be without filter and domain.
    pub fn counts(&self) -> (usize, usize) {
        (self.shown.len(), self.rows.len())
    }

    /// The rows that a table of this height shows, and which of them is selected.
    pub fn window(&mut self, height: usize) -> (Vec<&Row>, Option<usize>) {
        self.room = height.max(1);
        let last = self.shown.len().saturating_sub(self.room);
        let least = (self.selected + 1).saturating_sub(self.room);
        self.first = self.first.clamp(least, self.selected.max(least)).min(last);
        let range: Range<usize> = self.first..(self.first + height).min(self.shown.len());
        let shown = self.shown.get(range.clone()).unwrap_or_default();
        let rows = shown.iter().filter_map(|index| self.rows.get(*index)).collect();
        (rows, range.contains(&self.selected).then(|| self.selected - self.first))
    }

    /// Does what a key says.
    pub fn key(&mut self, key: KeyEvent) -> Outcome {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => return Outcome::Quit,
                KeyCode::Char('z') => return Outcome::Suspend,
                KeyCode::Char('l') => return Outcome::Redraw,
                KeyCode::Char('u') if self.typing => self.refilter(String::clear),
                _ => {}
            }
            return Outcome::Stay;
        }
        if self.help {
            self.help = false;
        } else if self.typing {
            self.type_into_filter(key.code);
        } else {
            return self.command(key.code);
        }
        Outcome::Stay
    }

    fn command(&mut self, code: KeyCode) -> Outcome {
        match code {
            KeyCode::Char('q') => return Outcome::Quit,
            KeyCode::Char('j') => self.go(self.selected.saturating_add(1)),
            KeyCode::Char('k') => self.go(self.selected.saturating_sub(1)),
            KeyCode::Char('g') => self.go(0),
            KeyCode::Char('G') => self.go(usize::MAX),
            KeyCode::Char('s') => self.rearrange(|model| model.sort = model.sort.next()),
            KeyCode::Char('r') => self.rearrange(|model| model.reverse = !model.reverse),
            KeyCode::Char('d') => self.rearrange(Self::next_domain),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char(' ') | KeyCode::Enter => self.large_details = !self.large_details,
            KeyCode::Esc => self.refilter(String::clear),
            other => self.go_by(other),
        }
        Outcome::Stay
    }

    fn type_into_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(character) => self.refilter(|filter| filter.push(character)),
            KeyCode::Backspace => {
                self.refilter(|filter| {
                    filter.pop();
                });
            }
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.refilter(String::clear);
            }
            other => self.go_by(other),
        }
    }

    fn go_by(&mut self, code: KeyCode) {
        // A row of the old page stays, so that an eye finds its place.
        let page = self.room.saturating_sub(1).max(1);
        match code {
            KeyCode::Down => self.go(self.selected.saturating_add(1)),
            KeyCode::Up => self.go(self.selected.saturating_sub(1)),
            KeyCode::PageDown => self.go(self.selected.saturating_add(page)),
            KeyCode::PageUp => self.go(self.selected.saturating_sub(page)),
            KeyCode::Home => self.go(0),
            KeyCode::End => self.go(usize::MAX),
            _ => {}
        }
    }

    fn go(&mut self, to: usize) {
        self.chosen = to > 0;
        self.select(to);
    }

    fn select(&mut self, to: usize) {
        self.selected = to.min(self.shown.len().saturating_sub(1));
    }

    /// The row that somebody chose.
    fn chosen(&self) -> Option<Key> {
        self.selected().filter(|_| self.chosen).map(|row| row.key.clone())
    }

    fn next_domain(&mut self) {
        let mut domains: Vec<&String> = self.rows.iter().map(|row| &row.domain).collect();
        domains.sort_unstable();
        domains.dedup();
        self.domain = match &self.domain {
            None => domains.first().copied().cloned(),
            Some(last) => domains.into_iter().find(|domain| *domain > last).cloned(),
        };
    }

    fn refilter(&mut self, change: impl FnOnce(&mut String)) {
        self.rearrange(|model| change(&mut model.filter));
    }

    fn rearrange(&mut self, change: impl FnOnce(&mut Self)) {
        let key = self.chosen();
        change(self);
        self.arrange(key.as_ref());
    }

    /// Chooses and sorts rows; then selects the row with this key, else what is in its place.
    fn arrange(&mut self, key: Option<&Key>) {
        let text = self.filter.to_lowercase();
        let wanted = |row: &Row| {
            self.domain.as_ref().is_none_or(|domain| row.domain == *domain)
                && (text.is_empty() || rows::has(row, &self.dump, &text))
        };
        let mut shown: Vec<(usize, &Row)> =
            self.rows.iter().enumerate().filter(|(_, row)| wanted(row)).collect();
        shown.sort_by(|(_, a), (_, b)| self.sort.compare(a, b));
        if self.reverse {
            shown.reverse();
        }
        let again = shown.iter().position(|(_, row)| Some(&row.key) == key);
        self.shown = shown.into_iter().map(|(index, _)| index).collect();
        self.select(again.unwrap_or(if self.chosen { self.selected } else { 0 }));
    }
}

#[cfg(test)]
mod tests;
