//! A site's stack, from the user's own frame outwards.

use std::io;

use super::{Page, indented};
use crate::report::escape::escape;
use crate::report::frames::{NOT_NAMED, from_the_users, name, place};
use crate::report::table::{Align, Table};
use crate::snapshot::{Frame, Site};

/// Frames of one kind that are shown; outer ones are the interpreter's or libc's start.
const SHOWN: usize = 8;
/// The same in a file, where nobody has to scroll.
const SHOWN_IN_A_FILE: usize = 32;
/// A longer function name (C++ templates) would push the place off the page.
const WIDEST_NAME: usize = 56;

pub(super) fn write(site: &Site, indent: usize, page: &mut Page<'_>) -> io::Result<()> {
    let margin = " ".repeat(indent);
    if site.frames.is_empty() {
        return page.line(&format!("{margin}{}", site.note.unwrap_or(NOT_NAMED)));
    }
    let incomplete = site.stack.as_ref().and_then(|stack| stack.incomplete.as_deref());
    frames(&from_the_users(&site.frames), incomplete, indent, page)?;
    // Kernel frames alone are identity; a user stack is an example of who called.
    if let Some(sample) = site.samples.first().filter(|_| site.domain == "kernel")
        && !sample.user_frames.is_empty()
    {
        page.line(&format!("{margin}called, for example, from"))?;
        frames(&from_the_users(&sample.user_frames), None, indent + 2, page)?;
    }
    Ok(())
}

/// Frames, and why there are no more where that is known.
fn frames(
    frames: &[&Frame],
    incomplete: Option<&str>,
    indent: usize,
    page: &mut Page<'_>,
) -> io::Result<()> {
    // A frame that nothing is known of is where a walk ended: said as such, not as a function.
    let known = frames.iter().take_while(|frame| frame.symbol.is_some() || frame.module.is_some());
    let (frames, ended) = frames.split_at(known.count());
    let mut table = Table::new([("", Align::Flexible(20)), ("", Align::Flexible(20))]);
    let shown = if page.width.is_some() { SHOWN } else { SHOWN_IN_A_FILE };
    for frame in frames.iter().take(shown) {
        let name = name(frame);
        let name = match page.width {
            Some(_) => crate::report::escape::fit(&name, WIDEST_NAME).into_owned(),
            None => name,
        };
        table.row([name, place(frame)]);
    }
    let width = page.width.map(|width| width.saturating_sub(indent));
    let margin = " ".repeat(indent);
    for line in table.lines(width).iter().skip(1) {
        page.line(&format!("{margin}{line}"))?;
    }
    match frames.len().saturating_sub(shown) {
        0 => {}
        1 => page.line(&format!("{margin}… 1 outer frame"))?,
        hidden => page.line(&format!("{margin}… {hidden} outer frames"))?,
    }
    let ended = ended.first().and_then(|frame| frame.reason.as_deref());
    let why = match (incomplete, ended) {
        (Some(reason), _) => format!("stack incomplete: {}", escape(reason)),
        (None, Some(reason)) => format!("({})", escape(reason)),
        (None, None) => return Ok(()),
    };
    for line in indented(&why, indent, page.width) {
        page.line(&line)?;
    }
    Ok(())
}
