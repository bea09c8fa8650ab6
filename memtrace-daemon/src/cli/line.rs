//! What memtrace says on standard error: one line, whatever is in it.

use std::fmt::Write;
use std::io::IsTerminal;

/// The text on one line, with nothing in it that a terminal would obey: names of files and
/// processes hold whatever their maker likes.
#[must_use]
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        for character in word.chars() {
            if character.is_control() {
                // Writing into a string cannot fail.
                let _ = write!(line, "{}", character.escape_default());
            } else {
                line.push(character);
            }
        }
    }
    line
}

/// Says how things go, where somebody looks on.
pub fn progress(message: &str) {
    if std::io::stderr().is_terminal() {
        eprintln!("memtrace: {}", one_line(message));
    }
}

/// A cause that is longer, characters, is a log (the kernel's verifier writes a line an
/// instruction): whoever passed it on has said what matters of it.
const LONGEST: usize = 1_000;

/// An error and its causes on one line. A cause that the error has named already is not named
/// again, and a log not at all.
#[must_use]
pub fn error_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let cause = one_line(&cause.to_string());
        if line.contains(&cause) || (!line.is_empty() && cause.len() > LONGEST) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&cause);
    }
    line
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_name_breaks_no_line_and_colours_no_terminal() {
        assert_eq!(one_line("/no\n\tsuch\u{1b}[31m file"), "/no such\\u{1b}[31m file");
    }

    #[test]
    fn a_log_is_no_cause() {
        let error = anyhow!("{}", "0: R1=ctx() ".repeat(200)).context("cannot load a program: …");
        assert_eq!(error_line(&error), "cannot load a program: …");
    }

    #[test]
    fn a_cause_is_named_once() {
        let full = std::io::Error::from_raw_os_error(28);
        let text = format!("cannot write a: {full}; name another file");
        assert_eq!(error_line(&anyhow::Error::new(full).context(text.clone())), text);
        assert_eq!(error_line(&anyhow!("why").context("what")), "what: why");
    }
}
