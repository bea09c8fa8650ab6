//! Frames as people and tools read them: which one is the user's own, how one is written, and
//! what stands for a stack that is not there.

use super::escape::escape;
use crate::snapshot::{Frame, FrameKind, Frames, Site};

/// What tools call a frame of which nothing is known.
pub const UNKNOWN: &str = "[unknown]";

/// All frames of a site, innermost first. Kernel frames alone are identity; a user stack is an
/// example of who called, and comes outside.
pub fn stack(site: &Site) -> impl DoubleEndedIterator<Item = &Frame> {
    let caller = site.samples.first().filter(|_| site.domain == "kernel");
    site.frames.iter().chain(caller.into_iter().flat_map(|sample| sample.user_frames.iter()))
}

/// What stands for the stack of a site that has none, so that sums are right without it.
#[must_use]
pub fn nameless(site: &Site) -> String {
    format!("[{}]", site.note.unwrap_or(NOT_NAMED))
}

/// Why a site has no frames, where nothing else is said.
pub const NOT_NAMED: &str = "stack not named yet";

/// The frames from the user's own outwards: what an allocator did is not news. If all are
/// the allocator's, all of them.
#[must_use]
pub fn from_the_users(frames: &Frames) -> Vec<&Frame> {
    frames.iter().skip(frames.own()).collect()
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
pub(super) fn module(frame: &Frame) -> String {
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
        return escape(site.note.unwrap_or(NOT_NAMED)).into_owned();
    };
    match (&frame.file, frame.line) {
        (Some(file), Some(line)) => format!("{} {}:{line}", name(frame), escape(short(file))),
        _ if frame.symbol.is_some() && frame.module.is_some() => {
            format!("{} [{}]", name(frame), module(frame))
        }
        _ => name(frame),
    }
}
