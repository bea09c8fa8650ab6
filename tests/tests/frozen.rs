//! Recordings of real programs in `tests/recordings`, replayed: books and findings are those that
//! lie beside them. `cargo xtask bless` writes them anew, for a person to look through.
//!
//! Must never need the kernel: what a recording says does not depend on where it is replayed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use memtrace_daemon::cli::replay::{Replayed, replay_file};
use serde_json::{Value, json};

/// Most bytes of all recordings: they are for ever in the repository's history.
const MOST_BYTES: u64 = 1 << 20;
/// Significant digits that are compared: functions such as `exp` may differ in the last ones.
const DIGITS: usize = 6;

/// All recordings, in order.
fn recordings() -> Result<Vec<PathBuf>> {
    let directory = memtrace_tests::paths::workspace().join("tests/recordings");
    let mut files = Vec::new();
    for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("mtrec") => files.push(path),
            Some("json" | "toml") => {
                let recording = path.with_extension("mtrec");
                ensure!(recording.exists(), "{} is about no recording", path.display());
            }
            _ => {}
        }
    }
    ensure!(!files.is_empty(), "there are no recordings in {}", directory.display());
    files.sort();
    Ok(files)
}

/// What is expected of a replay, and compared.
fn facts(replayed: &Replayed) -> Result<Value> {
    let snapshot = &replayed.snapshot;
    let mut findings = serde_json::to_value(&snapshot.findings)?;
    for finding in findings.as_array_mut().into_iter().flatten() {
        if let Some(fields) = finding.as_object_mut() {
            // When it was and who it was says nothing of the verdict.
            fields.retain(|name, _| name != "since" && name != "processes");
        }
    }
    let mut sites = Vec::new();
    for process in &snapshot.processes {
        for site in process.sites.iter().filter(|site| site.live_bytes > 0) {
            let id = site.id.map_or_else(|| "unnamed".to_owned(), |id| format!("{id:016x}"));
            let (domain, api, live) = (site.domain, site.api, site.live_bytes);
            let verdict = site.verdict.name();
            sites.push(format!("{} {domain} {api} {id} {live} {verdict}", process.comm));
        }
    }
    sites.sort();
    let mut domains = snapshot.domains.clone();
    domains.retain(|_, terms| terms.seen.count > 0);
    let records = replayed.records;
    let mut facts =
        json!({ "records": records, "domains": domains, "findings": findings, "sites": sites });
    shorten(&mut facts);
    Ok(facts)
}

/// Leaves of every number with a fraction the digits that are compared.
fn shorten(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(shorten),
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        Value::Number(number) if number.is_f64() => {
            let exact = number.as_f64().unwrap_or(f64::NAN);
            let short = format!("{exact:.*e}", DIGITS - 1).parse().unwrap_or(exact);
            *value = json!(short);
        }
        _ => {}
    }
}

/// Lines in which two texts differ, the expected one first.
fn difference(expected: &str, got: &str) -> String {
    let (expected, got): (Vec<&str>, Vec<&str>) =
        (expected.lines().collect(), got.lines().collect());
    let lines = (0..expected.len().max(got.len())).filter_map(|line| {
        let (a, b) = (expected.get(line), got.get(line));
        (a != b).then(|| {
            let show =
                |text: Option<&&str>| text.map_or("(nothing)", |text| text.trim()).to_owned();
            format!("line {}: {}  →  {}", line + 1, show(a), show(b))
        })
    });
    lines.take(20).collect::<Vec<_>>().join("\n")
}

fn check(recording: &Path, bless: bool) -> Result<()> {
    let replayed = replay_file(recording)?;
    ensure!(replayed.notes.is_empty(), "{:?}", replayed.notes);
    for terms in replayed.snapshot.domains.values() {
        ensure!(terms.conserved(), "not conserved: {terms:?}");
    }
    let got = format!("{:#}\n", facts(&replayed)?);
    let path = recording.with_extension("json");
    if bless {
        return fs::write(&path, got).with_context(|| path.display().to_string());
    }
    let expected = fs::read_to_string(&path)
        .with_context(|| format!("{}; `cargo xtask bless` writes it", path.display()))?;
    if expected != got {
        bail!(
            "{} differs; where the new one is right, `cargo xtask bless` writes it:\n{}",
            path.display(),
            difference(&expected, &got)
        );
    }
    Ok(())
}

#[test]
fn replays_find_what_they_found() -> Result<()> {
    let bless = std::env::var_os("MEMTRACE_BLESS").is_some();
    let mut wrong = Vec::new();
    for recording in recordings()? {
        if let Err(error) = check(&recording, bless) {
            wrong.push(format!("{}: {error:#}", recording.display()));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn recordings_are_small_and_tell_nothing_of_the_machine_they_were_made_on() -> Result<()> {
    let mut bytes = 0;
    for recording in recordings()? {
        bytes += fs::metadata(&recording)?.len();
        let snapshot = replay_file(&recording)?.snapshot;
        let name = recording.display();
        ensure!(snapshot.host.name == "host", "{name}: {:?}", snapshot.host);
        for path in snapshot.coverage.iter().filter_map(|row| row.path.as_deref()) {
            ensure!(path.starts_with("/srv/recorded/"), "{name}: covers {path}");
        }
        for process in &snapshot.processes {
            ensure!(
                process.cgroup.as_deref().is_none_or(|path| path == "/"),
                "{name}: {process:?}"
            );
        }
    }
    ensure!(bytes <= MOST_BYTES, "all recordings together have {bytes} bytes");
    Ok(())
}

#[test]
fn a_difference_is_shown() {
    assert_eq!(
        difference("a\nb\nc", "a\n b\nd\ne"),
        "line 2: b  →  b\nline 3: c  →  d\nline 4: (nothing)  →  e"
    );
    let mut value = json!({ "a": [0.123_456_789, 1], "b": 1e-9 / 3.0 });
    shorten(&mut value);
    assert_eq!(value, json!({ "a": [0.123_457, 1], "b": 3.333_33e-10 }));
}
