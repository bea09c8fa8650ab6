//! Who may import whom: the table of ARCHITECTURE.md, as a table.

use crate::{Violation, source::Source, tokens::Mention};

/// What one room of the house must never do.
pub struct Rule {
    /// A directory or a file without `.rs`, from the root.
    pub room: &'static str,
    /// What it must not name.
    never: Never,
    /// Why.
    because: &'static str,
}

enum Never {
    /// These paths, and what is below them.
    Paths(&'static [&'static str]),
    /// Modules of its own crate other than these and itself.
    CrateBut(&'static [&'static str]),
}
use Never::{CrateBut, Paths};

const KERNEL: &[&str] = &["aya", "aya_obj", "aya_log"];
const IMPURE: &[&str] = &[
    "aya",
    "aya_obj",
    "aya_log",
    "tokio",
    "rustix",
    "libc",
    "procfs",
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "jiff::Timestamp::now",
    "Timestamp::now",
    "jiff::Zoned::now",
    "Zoned::now",
];
const DECIDERS: &[&str] = &[
    "crate::ledger",
    "crate::verdict",
    "crate::engine",
    "crate::report",
    "crate::serve",
    "crate::cli",
];

const fn rule(room: &'static str, never: Never, because: &'static str) -> Rule {
    Rule { room, never, because }
}

/// A part of the engine's core: it knows no more than the books do, and how to paint them.
const fn core(room: &'static str) -> Rule {
    let never = CrateBut(&["catalog", "engine", "ledger", "record", "snapshot", "verdict"]);
    rule(room, never, "the engine's core turns records into pictures and reaches for nothing else")
}

/// A part of the engine's core.
const fn pure(room: &'static str) -> Rule {
    rule(room, Paths(IMPURE), "the engine's core is pure, so that a recording replays")
}

/// All rules.
pub const RULES: &[Rule] = &[
    rule(
        "memtrace-common/src",
        Paths(&["std", "alloc", "aya", "aya_ebpf", "aya_obj"]),
        "the shared types depend on neither aya nor an operating system",
    ),
    rule(
        "memtrace-daemon/src/catalog",
        CrateBut(&[]),
        "the catalog is data: it knows no other part of the daemon",
    ),
    rule("memtrace-daemon/src/catalog", Paths(IMPURE), "the catalog is data"),
    rule(
        "memtrace-daemon/src/record",
        CrateBut(&["snapshot"]),
        "records are data that everybody shares",
    ),
    rule("memtrace-daemon/src/record", Paths(IMPURE), "records are data that everybody shares"),
    rule("memtrace-daemon/src/snapshot", CrateBut(&[]), "a snapshot is data that everybody reads"),
    rule("memtrace-daemon/src/snapshot", Paths(IMPURE), "a snapshot is data that everybody reads"),
    rule(
        "memtrace-daemon/src/config",
        CrateBut(&["catalog"]),
        "the configuration is read by all and reads none",
    ),
    rule(
        "memtrace-daemon/src/attach",
        Paths(DECIDERS),
        "attaching does not know what becomes of the records",
    ),
    rule(
        "memtrace-daemon/src/intake",
        Paths(DECIDERS),
        "intake makes records and does not interpret them",
    ),
    rule(
        "memtrace-daemon/src/ledger",
        CrateBut(&["catalog", "record", "snapshot"]),
        "the ledger consumes records only",
    ),
    rule(
        "memtrace-daemon/src/ledger",
        Paths(IMPURE),
        "the ledger is pure, so that a recording replays to the same books",
    ),
    rule(
        "memtrace-daemon/src/verdict",
        CrateBut(&["catalog", "human", "ledger", "record", "snapshot"]),
        "the verdict judges the books only",
    ),
    rule(
        "memtrace-daemon/src/verdict",
        Paths(IMPURE),
        "the verdict is pure, so that a recording replays to the same findings",
    ),
    rule("memtrace-daemon/src/stacks", Paths(DECIDERS), "naming stacks decides nothing"),
    rule("memtrace-daemon/src/stacks", Paths(KERNEL), "stacks come as records"),
    rule("memtrace-daemon/src/host", Paths(DECIDERS), "the host is observed, nothing is decided"),
    rule(
        "memtrace-daemon/src/engine",
        Paths(&["crate::report", "crate::serve", "crate::cli"]),
        "the engine owns the books and publishes snapshots; it does not ask who reads them",
    ),
    rule("memtrace-daemon/src/engine", Paths(KERNEL), "the engine consumes records only"),
    // All of the engine but the task around the core.
    core("memtrace-daemon/src/engine/core"),
    pure("memtrace-daemon/src/engine/core"),
    core("memtrace-daemon/src/engine/call_rows"),
    pure("memtrace-daemon/src/engine/call_rows"),
    core("memtrace-daemon/src/engine/coverage"),
    pure("memtrace-daemon/src/engine/coverage"),
    core("memtrace-daemon/src/engine/devices"),
    pure("memtrace-daemon/src/engine/devices"),
    core("memtrace-daemon/src/engine/finding"),
    pure("memtrace-daemon/src/engine/finding"),
    core("memtrace-daemon/src/engine/host"),
    pure("memtrace-daemon/src/engine/host"),
    core("memtrace-daemon/src/engine/kernel_rows"),
    pure("memtrace-daemon/src/engine/kernel_rows"),
    core("memtrace-daemon/src/engine/measured"),
    pure("memtrace-daemon/src/engine/measured"),
    core("memtrace-daemon/src/engine/picture"),
    pure("memtrace-daemon/src/engine/picture"),
    core("memtrace-daemon/src/engine/pools"),
    pure("memtrace-daemon/src/engine/pools"),
    core("memtrace-daemon/src/engine/row"),
    pure("memtrace-daemon/src/engine/row"),
    rule(
        "memtrace-daemon/src/report",
        CrateBut(&["config", "human", "snapshot"]),
        "a report reads a snapshot and nothing else",
    ),
    rule("memtrace-daemon/src/report", Paths(KERNEL), "a report reads a snapshot"),
    rule(
        "memtrace-daemon/src/serve",
        CrateBut(&["config", "heap", "report", "snapshot"]),
        "the routes read a snapshot and nothing else",
    ),
    rule("memtrace-daemon/src/serve", Paths(KERNEL), "the routes read a snapshot"),
    rule(
        "xtask/src",
        Paths(&["memtrace_daemon", "memtrace_common"]),
        "xtask must build where memtrace cannot be built yet",
    ),
];

