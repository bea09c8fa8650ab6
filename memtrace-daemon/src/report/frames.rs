//! Frames as people read them: which one is the user's own, and how one is written.

use super::escape::escape;
use crate::snapshot::{Frame, FrameKind, Frames, Site};

/// The frames from the user's own outwards: what an allocator did is not news. If all are
/// the allocator's, all of them.
#[must_use]
pub fn from_the_users(frames: &Frames) -> Vec<&Frame> {
    let own = frames.iter().position(|frame| !frame.allocator).unwrap_or(0);
    frames.iter().skip(own).collect()
}

/// What a frame is called: its function, else module and offset.
#[must_use]
pub fn name(frame: &Frame) -> String {
    match (&frame.symbol, frame.kind, frame.offset) {
        (Some(symbol), FrameKind::Kernel, Some(offset)) => {
            format!("{}+{offset:#x}", escape(symbol))
        }
        (Some(symbol), _, _) => escape(symbol).into_owned(),
        (None, _, Some(offset)) => format!("{}+{offset:#x}", module(frame)),
        (None, _, None) => module(frame),
    }
}

/// Where a frame's code is: source line, else module; and why it has no name.
#[must_use]
pub fn place(frame: &Frame) -> String {
    let mut place = match (&frame.file, frame.line, frame.kind) {
        (Some(file), Some(line), _) => format!("{}:{line}", escape(file)),
        (Some(file), None, _) => escape(file).into_owned(),
        (None, _, FrameKind::Kernel) => format!("[{}]", module(frame)),
        (None, _, _) if frame.symbol.is_some() => module(frame),
        (None, _, _) => String::new(),
    };
    let notes = [frame.inlined.then_some("inlined"), frame.reason.as_deref()];
    for note in notes.into_iter().flatten() {
        if !place.is_empty() {
            place.push_str("  ");
        }
        place.push_str(&format!("({})", escape(note)));
    }
    place
}

/// The last part of the module's path.
fn module(frame: &Frame) -> String {
    match (&frame.module, frame.kind) {
        (Some(module), _) => escape(module.rsplit('/').next().unwrap_or(module)).into_owned(),
        (None, FrameKind::Kernel) => "kernel".into(),
        (None, _) => "unknown".into(),
    }
}

/// Source path without its directories.
fn short(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A site in a few words: the user's own frame and where it is.
#[must_use]
pub fn headline(site: &Site) -> String {
    let Some(&frame) = from_the_users(&site.frames).first() else {
        return escape(site.note.unwrap_or("stack not named yet")).into_owned();
    };
    match (&frame.file, frame.line) {
        (Some(file), Some(line)) => format!("{} {}:{line}", name(frame), escape(short(file))),
        _ if frame.symbol.is_some() && frame.module.is_some() => {
            format!("{} [{}]", name(frame), module(frame))
        }
        _ => name(frame),
    }
}
