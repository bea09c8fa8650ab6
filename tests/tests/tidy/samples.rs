//! That each rule can fail: small files that break it, and near misses that do not.

use crate::{architecture, habits, source::Source};

fn imports(path: &str, text: &str) -> Vec<String> {
    let violations = architecture::violations(&Source::new(path, text));
    violations.iter().map(|violation| format!("{}: {}", violation.line, violation.rule)).collect()
}

fn habits(path: &str, text: &str) -> Vec<usize> {
    let text = format!("//! A sample.\n{text}");
    habits::violations(&Source::new(path, &text)).iter().map(|violation| violation.line).collect()
}

#[track_caller]
fn assert_broken(path: &str, text: &str, named: &str) {
    let found = imports(path, text);
    let named = format!("1: must not name `{named}`");
    assert!(found.len() == 1 && found[0].starts_with(&named), "{text} gives {found:?}");
}

const LEDGER: &str = "memtrace-daemon/src/ledger/books.rs";

#[test]
fn an_import_is_found_however_it_is_written() {
    assert_broken(LEDGER, "use tokio::sync::mpsc;", "tokio::sync::mpsc");
    assert_broken(LEDGER, "use std::time::{Duration, Instant};", "std::time::Instant");
    assert_broken(LEDGER, "use std::{fmt, fs::{self}};", "std::fs");
    assert_broken(LEDGER, "use std::time::*;", "std::time::*");
    assert_broken(LEDGER, "use std::{time, fmt};", "std::time");
    assert_broken(LEDGER, "use ::aya::Bpf;", "aya::Bpf");
    assert_broken(LEDGER, "fn f(s: super::super::serve::State) {}", "crate::serve::State");
    assert_broken(LEDGER, "fn f() { g!(crate::host::now()) }", "crate::host::now");
    assert_broken(LEDGER, "type T = <u8 as crate::cli::Command>::Out;", "crate::cli::Command");
    assert_broken(LEDGER, "fn f() { jiff::Timestamp::now(); }", "jiff::Timestamp::now");
}

#[test]
fn a_room_may_name_itself_what_it_is_allowed_and_what_only_looks_forbidden() {
    for text in [
        "use std::time::Duration;",
        "use crate::{ledger::x, record::Record, snapshot::*};",
        "use super::sites::Site; use self::inner::X;",
        "pub(crate) fn f(tokio: u8) -> u8 { tokio }",
        "/// Reads `std::fs::read`. \n fn f() {} // std::fs::read()",
        "#[cfg(test)] mod tests { use std::fs; }",
        "#[cfg(test)] #[path = \"x.rs\"] mod tests;",
    ] {
        assert!(imports(LEDGER, text).is_empty(), "{text} gives {:?}", imports(LEDGER, text));
    }
    assert!(imports("memtrace-daemon/src/ledger_tools.rs", "use std::fs;").is_empty());
    assert!(imports("memtrace-daemon/src/host/slab.rs", "use std::fs;").is_empty());
}

#[test]
fn code_behind_a_test_module_is_still_looked_at() {
    let text = "#[cfg(test)] mod tests { use std::fs; } use std::net::TcpStream;";
    assert_broken(LEDGER, text, "std::net::TcpStream");
}

#[test]
fn each_habit_is_missed_where_it_is_broken() {
    let path = "memtrace-daemon/src/host/slab.rs";
    assert_eq!(habits(path, "fn f() { x.unwrap(); }"), [2]);
    assert_eq!(habits(path, "fn f() {\n x\n.expect(\"\"); }"), [4]);
    assert_eq!(habits(path, "// TO\u{44}O: later"), [2]);
    assert_eq!(habits(path, "#[allow(dead_code)] fn f() {}"), [2]);
    assert_eq!(habits(path, "#[ignore] #[test] fn f() {}"), [2]);
    assert_eq!(habits("tests/tests/x.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}"), [3]);
    let vague = "#[test]\n#[ignore = \"needs : cargo xtask test\"]\nfn f() {}";
    assert_eq!(habits("tests/tests/x.rs", vague), [3]);
    assert_eq!(habits("memtrace-ebpf/src/x.rs", "fn f() { unsafe { g() } }"), [2]);
    assert_eq!(habits(path, &"\n".repeat(499)), [500]);
    let undocumented = Source::new(path, "fn f() {}");
    assert_eq!(habits::violations(&undocumented).len(), 1);
}

#[test]
fn habits_that_are_kept_are_no_violations() {
    let path = "memtrace-daemon/src/host/slab.rs";
    for text in [
        "fn f() { x.unwrap_or(1); unwrap(); }",
        "#[cfg(test)] mod tests { fn f() { x.unwrap(); } }",
        "#[expect(dead_code, reason = \"r\")] fn f() {}",
    ] {
        assert!(habits(path, text).is_empty(), "{text}");
    }
    for need in ["root", "promtool"] {
        let reason = format!("#[ignore = \"needs {need}: cargo xtask test\"]");
        let ignored = format!("#[test]\n{reason}\nfn f() {{ x.unwrap(); }}");
        assert!(habits("tests/tests/x.rs", &ignored).is_empty());
    }
    let safe = "fn f() {\n // SAFETY: it is.\n unsafe { g() }\n}\nunsafe fn g() {}";
    assert!(habits("memtrace-ebpf/src/x.rs", safe).is_empty());
}
