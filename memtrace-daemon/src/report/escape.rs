//! Names come from other people's programs: a process may call itself `\e[2J`. Here whatever
//! could move a cursor, break a line or hide a letter becomes visible, and text is cut to a
//! width without breaking a letter.

use std::borrow::Cow;
use std::fmt::Write;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Whether a character may reach a terminal as it is.
fn plain(c: char) -> bool {
    // Format characters (bidirectional overrides, zero-width joiners, tags) reorder or hide
    // what stands beside them; line and paragraph separators break lines in some viewers. The
    // last two of a plane's characters are none, and XML forbids U+FFFE and U+FFFF.
    !c.is_control()
        && !matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}'..='\u{ffff}'
            | '\u{e0000}'..='\u{e007f}')
}

/// The text with control and format characters written as escapes.
#[must_use]
pub fn escape(text: &str) -> Cow<'_, str> {
    if text.chars().all(plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if plain(c) => out.push(c),
            c if u32::from(c) < 0x100 => drop(write!(out, "\\x{:02x}", u32::from(c))),
            c => drop(write!(out, "\\u{{{:x}}}", u32::from(c))),
        }
    }
    Cow::Owned(out)
}

/// Columns that a text takes on a terminal.
#[must_use]
pub fn columns(text: &str) -> usize {
    text.width()
}

/// The text, cut at its end to at most `width` columns; `…` says that it was cut.
#[must_use]
pub fn fit(text: &str, width: usize) -> Cow<'_, str> {
    if columns(text) <= width {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let columns = c.width().unwrap_or(0);
        if used + columns + 1 > width {
            break;
        }
        used += columns;
        out.push(c);
    }
    if width > 0 {
        out.push('…');
    }
    Cow::Owned(out)
}

/// Breaks a text at spaces into lines of at most `width` columns; a longer word is cut.
#[must_use]
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![];
    let mut line = String::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !line.is_empty() && columns(&line) + 1 + columns(word) > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&fit(word, width));
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_moves_a_cursor_becomes_visible() {
        assert_eq!(escape("python3"), "python3");
        assert_eq!(escape("größe 模型"), "größe 模型");
        assert_eq!(escape("a\x1b[2J\nb\0"), "a\\x1b[2J\\nb\\x00");
        assert_eq!(escape("\u{202e}txt.exe\u{9b}"), "\\u{202e}txt.exe\\x9b");
    }

    #[test]
    fn a_cut_says_so() {
        assert_eq!(fit("encode_prompt", 6), "encod…");
        assert_eq!(fit("模型模型", 5), "模型…");
        assert_eq!(fit("abc", 3), "abc");
        assert_eq!(fit("abc", 0), "");
    }

    proptest! {
        #[test]
        fn nothing_gets_through_and_nothing_is_too_wide(text in ".*", width in 0usize..60) {
            let safe = escape(&text);
            prop_assert!(safe.chars().all(plain));
            prop_assert!(columns(&fit(&safe, width)) <= width);
            for line in wrap(&safe, width) {
                prop_assert!(columns(&line) <= width);
            }
        }
    }
}
