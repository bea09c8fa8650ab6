//! The tables that `bench_verdict` prints.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Context;
use memtrace_common::Domain;
use memtrace_corpus::cases::Case;
use memtrace_corpus::judge::{Outcome, Plan, RULES, Turnover, run};
use memtrace_corpus::recorded::Recorded;
use memtrace_corpus::score::Score;
use memtrace_corpus::tune::{Candidate, LeftOut, Played, by_case, overall};

pub(super) fn table(
    out: &mut impl Write,
    cases: &[Case],
    played: &[Played],
    baselines: bool,
) -> anyhow::Result<()> {
    let rules = if baselines { &RULES[..] } else { &RULES[..1] };
    write!(out, "{:28}{:>9}", "share of variants right", "variants")?;
    for rule in rules {
        write!(out, "{rule:>13}")?;
    }
    writeln!(out, "{:>10}{:>9}", "minutes", "in time")?;
    let scores: Vec<Vec<Score>> =
        (0..rules.len()).map(|rule| by_case(cases, played, rule)).collect();
    for (number, case) in cases.iter().enumerate() {
        let of = |rule: &Vec<Score>| rule.get(number).cloned().unwrap_or_default();
        let name = format!("{}{}", case.name, if case.leaks { " (leak)" } else { "" });
        let variants = scores.first().map(of).unwrap_or_default().variants;
        write!(out, "{name:28}{variants:>9}")?;
        for rule in &scores {
            write!(out, "{:>13.2}", of(rule).right_share())?;
        }
        // How long memtrace takes.
        let score = scores.first().map(of).unwrap_or_default();
        if let Some(seconds) = score.median_delay() {
            write!(out, "{:>10.1}{:>9.2}", seconds / 60.0, score.in_time_share())?;
        }
        writeln!(out)?;
    }
    let all: Vec<Score> = (0..rules.len()).map(|rule| overall(played, rule)).collect();
    let mut line = |name: &str, of: &dyn Fn(&Score) -> String| -> anyhow::Result<()> {
        write!(out, "{name:37}")?;
        for score in &all {
            write!(out, "{:>13}", of(score))?;
        }
        writeln!(out)?;
        Ok(())
    };
    let dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    line("precision (bar 0.97)", &|score| format!("{:.3}", score.precision()))?;
    line("recall (bar 0.95)", &|score| format!("{:.3}", score.recall()))?;
    line("false alarms a site and day (0.01)", &|score| {
        format!("{:.4}", score.false_alarms_per_site_day())
    })?;
    line("median minutes to leak", &|score| {
        dash(score.median_delay().map(|seconds| format!("{:.1}", seconds / 60.0)))
    })?;
    line("median MiB lost by then", &|score| {
        dash(score.median_bytes().map(|bytes| format!("{:.1}", bytes / (1 << 20) as f64)))
    })?;
    line("leaks called in the contract's time", &|score| format!("{:.2}", score.in_time_share()))?;
    line("  turnover known (5 min or 3 lives)", &|score| counted(score.freeing))?;
    line("  turnover unknown (8 to 12 min)", &|score| counted(score.unfreed))?;
    line("calibration error (bar 0.05)", &|score| {
        dash(score.calibration_error().map(|error| format!("{error:.3}")))
    })?;
    if let Some(score) = all.first() {
        for (sure, right, count) in score.reliability() {
            writeln!(out, "  sure {sure:.2}, right {right:.2} of {count}")?;
        }
    }
    let measured = cases.iter().filter(|case| case.is_measured()).map(|case| case.name);
    let measured: Vec<&str> = measured.collect();
    if baselines && !measured.is_empty() {
        writeln!(
            out,
            "measured, not booked: {}; the other rules look at the books alone, and are right \
             there where they call nothing a leak",
            measured.join(", ")
        )?;
    }
    Ok(())
}

fn counted((all, in_time): (usize, usize)) -> String {
    format!("{in_time} of {all}")
}

pub(super) fn failures(
    out: &mut impl Write,
    cases: &[Case],
    played: &[Played],
) -> anyhow::Result<()> {
    for one in played {
        let name = cases.get(one.case).map_or("", |case| case.name);
        let Some(outcome) = one.outcomes.first().filter(|outcome| !outcome.right) else { continue };
        writeln!(out, "{name:20} seed {:8}  {}", one.seed, complaint(outcome))?;
    }
    Ok(())
}