/// Whether a file is in a room.
pub fn lives_in(source: &Source, room: &str) -> bool {
    let rest = source.path.strip_prefix(room);
    rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// The rules that a file breaks.
pub fn violations(source: &Source) -> Vec<Violation> {
    if source.test {
        return Vec::new();
    }
    let mut violations = Vec::new();
    for rule in RULES.iter().filter(|rule| lives_in(source, rule.room)) {
        let own = rule.room.rsplit('/').next().unwrap_or_default();
        for mention in &source.facts.mentions {
            let path = absolute(mention, source);
            let broken = match rule.never {
                Paths(paths) => paths.iter().any(|forbidden| touches(&path, forbidden)),
                CrateBut(allowed) => {
                    path.first().is_some_and(|first| first == "crate")
                        && path.get(1).is_some_and(|module| {
                            module != own && !allowed.contains(&module.as_str())
                        })
                }
            };
            if broken {
                violations.push(Violation {
                    file: source.path.clone(),
                    line: mention.line,
                    rule: format!("must not name `{}`: {}", path.join("::"), rule.because),
                });
            }
        }
    }
    violations
}

/// A mention as a path from the crate, where it begins with `self` or `super`.
fn absolute(mention: &Mention, source: &Source) -> Vec<String> {
    let mut segments = mention.segments.as_slice();
    let mut module = source.module();
    let mut relative = false;
    while let Some((first, rest)) = segments.split_first() {
        match first.as_str() {
            "self" => {}
            "super" => {
                module.pop();
            }
            _ => break,
        }
        relative = true;
        segments = rest;
    }
    if !relative {
        return mention.segments.clone();
    }
    std::iter::once("crate".to_owned()).chain(module).chain(segments.iter().cloned()).collect()
}

/// Whether a path is the forbidden one, is below it, or imports a module that it is in: with
/// `use std::time` a file can say `time::Instant`.
fn touches(path: &[String], forbidden: &str) -> bool {
    let (path, glob) = match path.split_last() {
        Some((last, parent)) if last == "*" => (parent, true),
        _ => (path, false),
    };
    let forbidden: Vec<&str> = forbidden.split("::").collect();
    let module = path.last().is_some_and(|last| last.starts_with(char::is_lowercase));
    let same = path.iter().zip(&forbidden).all(|(a, b)| a == b);
    same && !path.is_empty() && (path.len() >= forbidden.len() || module || glob)
}
