//! What every file keeps to, whatever room it is in.

use crate::{Violation, source::Source};

/// Files beyond this are several files. Most are a fifth of it.
const MAX_LINES: usize = 500;

/// The only reason for which a test may be ignored: it needs something that `cargo xtask test`
/// brings, such as root or promtool, and nobody runs others.
fn is_need(reason: &str) -> bool {
    let need =
        reason.strip_prefix("needs ").and_then(|rest| rest.strip_suffix(": cargo xtask test"));
    need.is_some_and(|need| !need.is_empty() && !need.contains([' ', ':']))
}

/// How many lines above `unsafe` its SAFETY comment may begin.
const SAFETY_LINES: usize = 8;

/// The rules that a file breaks.
pub fn violations(source: &Source) -> Vec<Violation> {
    let mut found = Found { file: &source.path, violations: Vec::new() };
    found.text(source);
    found.tokens(source);
    found.violations
}

struct Found<'a> {
    file: &'a str,
    violations: Vec<Violation>,
}

impl Found<'_> {
    fn add(&mut self, line: usize, rule: &str) {
        let violation = Violation { file: self.file.to_owned(), line, rule: rule.to_owned() };
        self.violations.push(violation);
    }

    fn text(&mut self, source: &Source) {
        if !source.text.starts_with("//! ") {
            self.add(1, "a file begins with `//!`: what it is for and what it must never do");
        }
        let lines = source.text.lines().count();
        if !source.test && lines >= MAX_LINES {
            self.add(MAX_LINES, "a file has fewer than 500 lines");
        }
        // In two halves, so that this line is not one of them.
        let marks = [concat!("FIX", "ME"), concat!("TO", "DO"), concat!("XX", "X:")];
        let macros = [concat!("to", "do!("), concat!("un", "implemented!(")];
        for (index, line) in source.text.lines().enumerate() {
            if marks.iter().chain(&macros).any(|mark| line.contains(mark)) {
                self.add(index + 1, "what is left to do is an issue, not a mark in the code");
            }
        }
    }

    fn tokens(&mut self, source: &Source) {
        let facts = &source.facts;
        for (line, reason) in &facts.ignores {
            if !reason.as_deref().is_some_and(is_need) {
                self.add(*line, "ignored for another reason than \"needs …: cargo xtask test\"");
            }
        }
        for line in &facts.allows {
            self.add(*line, "`#[expect(…, reason = \"…\")]` instead of `#[allow]`");
        }
        if source.test {
            return;
        }
        for (line, name) in &facts.unwraps {
            self.add(*line, &format!("no `{name}` outside tests"));
        }
        // Elsewhere clippy sees to this; it has no compiler for the BPF target.
        if source.path.starts_with("memtrace-ebpf/") {
            for line in &facts.unsafe_lines {
                if !has_safety_comment(&source.text, *line) {
                    self.add(*line, "`unsafe` has a SAFETY comment above it");
                }
            }
        }
    }
}

/// Whether a SAFETY comment stands on a line or in the lines above it, up to an empty one.
fn has_safety_comment(text: &str, line: usize) -> bool {
    let lines: Vec<&str> = text.lines().take(line).collect();
    let near = lines.iter().rev().take(SAFETY_LINES);
    near.take_while(|line| !line.trim().is_empty()).any(|line| line.contains("SAFETY"))
}