pub(super) fn calls(out: &mut impl Write, cases: &[Case], played: &[Played]) -> anyhow::Result<()> {
    for one in played {
        let name = cases.get(one.case).map_or("", |case| case.name);
        for found in one.outcomes.first().into_iter().flat_map(|outcome| &outcome.found) {
            let minutes = found.after.map(|seconds| format!("{:.1} min", seconds / 60.0));
            let minutes = minutes.unwrap_or_else(|| "never".to_owned());
            let growth = found.after.map(|seconds| (seconds - found.rested) / 60.0);
            let growth = growth.filter(|_| found.rested > 0.0);
            let growth = growth.map(|minutes| format!(", {minutes:.1} of growth"));
            let growth = growth.unwrap_or_default();
            let domain = found.domain.map_or("", Domain::name);
            let turnover = match found.turnover {
                Turnover::Unknown => String::new(),
                Turnover::Known(seconds) => format!("lives {seconds:.0} s"),
                Turnover::OfMany => "of many".to_owned(),
            };
            writeln!(
                out,
                "{name:20} seed {:8} {domain:8} {turnover:12} {minutes:>10}{growth}",
                one.seed
            )?;
        }
    }
    Ok(())
}

fn complaint(outcome: &Outcome) -> String {
    let mut words = Vec::new();
    for (expectation, said, right) in &outcome.finals {
        if !right {
            let names: Vec<&str> =
                expectation.finals.iter().map(|verdict| verdict.name()).collect();
            let (names, said) = (names.join(" or "), said.name());
            words.push(match expectation.words {
                "" => format!("expected {names}, said {said}"),
                part => format!("expected {names} in the words {part:?}, said {said}"),
            });
        }
    }
    for (what, second) in &outcome.wrong {
        words.push(format!("wrong leak at {:.1} min: {what}", *second as f64 / 60.0));
    }
    for (what, second) in &outcome.loud {
        words.push(format!("not silent at {:.1} min: {what}", *second as f64 / 60.0));
    }
    words.join("; ")
}

pub(super) fn trace(out: &mut impl Write, cases: &[Case], seed: u64) -> anyhow::Result<()> {
    let case = cases.first().context("a case")?;
    let plan = Plan { trace: true, ..Plan::default() };
    let outcomes = run(case, seed, &plan);
    let outcome = outcomes.first().context("memtrace's own outcome")?;
    writeln!(out, "{}: {}, seed {seed}", case.name, case.about)?;
    let step = (outcome.looks.len() / 120).max(1);
    for (number, look) in outcome.looks.iter().enumerate() {
        let before = number.checked_sub(1).and_then(|before| outcome.looks.get(before));
        if number % step == 0 || before.is_none_or(|before| before.verdict != look.verdict) {
            let minutes = look.second as f64 / 60.0;
            let live = look.live_bytes as f64 / (1 << 20) as f64;
            let why = look.why.clone().unwrap_or_default();
            writeln!(out, "{minutes:8.1} min {live:12.2} MiB  {:12} {why}", look.verdict.name())?;
        }
    }
    for found in &outcome.found {
        writeln!(out, "leak called after {:?} s, {} bytes lost", found.after, found.bytes)?;
    }
    let verdict = if outcome.right { "right".to_owned() } else { complaint(outcome) };
    writeln!(out, "{verdict}")?;
    Ok(())
}

/// Recordings of real programs, a row each as the cases have.
pub(super) fn recordings(out: &mut impl Write, recordings: &[Recorded]) -> anyhow::Result<()> {
    writeln!(out, "{:28}{:>9}{:>13}", "real programs, recorded", "labels", "memtrace")?;
    for recorded in recordings {
        let Recorded { name, labels, right: _, wrong } = recorded;
        let name = format!("recorded: {name}");
        writeln!(out, "{name:28}{labels:>9}{:>13.2}", recorded.right_share())?;
        for line in wrong {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}

/// What was chosen without each case, and where that made a difference to what is shipped.
pub(super) fn left_out(
    out: &mut impl Write,
    cases: &[Case],
    candidates: &[Candidate],
    left_out: &LeftOut,
    shipped: &[Score],
) -> anyhow::Result<()> {
    let LeftOut { score, cases: chosen, shortfalls, trained_on } = left_out;
    let mut times = BTreeMap::<usize, usize>::new();
    for (candidate, _) in chosen {
        *times.entry(*candidate).or_default() += 1;
    }
    writeln!(
        out,
        "numbers to choose from, on {trained_on} training variants (what each falls short by: \
         distances from perfect in units of what the bars allow)"
    )?;
    for (number, (candidate, short)) in candidates.iter().zip(shortfalls).enumerate() {
        let times = times.get(&number).copied().unwrap_or(0);
        writeln!(
            out,
            "  {:28}{short:>9.2}   chosen without {times} of {} cases",
            candidate.name,
            cases.len()
        )?;
    }
    let (precision, recall) = (score.precision(), score.recall());
    writeln!(
        out,
        "each case left out of what was tuned: precision {precision:.3}, recall {recall:.3}, \
         variants right {:.3}",
        score.right_share()
    )?;
    for ((case, (candidate, own)), shipped) in cases.iter().zip(chosen).zip(shipped) {
        let (share, before) = (own.right_share(), shipped.right_share());
        if (share - before).abs() > 1e-9 {
            let name = candidates.get(*candidate).map_or("", |candidate| &candidate.name);
            writeln!(
                out,
                "  without {}: {name}: {share:.2} right, {before:.2} as shipped",
                case.name
            )?;
        }
    }
    Ok(())
}
