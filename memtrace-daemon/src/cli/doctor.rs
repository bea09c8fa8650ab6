//! `memtrace doctor`: what this host can do for memtrace, what is worse without the rest, how
//! to mend it, and what memory the maps will take.
//!
//! It only looks: nothing is attached, mounted or changed. Every row is printed for every user;
//! what cannot be tried without privilege says so. What would be probed goes by the daemon's
//! configuration, where there is one.

use std::io::{self, Write};

use serde::Serialize;

use crate::attach::abilities::{self, Ability, State};
use crate::attach::memory::{self, MapKind, MapPlan, PlanError};
use crate::attach::object::OBJECT;
use crate::attach::options::Sizes;
use crate::attach::policy::FilePolicy;
use crate::attach::survey::survey;
use crate::catalog;
use crate::cli::args::DoctorArgs;
use crate::cli::daemon;
use crate::config::Config;
use crate::host::process;
use crate::report::escape::escape;
use crate::snapshot::CoverageRow;

/// Text is kept this narrow, in characters.
const WIDTH: usize = 80;
/// Width of the columns of state and name.
const STATE_WIDTH: usize = 9;
const NAME_WIDTH: usize = 24;

/// What the doctor found.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    /// Version of this layout.
    pub schema: u32,
    /// Whether memtrace can work here.
    pub ok: bool,
    /// Every ability.
    pub abilities: Vec<Ability>,
    /// Memory of the maps.
    pub maps: Maps,
    /// The processes that run a GPU library or have a GPU open.
    pub coverage: Vec<Reach>,
}

/// Whether the calls of a process can be seen.
#[derive(Debug, Serialize)]
pub struct Reach {
    /// The process; `null` where several are meant.
    pub pid: Option<u32>,
    /// Its name.
    pub comm: Option<String>,
    /// Catalog names of its libraries, by comma.
    pub library: Option<String>,
    /// By which layers: `runtime`, `static`, `driver`, …
    pub layers: Vec<String>,
    /// Whether they can.
    pub can_be_probed: bool,
    /// Why not, or what is missing.
    pub reason: Option<String>,
}

/// What the maps will take on this machine.
#[derive(Debug, Serialize)]
pub struct Maps {
    /// CPUs this machine could have; `null` where it does not say.
    pub possible_cpus: Option<u32>,
    /// What all maps may take.
    pub budget_bytes: u64,
    /// What they will take when made.
    pub total_bytes: u64,
    /// Of the total: the ring buffer, which also counts twice in the daemon's resident memory.
    pub ring_bytes: u64,
    /// Each map.
    pub maps: Vec<MapRow>,
    /// Beside these: a thread's storage when it has any value.
    pub thread_head_bytes: u64,
}

/// One map.
#[derive(Debug, Serialize)]
pub struct MapRow {
    /// Its name in the kernel.
    pub name: String,
    /// Its kind.
    pub kind: MapKind,
    /// Bytes of a key.
    pub key_bytes: u32,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Entries; bytes for a ring buffer; 0 for task storage.
    pub entries: u32,
    /// Bytes when made.
    pub bytes: u64,
    /// Bytes for each thread that has a value, beside `thread_head_bytes`; 0 but for task storage.
    pub bytes_per_thread: u64,
}

/// The daemon's configuration; the defaults where there is none, or none that can be used, which
/// is said in the log. The functions that it declares are in the catalog from then on.
fn configuration() -> Config {
    let read = || -> Result<Config, String> {
        let config = Config::load_or_default(None).map_err(|error| error.to_string())?;
        catalog::declare(&config.allocator, &config.free)?;
        Ok(config)
    };
    read().unwrap_or_else(|error| {
        tracing::warn!("what would be probed goes by the defaults: {error}");
        Config::default()
    })
}

/// Looks at everything; `files` says which may be probed.
///
/// # Errors
/// Where the build is at fault: the maps of the kernel side cannot be reckoned.
pub fn diagnose(files: FilePolicy) -> Result<Diagnosis, PlanError> {
    let abilities = abilities::probe();
    let ok = !abilities.iter().any(Ability::blocks);
    let maps = maps(&Sizes::default(), memory::possible_cpus().ok())?;
    // Where /proc cannot be listed there is nothing to say of anybody in it.
    let coverage = survey(files).unwrap_or_default();
    Ok(Diagnosis {
        schema: 1,
        ok,
        abilities,
        maps,
        coverage: coverage.into_iter().map(reach).collect(),
    })
}

fn reach(row: CoverageRow) -> Reach {
    let CoverageRow { pid, library, layers, attached, reason, .. } = row;
    let comm = pid.and_then(process::comm);
    Reach { pid, comm, library, layers, can_be_probed: attached, reason }
}

