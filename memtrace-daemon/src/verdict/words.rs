//! A verdict in words that a person can check: what was seen, and what would decide.

use super::VerdictConfig;
use super::weigh::{self, Missing, Weighed, missing};
use crate::human;
use crate::snapshot::{Evidence, Verdict};

/// What decided, or would decide.
pub(super) fn reasons(
    config: &VerdictConfig,
    verdict: Verdict,
    weighed: &Weighed,
    evidence: &Evidence,
) -> Vec<String> {
    match verdict {
        Verdict::Leak => {
            let mut reasons = vec![rose(evidence)];
            reasons.extend(chance(evidence));
            reasons.extend(kept(weighed, evidence));
            reasons.extend(straight(weighed));
            reasons.extend(by_allocation(evidence));
            if weighed.idle > 0 {
                reasons.push("the site is idle now; nothing of what it kept was freed".to_owned());
            }
            reasons
        }
        Verdict::Growing => {
            let mut reasons = vec![rose(evidence)];
            let missing = missing(config, weighed);
            reasons.extend(missing.iter().map(|missing| wants(config, weighed, missing)));
            if !weighed.turns_over {
                reasons.push("no frees seen yet: a cache that fills looks the same".to_owned());
            }
            reasons
        }
        Verdict::Plateau => {
            let since = f64::from(evidence.since_maximum_seconds.unwrap_or(0.0));
            vec![format!("it grew, and has not grown for {}", human::duration(since))]
        }
        _ => Vec::new(),
    }
}

fn rose(evidence: &Evidence) -> String {
    format!(
        "floor rose in {} of {} windows of {} s",
        evidence.rising_windows,
        evidence.windows.saturating_sub(1),
        evidence.window_seconds
    )
}

fn chance(evidence: &Evidence) -> Option<String> {
    if let (Some(_), Some(more), Some(p)) =
        (evidence.floor_last_objects, evidence.slope_objects_per_second, evidence.trend_p)
    {
        return Some(format!("by {more:.2} objects a second; by chance with p = {p:.0e}"));
    }
    let (slope, p) = (evidence.slope_bytes_per_second?, evidence.trend_p?);
    Some(format!(
        "by {} a second ({} to {} with 95 %); by chance with p = {p:.0e}",
        human::about_bytes(slope.value),
        human::about_bytes(slope.low),
        human::about_bytes(slope.high)
    ))
}

fn kept(weighed: &Weighed, evidence: &Evidence) -> Option<String> {
    if weighed.grows_in_size() {
        let words =
            "as many objects as before, each larger: blocks that are copied into larger ones";
        return Some(words.to_owned());
    }
    let freed = f64::from(evidence.freed_share?) * 100.0;
    if !weighed.turns_over {
        return Some(match freed > 0.0 {
            true => format!("{freed:.0} % of what was allocated was freed"),
            false => "nothing was ever freed".to_owned(),
        });
    }
    let residence = human::duration(f64::from(evidence.residence_seconds?));
    let last = evidence.survival.last()?;
    Some(format!(
        "what is freed is freed within {residence}; of what is older than {} there is still {}",
        human::duration(f64::from(last.age_seconds)),
        share(f64::from(last.share))
    ))
}

fn share(share: f64) -> String {
    match share * 100.0 {
        percent if percent >= 1.0 || percent == 0.0 => format!("{percent:.0} %"),
        percent => format!("{percent:.2} %"),
    }
}

fn straight(weighed: &Weighed) -> Option<String> {
    let ratio = weigh::straight(weighed).filter(|_| !weighed.grows_in_size())?;
    Some(format!("it does not slow down: late growth is {ratio:.2} of growth before"))
}

fn by_allocation(evidence: &Evidence) -> Option<String> {
    let bytes = evidence.bytes_per_allocation?;
    (bytes > 0.0).then(|| format!("{} an allocation stay", human::about_bytes(bytes)))
}

fn wants(config: &VerdictConfig, weighed: &Weighed, missing: &Missing) -> String {
    match missing {
        Missing::Time(windows) => {
            let seconds = f64::from(*windows) * config.window_seconds;
            format!("{} more of this tell", human::duration(seconds))
        }
        Missing::Steps(seen, needed) => {
            format!("it grew in {seen} steps; {needed} tell first uses from a leak")
        }
        Missing::Chance(p) => format!("it may be chance (p = {p:.2})"),
        Missing::Straight(ratio) => format!(
            "it slows down: late growth is {ratio:.2} of growth before, as where a cache fills"
        ),
        Missing::Bursts(ratio) => {
            format!(
                "it grows in bursts: {ratio:.1} times as much as before, as a pool does with load"
            )
        }
        Missing::Rest(windows) => {
            let seconds = f64::from(*windows) * config.window_seconds;
            format!("it has not grown for {}", human::duration(seconds))
        }
        Missing::Few(more) => {
            format!("{more:.0} more objects may be chance where so many come and go")
        }
        Missing::Below(windows) => {
            let seconds = f64::from(*windows) * config.window_seconds;
            format!("it was higher {} ago: it may swing", human::duration(seconds))
        }
        Missing::Pace(ratio) => {
            format!("{ratio:.1} times as much is freed as at first: it may come to rest by itself")
        }
        Missing::Load(ratio) => format!(
            "load may explain it: {ratio:.1} times as many allocations as at first, that live for \
             up to {}",
            human::duration(f64::from(weighed.residence) * config.window_seconds)
        ),
        Missing::Old(share) => format!(
            "what is live is young: {:.0} % of the growth is older than {}",
            share * 100.0,
            human::duration(
                f64::from(weighed.trend.map_or(0, |trend| weigh::old_age(weighed, &trend)))
                    * config.window_seconds
            )
        ),
    }
}
