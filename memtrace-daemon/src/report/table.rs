//! Columns for a terminal: each as wide as its widest cell; where that is too wide, the
//! flexible ones give way, the widest first.

use super::escape::{columns, fit};

/// How a column is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Figures.
    Right,
    /// Words that may be cut, down to this many columns.
    Flexible(usize),
}

/// A table under construction. Cells must have been escaped.
#[derive(Clone, Debug)]
pub struct Table<const N: usize> {
    aligns: [Align; N],
    head: [&'static str; N],
    rows: Vec<[String; N]>,
}

/// Between two columns.
const GAP: usize = 2;

impl<const N: usize> Table<N> {
    /// A table with these columns.
    #[must_use]
    pub fn new(columns: [(&'static str, Align); N]) -> Self {
        Self {
            aligns: columns.map(|(_, align)| align),
            head: columns.map(|(head, _)| head),
            rows: vec![],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    /// The head and then one line a row, each at most `width` columns where that is possible.
    #[must_use]
    pub fn lines(&self, width: Option<usize>) -> Vec<String> {
        let widths = self.widths(width);
        let head = self.head.map(String::from);
        std::iter::once(&head).chain(&self.rows).map(|row| self.line(row, &widths)).collect()
    }

    fn widths(&self, width: Option<usize>) -> [usize; N] {
        let mut widths = self.head.map(columns);
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = columns(cell).max(*width);
            }
        }
        let Some(limit) = width else { return widths };
        loop {
            let total = widths.iter().sum::<usize>() + GAP * N.saturating_sub(1);
            let widest = widths
                .iter_mut()
                .zip(self.aligns)
                .filter(
                    |(width, align)| matches!(align, Align::Flexible(least) if **width > *least),
                )
                .max_by_key(|(width, _)| **width);
            match widest {
                Some((width, _)) if total > limit => *width -= 1,
                _ => return widths,
            }
        }
    }

    fn line(&self, cells: &[String; N], widths: &[usize; N]) -> String {
        let mut out = String::new();
        for ((cell, width), align) in cells.iter().zip(widths).zip(self.aligns) {
            if !out.is_empty() {
                out.push_str(&" ".repeat(GAP));
            }
            let cell = fit(cell, *width);
            let room = " ".repeat(width.saturating_sub(columns(&cell)));
            if align == Align::Right {
                out.push_str(&room);
                out.push_str(&cell);
            } else {
                out.push_str(&cell);
                out.push_str(&room);
            }
        }
        out.truncate(out.trim_end().len());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flexible_column_gives_way() {
        let mut table = Table::new([
            ("PROCESS", Align::Flexible(8)),
            ("LIVE", Align::Right),
            ("WHERE", Align::Flexible(6)),
        ]);
        table.row(["python3 serve.py --port 80".into(), "3.1 GiB".into(), "encode_prompt".into()]);
        table.row(["sh".into(), "2 B".into(), "main".into()]);
        insta::assert_snapshot!(table.lines(Some(40)).join("\n"), @r"
        PROCESS              LIVE  WHERE
        python3 serve.p…  3.1 GiB  encode_prompt
        sh                    2 B  main
        ");
        assert!(table.lines(Some(10)).iter().all(|line| columns(line) <= 8 + 2 + 7 + 2 + 6));
        assert!(table.lines(None).concat().contains("python3 serve.py --port 80"));
    }
}