fn maps(sizes: &Sizes, possible_cpus: Option<u32>) -> Result<Maps, PlanError> {
    let cpus = possible_cpus.unwrap_or(1);
    let plan = memory::plan(OBJECT, sizes, cpus)?;
    let total_bytes = memory::total_bytes(&plan, cpus);
    let row = |map: MapPlan| {
        let (bytes, bytes_per_thread) = (map.bytes(cpus), map.bytes_per_thread());
        let MapPlan { name, kind, key, value, entries } = map;
        MapRow { name, kind, key_bytes: key, value_bytes: value, entries, bytes, bytes_per_thread }
    };
    Ok(Maps {
        possible_cpus,
        budget_bytes: memory::BUDGET_BYTES,
        total_bytes,
        ring_bytes: u64::from(sizes.ring_bytes),
        maps: plan.into_iter().map(row).collect(),
        thread_head_bytes: memory::THREAD_HEAD_BYTES,
    })
}

/// Runs the subcommand; `colour` where `out` is a terminal that wants it. Gives the exit
/// status: 0 when everything that is required is there, 1 otherwise.
///
/// # Errors
/// Where `out` cannot be written, or the build is at fault.
pub fn run(args: &DoctorArgs, out: &mut impl Write, colour: bool) -> io::Result<u8> {
    let diagnosis = diagnose(daemon::files(&configuration())).map_err(io::Error::other)?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &diagnosis)?;
        writeln!(out)?;
    } else {
        write_text(&diagnosis, out, colour)?;
    }
    Ok(u8::from(!diagnosis.ok))
}

