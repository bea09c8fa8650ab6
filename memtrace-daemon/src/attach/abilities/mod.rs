//! Abilities: what memtrace needs of this host, whether it is there, what is worse without it,
//! and how to mend it.
//!
//! Each is tried in the way in which it is used, never inferred from something near it: under
//! lockdown a fentry program is refused while a BTF tracepoint loads. Probing leaves nothing
//! behind, attaches nothing but one empty program for a moment, and never changes the host.

mod host;
mod kernel;
mod privileges;
pub mod program;
pub mod sys;

pub use kernel::kernel_type;
use serde::Serialize;

/// Whether an ability is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Tried, and it works.
    Present,
    /// Tried, and it does not.
    Missing,
    /// Could not be tried, or not told.
    Unknown,
}

/// One ability.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ability {
    /// A stable name, such as `tp_btf` or `CAP_BPF`.
    pub name: &'static str,
    /// Whether it is there.
    pub state: State,
    /// Whether memtrace refuses to start without it.
    pub required: bool,
    /// What was found: a version, a mode, the kernel's error.
    pub detail: String,
    /// What is worse without it.
    pub degraded: &'static str,
    /// What a person can do to have it.
    pub mend: &'static str,
}

impl Ability {
    /// What a person calls it.
    #[must_use]
    pub fn title(&self) -> &'static str {
        match self.name {
            "kernel" => "kernel 6.1 or later",
            "architecture" => "x86-64",
            "pid_namespace" => "initial pid namespace",
            "kallsyms" => "kernel symbols",
            "lockdown" => "no lockdown",
            "btf" => "BTF",
            "attach_cookies" => "attach cookies",
            "ring_buffer" => "ring buffer",
            "task_storage" => "task storage",
            "for_each" => "walking maps",
            "kernel_reads" => "reading the kernel",
            "mapping_events" => "mapping events",
            "nvml" => "NVML",
            name => name,
        }
    }

    /// Whether memtrace cannot work because of it.
    #[must_use]
    pub const fn blocks(&self) -> bool {
        self.required && matches!(self.state, State::Missing)
    }

    /// One sentence: what is missing, what that means, what to do.
    #[must_use]
    pub fn sentence(&self) -> String {
        let Self { name: _, state: _, required: _, detail, degraded, mend } = self;
        let title = self.title();
        format!("memtrace needs {title}, which is missing ({detail}): {degraded}; {mend}")
    }
}

/// All abilities, in the order in which a person would mend them.
#[must_use]
pub fn probe() -> Vec<Ability> {
    let mut abilities = unprivileged();
    let able = privileges::can_load_programs(&abilities);
    abilities.extend(kernel::abilities(able));
    abilities.extend(host::conveniences());
    abilities
}

/// Why memtrace cannot start here: the first required ability that is missing, capabilities
/// first (all that are missing in one sentence). Nothing where it can.
#[must_use]
pub fn required_missing() -> Option<String> {
    let mut abilities = unprivileged();
    if let Some(sentence) = privileges::missing_sentence(&abilities) {
        return Some(sentence);
    }
    let able = privileges::can_load_programs(&abilities);
    if !abilities.iter().any(Ability::blocks) {
        abilities.extend(kernel::required(able));
    }
    abilities.iter().find(|ability| ability.blocks()).map(Ability::sentence)
}

/// What can be found out without any privilege.
fn unprivileged() -> Vec<Ability> {
    let release = crate::host::kernel::Release::running();
    let mut abilities = host::requirements(release);
    abilities.extend(privileges::abilities(release));
    abilities.extend(host::symbols_and_lockdown());
    abilities
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_says_what_is_degraded_and_how_to_mend_it() {
        let abilities = probe();
        for name in [
            "kernel",
            "architecture",
            "pid_namespace",
            "CAP_BPF",
            "CAP_PERFMON",
            "CAP_SYS_PTRACE",
            "CAP_DAC_READ_SEARCH",
            "CAP_SYSLOG",
            "CAP_CHECKPOINT_RESTORE",
            "kallsyms",
            "lockdown",
            "btf",
            "tp_btf",
            "fentry",
            "uprobe_multi",
            "attach_cookies",
            "ring_buffer",
            "task_storage",
            "for_each",
            "kernel_reads",
            "mapping_events",
            "bpffs",
            "nvml",
        ] {
            let rows = abilities.iter().filter(|ability| ability.name == name);
            assert_eq!(rows.count(), 1, "{name} has one row, with and without privilege");
        }
        for ability in &abilities {
            assert!(!ability.detail.is_empty(), "{ability:?}");
            assert!(!ability.degraded.is_empty(), "{ability:?}");
            assert!(!ability.mend.is_empty(), "{ability:?}");
        }
    }

    #[test]
    fn a_sentence_says_what_is_missing_what_that_means_and_what_to_do() {
        let ability = Ability {
            name: "ring_buffer",
            state: State::Missing,
            required: true,
            detail: "Invalid argument (os error 22)".into(),
            degraded: "no record reaches the daemon",
            mend: "use a kernel of 5.8 or later",
        };
        assert_eq!(
            ability.sentence(),
            "memtrace needs ring buffer, which is missing (Invalid argument (os error 22)): no \
             record reaches the daemon; use a kernel of 5.8 or later"
        );
    }

    #[test]
    fn the_start_check_agrees_with_the_full_probe() {
        assert_eq!(required_missing().is_some(), probe().iter().any(Ability::blocks));
    }
}
