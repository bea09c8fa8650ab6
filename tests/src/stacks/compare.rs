//! Sites of a dump held against the notes of the program, as a table: found depth / true depth,
//! whole or not, how it was taken. Places are compared exactly, names as functions.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::names::{Names, same};
use super::notes::{Note, Notes};
use crate::dump::{Frame, Process, Site};

/// What a frame's name must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// That of the function, with the names of the functions inlined in it.
    Exact,
    /// None, or the right one: a stripped file may still export some.
    NotWrong,
}

/// What a stack must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Equal to the noted one, and said to be whole.
    Whole,
    /// The noted one from its inner end on, and said to be cut off, with a reason: nobody who
    /// sees what memtrace sees can know that there is no more.
    CutOff,
}

/// Compares the sites of one process after the other, and keeps the table.
#[derive(Debug, Default)]
pub struct Table {
    lines: Vec<String>,
    wrong: Vec<String>,
}

/// One row's comparison.
#[derive(Clone, Copy, Debug)]
struct Pair<'a> {
    site: &'a Site,
    note: &'a Note,
    names: &'a Names,
    wanted: Wanted,
}

/// What is compared with what.
#[derive(Debug)]
pub struct Comparison<'a> {
    /// What the lines of the table begin with.
    pub variant: &'a str,
    /// The books.
    pub process: &'a Process,
    /// The truth.
    pub notes: &'a Notes,
    /// Names of functions.
    pub names: &'a Names,
    /// What is asked of names.
    pub wanted: Wanted,
    /// Notes of which a part is all that can be had, or of which nothing says that it is all.
    pub cut_off: &'a [&'a str],
}

impl Table {
    /// Holds all sites of a process in domain `cuda` against its notes, and adds a line for each.
    pub fn add(&mut self, comparison: &Comparison<'_>) {
        for note in &comparison.notes.notes {
            let cut = comparison.cut_off.contains(&note.name.as_str());
            let depth = if cut { Depth::CutOff } else { Depth::Whole };
            self.add_note(comparison, note, depth);
        }
        let known = comparison.notes.notes.len();
        let rows = comparison.process.sites("cuda").count();
        if rows != known {
            self.wrong(comparison.variant, &format!("{rows} sites, {known} notes"));
        }
    }

    fn add_note(&mut self, comparison: &Comparison<'_>, note: &Note, depth: Depth) {
        let variant = format!("{} | {}", comparison.variant, note.name);
        let site = match site_of(comparison.process, note) {
            Ok(site) => site,
            Err(error) => return self.wrong(&variant, &format!("{error:#}")),
        };
        let (names, wanted) = (comparison.names, comparison.wanted);
        let pair = Pair { site, note, names, wanted };
        let (whole, by) = site.stack.as_ref().map_or(("?", "?"), |stack| {
            (if stack.complete { "whole" } else { "cut off" }, stack.taken.as_str())
        });
        let (found, truly) = (site.calls().len(), note.frames.len());
        self.lines.push(format!("{variant} | {found} / {truly} | {whole} | {by}"));
        if let Err(error) = pair.check(depth) {
            self.wrong(&variant, &format!("{error:#}"));
        }
    }

    fn wrong(&mut self, variant: &str, what: &str) {
        self.wrong.push(format!("{variant}: {what}"));
    }

    /// Adds a line that is no comparison with notes, and what is wrong with it.
    pub fn add_line(&mut self, line: String, result: anyhow::Result<()>) {
        if let Err(error) = result {
            self.wrong(&line, &format!("{error:#}"));
        }
        self.lines.push(line);
    }

    /// Prints the table.
    ///
    /// # Errors
    ///
    /// Everything that was wrong.
    pub fn finish(self) -> anyhow::Result<()> {
        println!("variant | call | depth found / true depth | whole | by");
        for line in &self.lines {
            println!("{line}");
        }
        ensure!(!self.lines.is_empty(), "nothing was compared");
        let wrong = self.wrong.len();
        ensure!(wrong == 0, "{wrong} are wrong:\n{}", self.wrong.join("\n"));
        Ok(())
    }
}

/// The site whose amount is that of a note.
///
/// # Errors
///
/// When there is none, or more than one.
pub fn site_of<'a>(process: &'a Process, note: &Note) -> anyhow::Result<&'a Site> {
    let mut rows = process.sites("cuda").filter(|site| site.allocated_bytes == note.bytes);
    let site = rows.next().with_context(|| {
        let known: Vec<u64> = process.sites("cuda").map(|site| site.allocated_bytes).collect();
        format!("no site of {} bytes, there are {known:?}", note.bytes)
    })?;
    ensure!(rows.next().is_none(), "two sites of {} bytes", note.bytes);
    ensure!(site.allocations == 1, "{} allocations", site.allocations);
    Ok(site)
}

