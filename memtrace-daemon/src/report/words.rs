//! Facts about processes and findings in words, the same in the report and in `top`. Texts are
//! escaped: they may be shown as they are.

use super::escape::{escape, fit};
use crate::human;

/// A whole command line can be megabytes; so much of it is enough to know it by.
const WIDEST_COMMAND: usize = 72;

/// What a person calls a process: its command line without the directory, else its name.
#[must_use]
pub fn process(cmdline: Option<&str>, comm: &str, ended: bool) -> String {
    let line = cmdline.map(str::trim).filter(|line| !line.is_empty());
    let name = match line {
        Some(line) => {
            let (program, arguments) = line.split_once(' ').unwrap_or((line, ""));
            let program = program.rsplit('/').next().unwrap_or(program);
            format!("{program} {arguments}")
        }
        None => comm.to_owned(),
    };
    let name = escape(name.trim_end()).into_owned();
    let name = fit(&name, WIDEST_COMMAND).into_owned();
    if ended { format!("{name} (ended)") } else { name }
}

/// Process ids in a cell: `4121`, `4121 +3`.
#[must_use]
pub fn pids(pids: &[u32]) -> String {
    match pids {
        [] => "–".into(),
        [pid] => pid.to_string(),
        [pid, others @ ..] => format!("{pid} +{}", others.len()),
    }
}

/// When memory will be gone and which, or what stands where nobody can say.
#[must_use]
pub fn exhausted_in(end: Option<(f64, &str)>, verdict: &str) -> String {
    match end {
        Some((seconds, of)) => {
            let of = of.rsplit('/').next().unwrap_or(of);
            format!("{} ({})", human::duration(seconds), escape(of))
        }
        None if matches!(verdict, "growing" | "warming" | "unreliable") => "undecided".into(),
        None => "–".into(),
    }
}

/// How much of what was allocated is still there; `None` where nothing was allocated.
#[must_use]
pub fn kept(live: u64, all: u64, oldest_seconds: Option<f64>) -> Option<String> {
    (all > 0).then(|| {
        let oldest = oldest_seconds.map(|age| format!(", the oldest for {}", human::duration(age)));
        format!(
            "keeps {} of {}{}",
            human::count(live),
            human::counted(all, "allocation"),
            oldest.unwrap_or_default()
        )
    })
}

/// How the floor of live bytes rose.
#[must_use]
pub fn floors(
    first_bytes: u64,
    last_bytes: u64,
    windows: u32,
    window_seconds: f64,
    rising: u32,
) -> String {
    format!(
        "floor {} → {} over {} of {}, {rising} rising",
        human::bytes(first_bytes),
        human::bytes(last_bytes),
        human::counted(u64::from(windows), "window"),
        human::duration(window_seconds),
    )
}
