//! The report for people: findings worst first, then what is merely large, then what was kept
//! at exit, then the books and a line each for what could make them wrong.

mod books;
mod findings;
mod foot;
mod kept;
mod large;
mod stack;

use std::io::{self, Write};

pub use books::{device_line, domain_lines};
pub use foot::loss_lines;
pub(in crate::report) use foot::{meaning, sampling, subject};

use super::escape::{columns, escape, wrap};
use super::words;
use crate::human;
use crate::snapshot::{Process, Snapshot};

/// Narrower terminals get lines that break: below this a table says nothing.
const NARROWEST: usize = 60;
/// Wider than this, an eye loses its line.
const WIDEST: usize = 100;

/// Where the lines go, and how wide they may be.
pub(super) struct Page<'a> {
    out: &'a mut dyn Write,
    width: Option<usize>,
}

impl Page<'_> {
    fn line(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.out, "{}", line.trim_end())
    }

    /// A heading, after an empty line.
    fn heading(&mut self, text: &str) -> io::Result<()> {
        self.line("")?;
        self.line(text)
    }

    /// A text behind a label; broken lines go on under the text.
    fn labelled(&mut self, label: &str, text: &str) -> io::Result<()> {
        for line in labelled(label, text, self.width) {
            self.line(&line)?;
        }
        Ok(())
    }
}

/// Columns that labels take, the gap included.
const LABEL: usize = 12;

/// A text behind a label, broken at `width`.
pub(in crate::report) fn labelled(label: &str, text: &str, width: Option<usize>) -> Vec<String> {
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(LABEL));
    wrap(text, room)
        .into_iter()
        .enumerate()
        .map(|(row, part)| format!("{:<LABEL$}{part}", if row == 0 { label } else { "" }))
        .collect()
}

/// Writes the report.
///
/// # Errors
///
/// What came back from writing.
pub fn write(snapshot: &Snapshot, width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    let mut out = io::BufWriter::new(out);
    let width = width.map(|width| width.clamp(NARROWEST, WIDEST));
    let mut page = Page { out: &mut out, width };
    page.labelled("memtrace", &title(snapshot))?;
    if let Some(line) = stopped(snapshot.stopped_at) {
        page.labelled("STOPPED", &line)?;
    }
    findings::write(snapshot, &mut page)?;
    large::write(snapshot, &mut page)?;
    kept::write(snapshot, &mut page)?;
    books::write(snapshot, &mut page)?;
    foot::write(snapshot, &mut page)?;
    out.flush()
}

/// That tracing is stopped, if it is.
#[must_use]
pub fn stopped(at: Option<jiff::Timestamp>) -> Option<String> {
    let at = at?.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
    Some(format!("since {at}: nothing is traced; `memtrace resume` has it go on"))
}

fn title(snapshot: &Snapshot) -> String {
    let watched = snapshot.generated_at.duration_since(snapshot.attached_at).as_secs_f64();
    format!(
        "{} · Linux {} · {} · watched for {}",
        escape(&snapshot.host.name),
        escape(&snapshot.host.kernel),
        snapshot.generated_at.strftime("%Y-%m-%d %H:%M:%S UTC"),
        human::duration(watched),
    )
}

/// What a person calls a process.
fn called(process: &Process) -> String {
    words::process(process.cmdline.as_deref(), &process.comm, process.ended)
}

/// The rest of a list that is not shown.
fn more(hidden: usize, what: &str) -> String {
    format!("… and {} more, in the JSON dump", human::counted(hidden as u64, what))
}

/// Indents lines, cut to the width of the page.
fn indented(text: &str, by: usize, width: Option<usize>) -> Vec<String> {
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(by));
    let lines = if columns(text) > room { wrap(text, room) } else { vec![text.to_owned()] };
    lines.into_iter().map(|line| format!("{}{line}", " ".repeat(by))).collect()
}
