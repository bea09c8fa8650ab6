//! Capabilities: which of those that memtrace uses this process has.
//!
//! Only the effective set counts, and only in the initial user namespace: elsewhere a full set
//! means nothing to BPF. Capabilities are read here, never changed.

use aya::util::KernelVersion;
use rustix::thread::CapabilitySet;

use super::host::in_initial_namespace;
use super::{Ability, State};

/// Where uprobe_multi begins; below it perf-event uprobes are used.
pub(super) const UPROBE_MULTI_SINCE: KernelVersion = KernelVersion::new(6, 6, 0);

const MEND: &str = "run as root, or give it to the service (AmbientCapabilities= of the unit)";

/// Name, bit, and what is worse without it.
const CAPABILITIES: [(&str, CapabilitySet, &str); 6] = [
    ("CAP_BPF", CapabilitySet::BPF, "no BPF program can be loaded and no map made"),
    (
        "CAP_PERFMON",
        CapabilitySet::PERFMON,
        "no program may read kernel memory or be attached, and new mappings are not told",
    ),
    (
        "CAP_SYS_PTRACE",
        CapabilitySet::SYS_PTRACE,
        "mappings of other users' processes cannot be read: their libraries are not found and \
         their frames not named",
    ),
    (
        "CAP_DAC_READ_SEARCH",
        CapabilitySet::DAC_READ_SEARCH,
        "libraries, executables and slab statistics that only their owner may read stay closed",
    ),
    (
        "CAP_SYSLOG",
        CapabilitySet::SYSLOG,
        "the kernel shows its symbols without addresses: kernel frames have no names",
    ),
    (
        "CAP_CHECKPOINT_RESTORE",
        CapabilitySet::CHECKPOINT_RESTORE,
        "files cannot be opened by their mapping: libraries in other mount namespaces, and deleted \
         ones, are not probed",
    ),
];

/// Newer stable kernels below 6.6 reserve perf-event uprobes for it.
const ADMIN: (&str, CapabilitySet, &str) = (
    "CAP_SYS_ADMIN",
    CapabilitySet::SYS_ADMIN,
    "this kernel has no uprobe_multi, and uprobes by perf events may need it: library functions \
     cannot be probed",
);

/// One row a capability.
pub(super) fn abilities(release: Option<KernelVersion>) -> Vec<Ability> {
    let held = rustix::thread::capabilities(None).ok().map(|sets| sets.effective);
    rows(held, in_initial_namespace("user"), release)
}

fn rows(
    held: Option<CapabilitySet>,
    initial_user_namespace: Option<bool>,
    release: Option<KernelVersion>,
) -> Vec<Ability> {
    let needs_admin = release.is_some_and(|release| release < UPROBE_MULTI_SINCE);
    let needed = CAPABILITIES.into_iter().chain(needs_admin.then_some(ADMIN));
    needed
        .map(|(name, bit, degraded)| {
            let (state, detail) = match held {
                None => (State::Unknown, "capabilities could not be read"),
                Some(held) if !held.contains(bit) => (State::Missing, "not in the effective set"),
                Some(_) if initial_user_namespace == Some(false) => {
                    (State::Missing, "held in a user namespace only, which BPF does not accept")
                }
                Some(_) => (State::Present, "effective"),
            };
            Ability { name, state, required: true, detail: detail.into(), degraded, mend: MEND }
        })
        .collect()
}

fn is_capability(ability: &Ability) -> bool {
    ability.name.starts_with("CAP_")
}

/// Whether the kernel would say anything but EPERM to a program.
pub(super) fn can_load_programs(abilities: &[Ability]) -> bool {
    let lacks = |name| abilities.iter().any(|a| a.name == name && a.state == State::Missing);
    !lacks("CAP_BPF") && !lacks("CAP_PERFMON")
}

/// All missing capabilities in one sentence.
pub(super) fn missing_sentence(abilities: &[Ability]) -> Option<String> {
    let missing: Vec<_> = abilities.iter().filter(|a| is_capability(a) && a.blocks()).collect();
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

    fn all() -> CapabilitySet {
        CAPABILITIES.iter().fold(CapabilitySet::empty(), |set, (_, bit, _)| set | *bit)
    }

    #[test]
    fn each_capability_that_is_missing_is_named_alone() {
        for (name, bit, _) in CAPABILITIES {
            let rows = rows(Some(all() - bit), Some(true), None);
            let sentence = missing_sentence(&rows).expect("one is missing");
            assert!(sentence.contains(&format!("needs {name},")), "{sentence}");
            let others = CAPABILITIES.iter().filter(|(other, ..)| *other != name);
            for (other, ..) in others {
                assert!(!sentence.contains(other), "{sentence}");
            }
        }
        assert_eq!(missing_sentence(&rows(Some(all()), Some(true), None)), None);
    }

    #[test]
    fn without_any_capability_all_are_named() {
        let rows = rows(Some(CapabilitySet::empty()), Some(true), None);
        let sentence = missing_sentence(&rows).expect("all are missing");
        for (name, ..) in CAPABILITIES {
            assert!(sentence.contains(name), "{sentence}");
        }
        assert!(!can_load_programs(&rows));
    }

    #[test]
    fn capabilities_of_a_user_namespace_do_not_count() {
        let rows = rows(Some(all()), Some(false), None);
        assert!(rows.iter().all(|ability| ability.state == State::Missing));
    }

    #[test]
    fn sys_admin_is_asked_for_below_6_6_only() {
        let names = |release| {
            let rows = rows(Some(all()), Some(true), Some(release));
            rows.into_iter().any(|ability| ability.name == "CAP_SYS_ADMIN" && ability.blocks())
        };
        assert!(names(KernelVersion::new(6, 1, 0)));
        assert!(!names(KernelVersion::new(6, 6, 0)));
    }
}
