//! What is known of the selected row, in words: what decided, how much it keeps, and its stack
//! from the user's own frame outwards. Pure; texts are escaped.

use super::rows::{Concerned, From, Row};
use super::wire::{Dump, Evidence, Finding, Frame, Site, from_the_users};
use crate::human;
use crate::report::escape::{escape, fit, wrap};
use crate::report::table::{Align, Table};
use crate::report::{frames, words};

/// A longer function name (C++ templates) would push the place off the line.
const WIDEST_NAME: usize = 56;

/// What a line of details is, so that it can be set apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What decided.
    Reason,
    /// A fact beside it.
    Fact,
    /// The user's own frame.
    Own,
    /// Another frame.
    Frame,
}

/// Frames that are shown where there is little room, and of the example of who called: the facts
/// below them are worth a line too.
const FEW: (usize, usize) = (4, 2);

/// Lines about a row, each at most `width` columns; `all`: with all frames.
pub fn lines(row: &Row, dump: &Dump, width: usize, all: bool) -> Vec<(Kind, String)> {
    let mut page = Page { lines: vec![], width, all };
    match row.from {
        From::Finding(index) => {
            if let Some(finding) = dump.findings.get(index) {
                of_finding(finding, dump, &mut page);
            }
        }
        From::Site(process, site) => {
            let process = dump.processes.get(process);
            if let Some(site) = process.and_then(|process| process.sites.get(site)) {
                stack(site, &mut page);
                facts(&[site], None, &mut page);
            }
        }
    }
    page.lines
}

struct Page {
    lines: Vec<(Kind, String)>,
    width: usize,
    all: bool,
}

impl Page {
    /// A text that must have been escaped, broken at the width.
    fn text(&mut self, kind: Kind, text: &str) {
        self.lines.extend(wrap(text, self.width).into_iter().map(|line| (kind, line)));
    }

    /// One line, a little to the right.
    fn frame(&mut self, kind: Kind, line: &str) {
        self.lines.push((kind, fit(&format!("  {line}"), self.width).into_owned()));
    }

    /// A text behind a mark; broken lines go on under it.
    fn item(&mut self, kind: Kind, text: &str) {
        let lines = wrap(text, self.width.saturating_sub(2)).into_iter().enumerate();
        self.lines.extend(lines.map(|(index, line)| {
            let mark = if index == 0 { "· " } else { "  " };
            (kind, format!("{mark}{line}"))
        }));
    }
}

fn of_finding(finding: &Finding, dump: &Dump, page: &mut Page) {
    for reason in &finding.decided_by {
        page.item(Kind::Reason, &escape(reason));
    }
    let concerned = Concerned::by(finding, dump);
    let site = concerned.sites.first().filter(|_| finding.level == "site");
    match (site, &finding.function) {
        (Some(site), _) => stack(site, page),
        (None, Some(function)) => page.frame(Kind::Own, &escape(function)),
        (None, None) => {}
    }
    let since = finding.since.strftime("%Y-%m-%d %H:%M:%S UTC");
    let end = finding.exhaustion.as_ref().map(|end| {
        format!("; {} is full in {} at this rate", escape(&end.of), human::duration(end.seconds))
    });
    page.text(Kind::Fact, &format!("since {since}{}", end.unwrap_or_default()));
    match site {
        Some(_) => facts(&concerned.sites, Some(&finding.evidence), page),
        None => floors(&finding.evidence, &mut vec![], page),
    }
}

fn facts(sites: &[&Site], evidence: Option<&Evidence>, page: &mut Page) {
    let live = sites.iter().map(|site| site.live_count).sum();
    let all = sites.iter().map(|site| site.allocations).sum();
    let oldest = sites.iter().filter_map(|site| site.oldest_age_seconds).reduce(f64::max);
    let mut facts: Vec<String> = words::kept(live, all, oldest).into_iter().collect();
    if let Some(site) = sites.first() {
        facts.push(format!("by {}", escape(&site.api)));
        facts.extend(site.id.as_ref().map(|id| format!("site {}", escape(id))));
        if !site.frames.is_empty() {
            facts.extend(site.note.as_deref().map(|note| escape(note).into_owned()));
        }
    }
    match evidence {
        Some(evidence) => floors(evidence, &mut facts, page),
        None => page.text(Kind::Fact, &facts.join("; ")),
    }
}

fn floors(evidence: &Evidence, facts: &mut Vec<String>, page: &mut Page) {
    let Evidence {
        floor_first_bytes: first,
        floor_last_bytes: last,
        windows,
        window_seconds,
        rising_windows,
    } = *evidence;
    if let (Some(first), Some(last)) = (first, last) {
        facts.push(words::floors(first, last, windows, window_seconds, rising_windows));
    }
    if !facts.is_empty() {
        page.text(Kind::Fact, &facts.join("; "));
    }
}

fn stack(site: &Site, page: &mut Page) {
    let own = from_the_users(&site.frames);
    if own.is_empty() {
        page.text(Kind::Frame, &escape(site.note.as_deref().unwrap_or(frames::NOT_NAMED)));
        return;
    }
    let incomplete = site.stack.as_ref().and_then(|stack| stack.reason.as_deref());
    let few = |few: usize| if page.all { usize::MAX } else { few };
    let (most, most_of_caller) = (few(FEW.0), few(FEW.1));
    table(own, most, incomplete, page);
    // Kernel frames alone are identity; a user stack is an example of who called.
    if let Some(sample) = site.sample.as_ref().filter(|_| site.domain == "kernel")
        && !sample.user_frames.is_empty()
    {
        page.text(Kind::Fact, "called, for example, from");
        table(from_the_users(&sample.user_frames), most_of_caller, None, page);
    }
}

/// Frames, and why there are no more where that is known.
fn table(frames: &[Frame], most: usize, incomplete: Option<&str>, page: &mut Page) {
    // A frame that nothing is known of is where a walk ended: said as such, not as a function.
    let known = frames.iter().take_while(|frame| frame.symbol.is_some() || frame.module.is_some());
    let (frames, ended) = frames.split_at(known.count());
    let mut table = Table::new([("", Align::Flexible(20)), ("", Align::Flexible(20))]);
    for frame in frames.iter().take(most) {
        let frame = frame.shown();
        let name = frames::name(&frame);
        table.row([fit(&name, WIDEST_NAME).into_owned(), frames::place(&frame)]);
    }
    let room = page.width.saturating_sub(2);
    for (index, line) in table.lines(Some(room)).iter().skip(1).enumerate() {
        let kind = if index == 0 { Kind::Own } else { Kind::Frame };
        page.frame(kind, line);
    }
    match frames.len().saturating_sub(most) {
        0 => {}
        1 => page.frame(Kind::Frame, "… 1 outer frame"),
        hidden => page.frame(Kind::Frame, &format!("… {hidden} outer frames")),
    }
    let ended = ended.first().and_then(|frame| frame.reason.as_deref());
    match (incomplete, ended) {
        (Some(reason), _) => {
            page.text(Kind::Fact, &format!("stack incomplete: {}", escape(reason)));
        }
        (None, Some(reason)) => page.text(Kind::Fact, &format!("({})", escape(reason))),
        (None, None) => {}
    }
}
