//! The columns of the table: as wide as what they hold, the flexible ones giving way; where that
//! does not do, the least important ones go.

use super::super::rows::Row;
use crate::human;
use crate::report::escape::{columns as width_of, fit};

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Verdict,
    Process,
    Pid,
    Domain,
    Live,
    Growth,
    ExhaustedIn,
    Sure,
    Function,
}

/// All, as they stand from left to right.
const ALL: [Column; 9] = [
    Column::Verdict,
    Column::Process,
    Column::Pid,
    Column::Domain,
    Column::Live,
    Column::Growth,
    Column::ExhaustedIn,
    Column::Sure,
    Column::Function,
];
/// What goes where there is too little room, the first first.
const GO: [Column; 7] = [
    Column::Function,
    Column::Sure,
    Column::ExhaustedIn,
    Column::Pid,
    Column::Growth,
    Column::Domain,
    Column::Verdict,
];
/// From this width on there is room for the function, and for two spaces between columns.
const WIDE: usize = 100;

impl Column {
    fn head(self) -> &'static str {
        match self {
            Self::Verdict => "VERDICT",
            Self::Process => "PROCESS",
            Self::Pid => "PID",
            Self::Domain => "DOMAIN",
            Self::Live => "LIVE",
            Self::Growth => "GROWTH",
            Self::ExhaustedIn => "EXHAUSTED IN",
            Self::Sure => "SURE",
            Self::Function => "FUNCTION",
        }
    }

    /// At least so wide whatever it holds: columns that jump are hard to read.
    fn usual(self) -> usize {
        match self {
            Self::Verdict | Self::Live => 8,
            Self::Process => 16,
            Self::Pid => 5,
            Self::Domain => 7,
            Self::Growth | Self::ExhaustedIn => 12,
            Self::Sure => 4,
            Self::Function => 20,
        }
    }

    /// Down to this it may be cut; `None` for what is of no use when cut.
    fn least(self) -> Option<usize> {
        match self {
            Self::Process => Some(14),
            Self::ExhaustedIn => Some(12),
            Self::Function => Some(20),
            _ => None,
        }
    }

    fn right(self) -> bool {
        matches!(self, Self::Pid | Self::Live | Self::Growth | Self::Sure)
    }

    fn cell(self, row: &Row) -> String {
        match self {
            Self::Verdict => row.verdict.clone(),
            Self::Process => row.process.clone(),
            Self::Pid => row.pids.clone(),
            Self::Domain => row.domain.clone(),
            Self::Live => human::bytes(row.live_bytes),
            Self::Growth => row.growth.map_or_else(|| "?".into(), human::growth),
            Self::ExhaustedIn => row.exhausted_in.clone(),
            Self::Sure => row.sure.clone(),
            Self::Function => row.function.clone(),
        }
    }
}

/// Columns and their widths.
pub(super) struct Table {
    columns: Vec<(Column, usize)>,
    gap: usize,
    narrow: bool,
}

impl Table {
    /// For these rows, at most so wide.
    pub(super) fn of(rows: &[&Row], room: usize) -> Self {
        let narrow = room < WIDE;
        let gap = if narrow { 1 } else { 2 };
        let mut columns: Vec<(Column, usize)> = ALL
            .into_iter()
            .filter(|column| *column != Column::Function || !narrow)
            .map(|column| {
                let usual = width_of(column.head()).max(column.usual());
                // In a narrow table the process needs the room more.
                let cells = rows.iter().filter(|_| !(narrow && column == Column::ExhaustedIn));
                (column, cells.map(|row| width_of(&column.cell(row))).fold(usual, usize::max))
            })
            .collect();
        let mut go = GO.into_iter();
        loop {
            let least: usize =
                columns.iter().map(|(column, width)| column.least().unwrap_or(*width)).sum();
            if least + gaps(&columns, gap) <= room {
                break;
            }
            let Some(next) = go.next() else { break };
            columns.retain(|(column, _)| *column != next);
        }
        let mut table = Self { columns, gap, narrow };
        table.fit(room);
        table
    }

    /// Cuts the flexible columns, the widest first, or gives the function what is left.
    fn fit(&mut self, room: usize) {
        loop {
            let total = self.width();
            let widest = self
                .columns
                .iter_mut()
                .filter(|(column, width)| column.least().is_some_and(|least| *width > least))
                .max_by_key(|(_, width)| *width);
            match widest {
                Some((_, width)) if total > room => *width -= 1,
                _ => return,
            }
        }
    }

    fn width(&self) -> usize {
        let cells: usize = self.columns.iter().map(|(_, width)| width).sum();
        cells + gaps(&self.columns, self.gap)
    }

    pub(super) fn head(&self) -> String {
        self.line(None)
    }

    /// The verdict, and what is behind it.
    pub(super) fn row(&self, row: &Row) -> (String, String) {
        let mut line = self.line(Some(row));
        let verdict = match self.columns.first() {
            Some((Column::Verdict, width)) => *width,
            _ => 0,
        };
        // A verdict is ASCII, as far as this version knows them.
        let split = line.char_indices().nth(verdict).map_or(line.len(), |(index, _)| index);
        let rest = line.split_off(split);
        (line, rest)
    }

    fn line(&self, row: Option<&Row>) -> String {
        let mut line = String::new();
        let mut columns = self.columns.iter().copied().peekable();
        while let Some((column, mut width)) = columns.next() {
            let cell = row.map_or_else(|| column.head().to_owned(), |row| self.cell(column, row));
            // A site has no time to exhaustion and often no confidence: room for its function.
            if column == Column::ExhaustedIn
                && row.is_some_and(|row| !row.is_finding() && row.sure.is_empty())
                && let Some((_, next)) = columns.next_if(|(column, _)| *column == Column::Sure)
            {
                width += self.gap + next;
            }
            let cell = fit(&cell, width);
            let room = " ".repeat(width.saturating_sub(width_of(&cell)));
            if !line.is_empty() {
                line.push_str(&" ".repeat(self.gap));
            }
            if column.right() {
                line.push_str(&room);
                line.push_str(&cell);
            } else {
                line.push_str(&cell);
                line.push_str(&room);
            }
        }
        line
    }

    fn cell(&self, column: Column, row: &Row) -> String {
        match column {
            // The function has no column of its own.
            Column::ExhaustedIn if self.narrow && !row.is_finding() => row.function.clone(),
            // The details say of what.
            Column::ExhaustedIn if self.narrow => {
                row.exhausted_in.split(" (").next().unwrap_or_default().to_owned()
            }
            other => other.cell(row),
        }
    }
}

fn gaps(columns: &[(Column, usize)], gap: usize) -> usize {
    gap * columns.len().saturating_sub(1)
}
