//! The rules that the design gives in words, checked: who may import whom, how long a file
//! may be, what a file begins with. Each violation names its file, line and rule.
//!
//! Needs no privilege and builds nothing. It must never look at what a lint checks as well,
//! except where the lint does not reach (the BPF programs, which clippy cannot compile).

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking; clippy sees that only inside #[test] functions"
)]

mod architecture;
mod habits;
mod samples;
mod source;
mod tokens;

use std::fmt;

use source::Source;

/// One place that breaks one rule.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    file: String,
    line: usize,
    rule: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.rule)
    }
}

fn check(rule: impl Fn(&Source) -> Vec<Violation>) {
    let sources = source::all();
    assert!(sources.len() > 20, "only {} sources were found", sources.len());
    let lines: Vec<String> =
        sources.iter().flat_map(rule).map(|violation| violation.to_string()).collect();
    assert!(lines.is_empty(), "{} violations:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn modules_import_only_what_they_may() {
    check(architecture::violations);
}

#[test]
fn every_room_of_the_rules_exists() {
    let sources = source::all();
    for rule in architecture::RULES {
        let inhabited = sources.iter().any(|source| architecture::lives_in(source, rule.room));
        assert!(inhabited, "{} of tests/tests/tidy/architecture.rs is no directory", rule.room);
    }
}

#[test]
fn files_keep_the_habits() {
    check(habits::violations);
}
