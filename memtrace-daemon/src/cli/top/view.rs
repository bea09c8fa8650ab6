//! The model on a screen of any size. Draws what it is given and decides nothing; every text
//! has been escaped before it comes here, or is escaped here.

mod columns;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph};

use super::details::{self, Kind};
use super::model::Model;
use super::wire::Dump;
use crate::human;
use crate::report::escape::{columns as width_of, escape, fit, wrap};

/// Below this height there is room for the table only.
const DETAILS_FROM: u16 = 8;
/// Lines of a banner, at most.
const BANNER: usize = 2;

/// How things are set apart. Without colour by bold, dim and reverse letters.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub colour: bool,
}

impl Look {
    fn coloured(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn warning(self) -> Style {
        self.coloured(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    fn banner(self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD | Modifier::REVERSED)
    }

    fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    fn verdict(self, verdict: &str) -> Style {
        match verdict {
            "LEAK" => self.coloured(Color::Red).add_modifier(Modifier::BOLD),
            "ORPHANED" | "GROWING" | "FRAGMENTATION" => {
                self.coloured(Color::Yellow).add_modifier(Modifier::BOLD)
            }
            "UNRELIABLE" => self.coloured(Color::Magenta).add_modifier(Modifier::BOLD),
            _ => Style::new(),
        }
    }
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, model: &mut Model, look: Look) {
    let area = frame.area();
    if area.is_empty() {
        return;
    }
    let mut above = Rows::new(area);
    head(frame, &mut above, model, look);
    let mut body = above.rest();
    let foot = body.split_bottom(1);
    if model.help {
        help(frame, body.rest(), look);
    } else {
        let height = body.rest().height;
        let details_height = match model.large_details {
            true => height.saturating_sub(4),
            false if height < DETAILS_FROM => 0,
            false => height / 2,
        };
        let details_area = body.split_bottom(details_height);
        table(frame, body.rest(), model, look);
        details(frame, details_area, model, look);
    }
    footer(frame, foot, model, look);
}

/// An area that is given away line by line.
struct Rows(Rect);

impl Rows {
    fn new(area: Rect) -> Self {
        Self(area)
    }

    fn line(&mut self) -> Rect {
        let line = Rect { height: self.0.height.min(1), ..self.0 };
        self.0.y += line.height;
        self.0.height -= line.height;
        line
    }

    fn split_bottom(&mut self, height: u16) -> Rect {
        let height = height.min(self.0.height);
        self.0.height -= height;
        Rect { y: self.0.y + self.0.height, height, ..self.0 }
    }

    fn rest(&self) -> Self {
        Self(self.0)
    }
}

impl std::ops::Deref for Rows {
    type Target = Rect;

    fn deref(&self) -> &Rect {
        &self.0
    }
}

/// One text at the left, another at the right if there is room for both.
fn both_ends(frame: &mut Frame<'_>, area: Rect, left: (&str, Style), right: (&str, Style)) {
    let room = usize::from(area.width);
    let least = width_of(right.0) + 2;
    // The right one is short and matters; where it would take half of the line it goes.
    let (left_text, right_text) = match (width_of(left.0) + least <= room, least * 2 <= room) {
        (true, _) => (left.0.into(), right.0),
        (false, true) => (fit(left.0, room.saturating_sub(least)), right.0),
        (false, false) => (fit(left.0, room), ""),
    };
    let gap = room.saturating_sub(width_of(&left_text) + width_of(right_text));
    let line = Line::from(vec![
        Span::styled(left_text.into_owned(), left.1),
        Span::raw(" ".repeat(gap)),
        Span::styled(right_text.to_owned(), right.1),
    ]);
    frame.render_widget(line, area);
}

fn head(frame: &mut Frame<'_>, rows: &mut Rows, model: &Model, look: Look) {
    let dump = model.dump();
    let watched = dump.generated_at.duration_since(dump.attached_at).as_secs_f64();
    let host = format!(
        "memtrace top · {} · watched for {}",
        escape(&dump.host.name),
        human::duration(watched)
    );
    let time = dump.generated_at.strftime("%H:%M:%S UTC");
    let every = human::duration(model.every.as_secs_f64());
    let (state, style) = match (model.paused, &model.trouble) {
        (true, _) => (format!("PAUSED at {time}"), look.warning()),
        (false, Some(_)) => (format!("as it was at {time}"), look.warning()),
        (false, None) => (format!("{time} · every {every}"), look.dim()),
    };
    both_ends(frame, rows.line(), (&host, look.bold()), (&state, style));
    let (text, style) = match lost(dump) {
        Some(lost) => (format!("{} · {lost}", findings(dump)), look.coloured(Color::Yellow)),
        None => (format!("{} · lost nothing", findings(dump)), Style::new()),
    };
    let (shown, all) = model.counts();
    let count = match shown == all {
        true => human::counted(all as u64, "row"),
        false => format!("{} of {}", human::count(shown as u64), human::counted(all as u64, "row")),
    };
    both_ends(frame, rows.line(), (&text, style), (&count, look.dim()));
    if let Some(trouble) = model.trouble.as_ref().filter(|_| !model.paused) {
        let text = format!("{}; trying again", escape(trouble));
        let lines = wrap(&text, usize::from(rows.width));
        let more = lines.len() > BANNER;
        for (index, line) in lines.iter().take(BANNER).enumerate() {
            let cut = more && index + 1 == BANNER;
            let line = if cut { format!("{line} …") } else { line.clone() };
            let area = rows.line();
            let line = fit(&line, usize::from(area.width)).into_owned();
            frame.render_widget(Paragraph::new(line).style(look.banner()), area);
        }
    }
}

/// Findings by verdict, in the order of the first of each, which is the worst.
fn findings(dump: &Dump) -> String {
    let mut counts: Vec<(&str, u64)> = vec![];
    for finding in &dump.findings {
        match counts.iter_mut().find(|(verdict, _)| *verdict == finding.verdict) {
            Some((_, count)) => *count += 1,
            None => counts.push((&finding.verdict, 1)),
        }
    }
    if counts.is_empty() {
        return "no findings".into();
    }
    let said: Vec<_> =
        counts.iter().map(|(verdict, count)| format!("{count} {}", escape(verdict))).collect();
    format!("findings: {}", said.join(", "))
}

fn lost(dump: &Dump) -> Option<String> {
    let lost: Vec<_> = dump.loss.iter().filter(|(_, loss)| loss.count > 0).collect();
    let sum = lost.iter().fold(0u64, |sum, (_, loss)| sum.saturating_add(loss.count));
    let causes: Vec<_> = lost.iter().map(|(cause, _)| escape(cause)).collect();
    (sum > 0).then(|| format!("lost {}: {}", human::counted(sum, "event"), causes.join(", ")))
}

fn table(frame: &mut Frame<'_>, mut area: Rows, model: &mut Model, look: Look) {
    let head = area.line();
    let height = usize::from(area.height);
    let (nothing, all) = model.counts();
    let (rows, selected) = model.window(height);
    let table = columns::Table::of(&rows, usize::from(head.width));
    frame.render_widget(
        Line::styled(table.head(), look.bold().add_modifier(Modifier::UNDERLINED)),
        head,
    );
    if nothing == 0 {
        let why = match all {
            0 => "nothing is on the books yet",
            _ => "no row fits; Esc clears the filter, d changes the domain",
        };
        frame.render_widget(Line::styled(why, look.dim()), area.line());
        return;
    }
    for (index, row) in rows.iter().enumerate() {
        let (verdict, rest) = table.row(row);
        let line = area.line();
        let (first, second) = match (Some(index) == selected, row.is_finding()) {
            (true, _) => (look.selected(), look.selected()),
            (false, true) => (look.verdict(&row.verdict), Style::new()),
            (false, false) => (look.dim(), Style::new()),
        };
        let mut spans = vec![Span::styled(verdict, first), Span::styled(rest, second)];
        let used: usize = spans.iter().map(Span::width).sum();
        spans.push(Span::styled(" ".repeat(usize::from(line.width).saturating_sub(used)), second));
        frame.render_widget(Line::from(spans), line);
    }
}

fn details(frame: &mut Frame<'_>, area: Rect, model: &Model, look: Look) {
    let mut area = Rows::new(area);
    if area.is_empty() {
        return;
    }
    let width = usize::from(area.width);
    let title = match model.selected() {
        Some(row) => format!("── {} · {} ", row.process, row.function),
        None => String::new(),
    };
    let title = fit(&title, width).into_owned();
    let rule = "─".repeat(width.saturating_sub(width_of(&title)));
    frame.render_widget(Line::styled(format!("{title}{rule}"), look.dim()), area.line());
    let Some(row) = model.selected() else { return };
    let room = usize::from(area.height);
    let mut lines = details::lines(row, model.dump(), width, true);
    if lines.len() > room && !model.large_details {
        lines = details::lines(row, model.dump(), width, false);
    }
    let cut = lines.len() > room;
    let whole = if cut { room.saturating_sub(1) } else { room };
    for (kind, line) in lines.iter().take(whole) {
        let style = match kind {
            Kind::Reason => Style::new(),
            Kind::Own => look.bold(),
            Kind::Fact | Kind::Frame => look.dim(),
        };
        frame.render_widget(Line::styled(line.as_str(), style), area.line());
    }
    if cut {
        let more = human::counted((lines.len() - whole) as u64, "more line");
        let how = if model.large_details { "" } else { ": Enter shows them" };
        let more = fit(&format!("… {more}{how}"), width).into_owned();
        frame.render_widget(Line::styled(more, look.dim()), area.line());
    }
}

fn footer(frame: &mut Frame<'_>, area: Rect, model: &Model, look: Look) {
    let room = usize::from(area.width);
    if model.typing {
        let text = format!("/{}", escape(&model.filter));
        let how = "Enter keeps, Esc clears";
        both_ends(frame, area, (&format!("{text}▏"), look.bold()), (how, look.dim()));
        return;
    }
    let reverse = if model.reverse { " reversed" } else { "" };
    let domain = model.domain.as_deref().unwrap_or("all");
    let mut keys = vec![
        "q quit".to_owned(),
        "? help".to_owned(),
        format!("s sort: {}{reverse}", model.sort.name()),
        format!("d domain: {domain}"),
        (if model.paused { "p go on" } else { "p pause" }).to_owned(),
        "r reverse".to_owned(),
        "Enter details".to_owned(),
    ];
    // A filter that is on must not be overlooked, so it comes early.
    match model.filter.as_str() {
        "" => keys.insert(4, "/ filter".to_owned()),
        text => {
            keys.insert(1, format!("/ filter: {} (Esc clears)", fit(&escape(text), room / 3)));
        }
    }
    // As many as there is room for.
    let mut text = String::new();
    for key in keys {
        let next = if text.is_empty() { key } else { format!("{text}  {key}") };
        if width_of(&next) <= room {
            text = next;
        }
    }
    frame.render_widget(Line::styled(text, look.dim()), area);
}

const HELP: &[(&str, &str)] = &[
    ("↑ ↓  j k", "one row up or down"),
    ("PgUp PgDn", "a page up or down"),
    ("Home End  g G", "the first row, the last"),
    ("s", "sort: as found, live, growth, process, domain"),
    ("r", "the other way round"),
    ("/", "only rows with a text: process, function, domain, verdict"),
    ("d", "only one domain: the next one, then all again"),
    ("Enter  Space", "more room for the stack, and back"),
    ("p", "pause: the picture stays as it is, and back"),
    ("Esc", "clear the filter"),
    ("q  Ctrl-C", "quit"),
    ("", ""),
    ("", "Rows in capitals are findings, worst first; the others are"),
    ("", "sites by what they hold. SURE is from 0 to 1."),
    ("", "Any key closes this."),
];

fn help(frame: &mut Frame<'_>, mut area: Rows, look: Look) {
    frame.render_widget(Clear, *area);
    for (keys, what) in HELP {
        let line = area.line();
        if line.is_empty() {
            return;
        }
        let room = usize::from(line.width).saturating_sub(16);
        let what = fit(what, room).into_owned();
        let spans = vec![Span::styled(format!("{keys:<16}"), look.bold()), Span::raw(what)];
        frame.render_widget(Line::from(spans), line);
    }
}

#[cfg(test)]
mod tests;
