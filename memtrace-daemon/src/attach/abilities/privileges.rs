//! Capabilities as abilities: which of those that memtrace wants this process has.
//!
//! Only the effective set counts, and only in the initial user namespace: elsewhere a full set
//! means nothing to BPF. Capabilities are read here, never changed.

use std::path::Path;

use super::{Ability, State};
use crate::host::capabilities::{Capabilities, WANTED, Wanted};
use crate::host::kernel::Release;

const MEND: &str = "run as root, or give it to the service (AmbientCapabilities= of the unit)";

/// Newer stable kernels below 6.6 reserve perf-event uprobes for it.
const ADMIN: Wanted = Wanted {
    name: "CAP_SYS_ADMIN",
    bit: 21,
    general: false,
    required: true,
    purpose: "attach uprobes by perf events on kernels before 6.6",
    without: "library functions are not probed",
};

/// One row a capability.
pub(super) fn abilities(release: Option<Release>) -> Vec<Ability> {
    let initial = std::fs::read_link("/proc/self/ns/user").ok().map(|link| is_initial_user(&link));
    rows(Capabilities::held(), initial, release)
}

/// include/linux/proc_ns.h: `PROC_USER_INIT_INO` never changes.
fn is_initial_user(link: &Path) -> bool {
    link.as_os_str() == "user:[4026531837]"
}

fn rows(
    held: Result<Capabilities, String>,
    initial_user_namespace: Option<bool>,
    release: Option<Release>,
) -> Vec<Ability> {
    let needs_admin = release.is_some_and(|release| !release.at_least(6, 6));
    let wanted = WANTED.iter().copied().chain(needs_admin.then_some(ADMIN));
    wanted
        .map(|wanted| {
            let (state, detail) = match &held {
                Err(reason) => (State::Unknown, reason.as_str()),
                Ok(held) if !held.allows(&wanted) => (State::Missing, "not in the effective set"),
                Ok(_) if initial_user_namespace == Some(false) => {
                    (State::Missing, "held in a user namespace only, which BPF does not accept")
                }
                Ok(held) if !held.has(wanted.bit) => (State::Present, "CAP_SYS_ADMIN stands in"),
                Ok(_) => (State::Present, "effective"),
            };
            let Wanted { name, required, without: degraded, .. } = wanted;
            Ability { name, state, required, detail: detail.into(), degraded, mend: MEND }
        })
        .collect()
}

/// Whether the kernel would say anything but EPERM to a program.
pub(super) fn can_load_programs(abilities: &[Ability]) -> bool {
    let lacks = |name| abilities.iter().any(|a| a.name == name && a.state == State::Missing);
    !lacks("CAP_BPF") && !lacks("CAP_PERFMON")
}

/// All missing capabilities in one sentence.
pub(super) fn missing_sentence(abilities: &[Ability]) -> Option<String> {
    let missing: Vec<_> =
        abilities.iter().filter(|a| a.name.starts_with("CAP_") && a.blocks()).collect();
    match missing.as_slice() {
        [] => None,
        [one] => Some(one.sentence()),
        [first, ..] => {
            let names: Vec<_> = missing.iter().map(|ability| ability.name).collect();
            Some(format!(
                "memtrace needs {}, which are missing ({}); run as root, or give them to the \
                 service (AmbientCapabilities= of the unit)",
                names.join(", "),
                first.detail
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that are wanted but this one.
    fn all_but(missing: Option<&str>) -> Result<Capabilities, String> {
        let kept = WANTED.iter().filter(|wanted| Some(wanted.name) != missing);
        Ok(Capabilities::of(kept.map(|wanted| wanted.bit)))
    }

    #[test]
    fn each_capability_that_is_missing_is_named_alone() {
        for Wanted { name, .. } in WANTED {
            let sentence = missing_sentence(&rows(all_but(Some(name)), Some(true), None)).unwrap();
            assert!(sentence.contains(&format!("needs {name},")), "{sentence}");
            for other in WANTED.iter().filter(|other| other.name != *name) {
                assert!(!sentence.contains(other.name), "{sentence}");
            }
        }
        assert_eq!(missing_sentence(&rows(all_but(None), Some(true), None)), None);
    }

    #[test]
    fn without_any_capability_all_are_named() {
        let rows = rows(Ok(Capabilities::of([])), Some(true), None);
        let sentence = missing_sentence(&rows).unwrap();
        for Wanted { name, .. } in WANTED {
            assert!(sentence.contains(name), "{sentence}");
        }
        assert!(!can_load_programs(&rows));
    }

    #[test]
    fn capabilities_of_a_user_namespace_do_not_count() {
        let rows = rows(all_but(None), Some(false), None);
        assert!(rows.iter().all(|ability| ability.state == State::Missing));
    }

    #[test]
    fn sys_admin_is_asked_for_below_6_6_only() {
        let asked = |release| {
            let rows = rows(all_but(None), Some(true), Release::parse(release));
            rows.into_iter().any(|ability| ability.name == "CAP_SYS_ADMIN" && ability.blocks())
        };
        assert!(asked("6.1.0-40-amd64"));
        assert!(!asked("6.6.0"));
    }
}
