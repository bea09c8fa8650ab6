//! `cargo xtask bench verdict`: how well memtrace tells leaks from the rest, beside three rules
//! that people use today. Prints tables; fails when a bar is missed.

mod table;

use anyhow::bail;
use clap::Parser;
use memtrace_corpus::cases::{self, Case};
use memtrace_corpus::judge::{Plan, run};
use memtrace_corpus::recorded::{self, Recorded};
use memtrace_corpus::tune::{
    Bars, LeftOut, Played, TRAINING, UNSEEN, by_case, candidates, leave_one_out, overall, play,
};

/// What to measure, and how much to say.
#[derive(Debug, Parser)]
struct Args {
    /// Only the case of this name, or where there is none those whose names begin with this
    #[arg(long)]
    case: Option<String>,
    /// Only this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Variants of each leak; others have as many as make leaks a quarter
    #[arg(long, default_value_t = 20)]
    variants: u64,
    /// Variants of each leak that numbers are chosen on, for each case without it
    #[arg(long, default_value_t = 6)]
    training_variants: u64,
    /// The recordings of real programs, and nothing else
    #[arg(long)]
    recordings: bool,
    /// The training seeds instead of the unseen ones
    #[arg(long)]
    training: bool,
    /// The unseen seeds where single variants are shown: what is tuned on them is unseen no more
    #[arg(long, conflicts_with = "training")]
    unseen: bool,
    /// memtrace alone
    #[arg(long)]
    alone: bool,
    /// Each look at what is expected, with the verdict
    #[arg(long)]
    trace: bool,
    /// Only what memtrace has wrong
    #[arg(long)]
    only_failures: bool,
    /// Each leak, and when memtrace called it one
    #[arg(long)]
    calls: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut out = std::io::stdout().lock();
    if args.recordings {
        let recordings = recorded::replay_all(&recorded::directory())?;
        return table::recordings(&mut out, &recordings);
    }
    let mut cases = cases::all();
    if let Some(name) = &args.case {
        let is_one = cases.iter().any(|case| case.name == name);
        cases.retain(
            |case| {
                if is_one { case.name == name } else { case.name.starts_with(name.as_str()) }
            },
        );
    }
    if cases.is_empty() {
        bail!("no case begins with {:?}", args.case.unwrap_or_default());
    }
    let shows_variants = args.trace || args.only_failures || args.calls;
    let training = args.training || (shows_variants && !args.unseen);
    let first = args.seed.unwrap_or(if training { TRAINING } else { UNSEEN });
    if args.trace {
        return table::trace(&mut out, &cases, first);
    }
    let alone = args.alone || args.only_failures || args.calls;
    let plan = Plan { baselines: !alone, ..Plan::default() };
    let of_a_leak = if args.seed.is_some() { 1 } else { args.variants };
    let played = if args.seed.is_some() {
        let one = |(case, of): (usize, &Case)| Played {
            case,
            seed: first,
            outcomes: run(of, first, &plan),
        };
        cases.iter().enumerate().map(one).collect()
    } else {
        play(&cases, first, of_a_leak, &plan)
    };
    if args.only_failures {
        return table::failures(&mut out, &cases, &played);
    }
    if args.calls {
        return table::calls(&mut out, &cases, &played);
    }
    table::table(&mut out, &cases, &played, plan.baselines)?;
    let whole = args.case.is_none() && args.seed.is_none() && !args.training;
    let mut missed = missed(&cases, &played);
    if whole {
        let recordings = recorded::replay_all(&recorded::directory())?;
        table::recordings(&mut out, &recordings)?;
        missed.extend(missed_in_recordings(&recordings));
        let candidates = candidates();
        let variants = (args.training_variants, of_a_leak);
        let left_out = leave_one_out(&cases, &candidates, variants, &played);
        table::left_out(&mut out, &cases, &candidates, &left_out, &by_case(&cases, &played, 0))?;
        missed.extend(missed_left_out(&cases, &played, &left_out));
    }
    if whole && !missed.is_empty() {
        bail!("{}", missed.join("; "));
    }
    Ok(())
}

/// A value below its bar.
fn too_low(what: &str, value: f64, bar: f64) -> Option<String> {
    (value < bar).then(|| format!("{what} is {value:.3}, the bar is {bar:.3}"))
}

/// A value above its bar.
fn too_high(what: &str, value: f64, bar: f64) -> Option<String> {
    (value > bar).then(|| format!("{what} is {value:.3}, the bar is {bar:.3}"))
}

/// The bars that are missed on unseen seeds.
fn missed(cases: &[Case], played: &[Played]) -> Vec<String> {
    let bars = Bars::default();
    let score = overall(played, 0);
    let calibration = score.calibration_error().unwrap_or(1.0);
    let mut missed = vec![
        too_low("precision", score.precision(), bars.precision),
        too_low("recall", score.recall(), bars.recall),
        too_high("calibration error", calibration, bars.calibration),
        too_high("false alarms a site and day", score.false_alarms_per_site_day(), bars.alarms),
    ];
    for (case, score) in cases.iter().zip(by_case(cases, played, 0)) {
        missed.push(too_low(case.name, score.right_share(), bars.each_case));
    }
    missed.into_iter().flatten().collect()
}

/// Recordings that are no better than a case may be.
fn missed_in_recordings(recordings: &[Recorded]) -> Vec<String> {
    let bar = Bars::default().each_case;
    let missed =
        |one: &Recorded| too_low(&format!("recorded: {}", one.name), one.right_share(), bar);
    recordings.iter().filter_map(missed).collect()
}

/// What is worse than on unseen seeds by more than it may be, where a case was left out.
fn missed_left_out(cases: &[Case], played: &[Played], left_out: &LeftOut) -> Vec<String> {
    let less = Bars::default().left_out;
    let (score, without) = (overall(played, 0), &left_out.score);
    let mut missed = vec![
        too_low("precision left out", without.precision(), score.precision() - less),
        too_low("recall left out", without.recall(), score.recall() - less),
    ];
    let each = cases.iter().zip(by_case(cases, played, 0)).zip(&left_out.cases);
    for ((case, with), (_, without)) in each {
        let what = format!("{} left out", case.name);
        // Twenty variants: one more that is wrong is just the bar.
        missed.push(too_low(&what, without.right_share(), with.right_share() - less - 1e-9));
    }
    missed.into_iter().flatten().collect()
}