fn write_text(diagnosis: &Diagnosis, out: &mut impl Write, colour: bool) -> io::Result<()> {
    for ability in &diagnosis.abilities {
        write_ability(ability, out, colour)?;
    }
    writeln!(out)?;
    write_maps(&diagnosis.maps, out)?;
    writeln!(out)?;
    write_coverage(&diagnosis.coverage, out)?;
    writeln!(out)?;
    let absent = |required| {
        let absent = diagnosis
            .abilities
            .iter()
            .filter(move |ability| ability.state == State::Missing && ability.required == required);
        absent.map(Ability::title).collect::<Vec<_>>().join(", ")
    };
    let verdict = match (absent(true), absent(false)) {
        (required, _) if !required.is_empty() => {
            format!("memtrace cannot work here: {required} missing.")
        }
        (_, optional) if !optional.is_empty() => {
            format!("memtrace works here, degraded as said above: {optional} missing.")
        }
        _ => "memtrace works here.".to_owned(),
    };
    for line in wrap(&verdict, WIDTH) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn write_ability(ability: &Ability, out: &mut impl Write, colour: bool) -> io::Result<()> {
    let (word, paint) = match (ability.state, ability.required) {
        (State::Present, _) => ("ok", "\x1b[32m"),
        (State::Missing, true) => ("MISSING", "\x1b[31m"),
        (State::Missing, false) => ("missing", "\x1b[33m"),
        (State::Unknown, _) => ("unknown", "\x1b[33m"),
    };
    let (paint, plain) = if colour { (paint, "\x1b[0m") } else { ("", "") };
    let indent = STATE_WIDTH + NAME_WIDTH;
    let mut lines = wrap(&ability.detail, WIDTH - indent).into_iter();
    let first = lines.next().unwrap_or_default();
    let name = ability.title();
    writeln!(out, "{paint}{word:STATE_WIDTH$}{plain}{name:NAME_WIDTH$}{first}")?;
    for line in lines {
        writeln!(out, "{:indent$}{line}", "")?;
    }
    if ability.state != State::Present {
        write_hint("without it: ", ability.degraded, out)?;
        write_hint("to mend:    ", ability.mend, out)?;
    }
    Ok(())
}

fn write_hint(label: &str, text: &str, out: &mut impl Write) -> io::Result<()> {
    let width = WIDTH - STATE_WIDTH - label.len();
    for (index, line) in wrap(text, width).into_iter().enumerate() {
        let label = if index == 0 { label } else { "            " };
        writeln!(out, "{:STATE_WIDTH$}{label}{line}", "")?;
    }
    Ok(())
}

fn write_maps(maps: &Maps, out: &mut impl Write) -> io::Result<()> {
    match maps.possible_cpus {
        Some(cpus) => writeln!(out, "Maps in the kernel, {cpus} possible CPUs")?,
        None => writeln!(out, "Maps in the kernel (number of CPUs unknown, reckoned with 1)")?,
    }
    writeln!(
        out,
        "{:17}{:15}{:>6}{:>7}{:>12}{:>10}",
        "", "kind", "key", "value", "entries", "MiB"
    )?;
    for map in &maps.maps {
        let MapRow { name, kind, key_bytes, value_bytes, entries, bytes, bytes_per_thread } = map;
        let kind = match kind {
            MapKind::Hash => "hash",
            MapKind::Array => "array",
            MapKind::PerCpuArray => "array per CPU",
            MapKind::Queue => "queue",
            MapKind::Ring => "ring",
            MapKind::TaskStorage => "task storage",
        };
        write!(out, "{name:17}{kind:15}{key_bytes:>6}{value_bytes:>7}")?;
        if *bytes_per_thread == 0 {
            writeln!(out, "{entries:>12}{:>10}", mebibytes(*bytes))?;
        } else {
            writeln!(out, "{:>12}{:>10}", "each thread", format!("{bytes_per_thread} B"))?;
        }
    }
    let within = if maps.total_bytes <= maps.budget_bytes { "within" } else { "OVER" };
    let label = format!("all, {within} the budget of {} MiB", mebibytes(maps.budget_bytes));
    writeln!(out, "{label:57}{:>10}", mebibytes(maps.total_bytes))?;
    let note = format!(
        "Task storage comes when a thread needs it, with {} bytes beside its values. The ring \
         ({} MiB) counts twice in the daemon's resident memory.",
        maps.thread_head_bytes,
        mebibytes(maps.ring_bytes)
    );
    for line in wrap(&note, WIDTH) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn write_coverage(coverage: &[Reach], out: &mut impl Write) -> io::Result<()> {
    if coverage.is_empty() {
        return writeln!(out, "No process runs a GPU library or has a GPU open.");
    }
    writeln!(out, "Processes that run a GPU library or have a GPU open")?;
    writeln!(out, "{:>9}  {:16}{:9}{:16}WHAT IS MISSING", "PID", "PROCESS", "CAN BE", "BY")?;
    for Reach { pid, comm, layers, can_be_probed, reason, .. } in coverage {
        let pid = pid.map(|pid| pid.to_string()).unwrap_or_default();
        let comm = escape(comm.as_deref().unwrap_or_default());
        let can = if *can_be_probed { "probed" } else { "not" };
        let reason = escape(reason.as_deref().unwrap_or_default());
        let mut lines = wrap(&reason, WIDTH - 52).into_iter();
        let first = lines.next().unwrap_or_default();
        writeln!(out, "{pid:>9}  {comm:16}{can:9}{:16}{first}", layers.join("+"))?;
        for line in lines {
            writeln!(out, "{:52}{line}", "")?;
        }
    }
    Ok(())
}

/// With two decimals.
fn mebibytes(bytes: u64) -> String {
    let hundredths = bytes.saturating_mul(100).div_ceil(1 << 20);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// Breaks at spaces; a word that is longer than the width stands alone.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnosis(state: State, required: bool) -> Diagnosis {
        let ability = Ability {
            name: "CAP_CHECKPOINT_RESTORE",
            state,
            required,
            detail: "a detail that is long enough to be broken over more than one line of text"
                .into(),
            degraded: "something that takes many words to say, so that it goes over two lines too",
            mend: "do this",
        };
        let ok = !ability.blocks();
        let maps = maps(&Sizes::default(), Some(2)).expect("the object is sound");
        let coverage = vec![Reach {
            pid: Some(4_121),
            comm: Some("python3".into()),
            library: Some("libcudart".into()),
            layers: vec!["runtime".into(), "driver".into()],
            can_be_probed: true,
            reason: Some("a reason that is long enough to be broken over several lines".into()),
        }];
        Diagnosis { schema: 1, ok, abilities: vec![ability], maps, coverage }
    }

    fn text(diagnosis: &Diagnosis, colour: bool) -> String {
        let mut out = Vec::new();
        write_text(diagnosis, &mut out, colour).expect("a vector takes everything");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn text_stays_within_80_columns_and_has_no_colour_unless_asked() {
        for state in [State::Present, State::Missing, State::Unknown] {
            let text = text(&diagnosis(state, false), false);
            for line in text.lines() {
                assert!(line.chars().count() <= WIDTH, "{line}");
            }
            assert!(!text.contains('\x1b'));
        }
        assert!(super::tests::text(&diagnosis(State::Missing, true), true).contains("\x1b[31m"));
    }

    #[test]
    fn a_missing_ability_says_what_and_how_and_a_present_one_does_not() {
        let missing = text(&diagnosis(State::Missing, true), false);
        assert!(missing.contains("without it: something"), "{missing}");
        assert!(missing.contains("to mend:    do this"), "{missing}");
        assert!(missing.contains("cannot work here: CAP_CHECKPOINT_RESTORE"), "{missing}");
        let present = text(&diagnosis(State::Present, true), false);
        assert!(!present.contains("to mend"), "{present}");
        assert!(present.ends_with("memtrace works here.\n"), "{present}");
    }

    #[test]
    fn json_keeps_its_keys() {
        let json = serde_json::to_value(diagnosis(State::Unknown, false)).expect("json");
        assert_eq!(json["schema"], 1);
        assert_eq!(json["ok"], true);
        assert_eq!(json["abilities"][0]["state"], "unknown");
        for key in ["name", "state", "required", "detail", "degraded", "mend"] {
            assert!(json["abilities"][0].get(key).is_some(), "{key}");
        }
        for key in ["possible_cpus", "budget_bytes", "total_bytes", "ring_bytes", "maps"] {
            assert!(json["maps"].get(key).is_some(), "{key}");
        }
        for key in ["name", "kind", "key_bytes", "value_bytes", "entries", "bytes"] {
            assert!(json["maps"]["maps"][0].get(key).is_some(), "{key}");
        }
        assert_eq!(json["maps"]["maps"][0]["kind"], "hash");
    }

    #[test]
    fn mebibytes_are_rounded_up() {
        assert_eq!(mebibytes(96 << 20), "96.00");
        assert_eq!(mebibytes(1), "0.01");
    }
}
