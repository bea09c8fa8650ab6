//! Bytes that the kernel hands out in no particular encoding, as text.

use std::fmt::Write;

/// The bytes as text; what is not UTF-8 is written as `\xNN`, so that nothing is dropped.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Cuts a text at a character boundary to at most `limit` bytes, and marks the cut.
#[must_use]
pub fn limited(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_utf8_are_escaped() {
        assert_eq!(text(b"a\xffb\xc3"), "a\\xffb\\xc3");
        assert_eq!(text("gr\u{fc}n".as_bytes()), "gr\u{fc}n");
    }

    #[test]
    fn a_cut_never_splits_a_character() {
        assert_eq!(limited("ab\u{fc}".into(), 3), "ab…");
        assert_eq!(limited("ab\u{fc}".into(), 4), "ab\u{fc}");
    }
}