impl Pair<'_> {
    fn check(&self, depth: Depth) -> anyhow::Result<()> {
        let Self { site, note, .. } = *self;
        let stack = site.stack.as_ref().context("it is not said how the stack was taken")?;
        let calls = site.calls();
        match depth {
            Depth::Whole => {
                let reason = &stack.reason;
                ensure!(stack.complete, "not whole: {reason:?}\n{}", self.both());
                ensure!(reason.is_none(), "whole, and yet {reason:?}");
                ensure!(calls.len() == note.frames.len(), "other depth\n{}", self.both());
            }
            Depth::CutOff => {
                ensure!(!stack.complete, "called whole, which it is not\n{}", self.both());
                ensure!(stack.reason.is_some(), "cut off, and no reason");
                ensure!(!calls.is_empty() && calls.len() <= note.frames.len(), "{}", self.both());
            }
        }
        for (index, call) in calls.iter().enumerate() {
            self.check_frame(index, call)
                .with_context(|| format!("frame {index}\n{}", self.both()))?;
        }
        Ok(())
    }

    fn check_frame(&self, index: usize, call: &[Frame]) -> anyhow::Result<()> {
        let truth = self.note.frames.get(index).context("beyond the end")?;
        let frame = call.last().context("no frame")?;
        // Code in no file has no place that both know.
        if !truth.module.as_os_str().is_empty() && truth.module.is_absolute() {
            let module = frame.module.as_deref().map(Path::new);
            ensure!(module == Some(truth.module.as_path()), "another file: {module:?}");
            let offset = frame.offset.context("no offset")?;
            if index == 0 {
                // The note was taken by one call, the allocation made by the next one.
                let between = offset.checked_sub(truth.offset);
                ensure!(between.is_some_and(|bytes| bytes > 0 && bytes < 256), "other call");
            } else {
                ensure!(offset == truth.offset, "offset {offset:#x}, truly {:#x}", truth.offset);
            }
        }
        let Some(names) = self.names.at(self.note, index) else { return Ok(()) };
        self.check_names(names, call)
    }

    fn check_names(&self, names: &[String], call: &[Frame]) -> anyhow::Result<()> {
        let found: Vec<Option<&str>> = call.iter().map(|frame| frame.symbol.as_deref()).collect();
        let equal = match self.wanted {
            Wanted::Exact => {
                let mut both = names.iter().zip(&found).skip(usize::from(is_slip(names)));
                names.len() == found.len()
                    && both.all(|(name, found)| found.is_some_and(|found| same(found, name)))
            }
            Wanted::NotWrong => match (found.as_slice(), names.last()) {
                ([None], _) => call.iter().all(|frame| frame.reason.is_some()),
                ([Some(found)], Some(name)) => same(found, name),
                _ => false,
            },
        };
        ensure!(equal, "named {found:?}, truly {names:?}");
        Ok(())
    }

    /// Both stacks, side by side, as far as that helps a reader.
    fn both(&self) -> String {
        const SHOWN: usize = 24;
        let calls = self.site.calls();
        let mut out = String::new();
        for index in 0..calls.len().max(self.note.frames.len()).min(SHOWN) {
            let found = calls.get(index).and_then(|call| call.last()).map(shown);
            let truth = self.note.frames.get(index).map(|place| {
                let names = self.names.at(self.note, index).unwrap_or_default();
                format!("{}+{:#x} {}", file(&place.module), place.offset, names.join(" < "))
            });
            let (found, truth) = (found.unwrap_or_default(), truth.unwrap_or_default());
            // Writing to a String cannot fail.
            let _ = writeln!(out, "    {index:3}  {found:60}  {truth}");
        }
        out
    }
}

/// addr2line names an inlined function without a symbol, such as a lambda, after the symbol that
/// it is inlined in, although that comes once more at the end.
fn is_slip(names: &[String]) -> bool {
    match names {
        [first, .., last] => same(first, last),
        _ => false,
    }
}

fn shown(frame: &Frame) -> String {
    let module = file(Path::new(frame.module.as_deref().unwrap_or("?")));
    let name = frame.symbol.as_deref().or(frame.reason.as_deref()).unwrap_or("?");
    format!("{module}+{:#x} {name}", frame.offset.unwrap_or_default())
}

fn file(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The names of each note's frames, for a program whose own notes are of no use: those of a twin.
#[must_use]
pub fn names_by_note(notes: &Notes, names: &Names) -> BTreeMap<String, Vec<Vec<String>>> {
    let of = |note: &Note| {
        let frames = 0..note.frames.len();
        frames.map(|index| names.at(note, index).unwrap_or_default().to_vec()).collect()
    };
    notes.notes.iter().map(|note| (note.name.clone(), of(note))).collect()
}

/// The path of a file as mappings show it.
///
/// # Errors
///
/// When it is not there.
pub fn real(path: &Path) -> anyhow::Result<PathBuf> {
    std::fs::canonicalize(path).with_context(|| format!("no {}", path.display()))
}
