//! The systemd unit, as far as it can be had without systemd: another user, exactly the unit's
//! capabilities, no new privileges.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::paths;

/// A user that owns nothing here. The unit's own user need not exist on a test machine.
const USER: &str = "65534";

/// The capabilities that the unit gives, in lower case and without `cap_`.
///
/// # Errors
///
/// When the unit cannot be read, gives none, or bounds the service by another set.
pub fn capabilities() -> anyhow::Result<Vec<String>> {
    let path = paths::workspace().join("packaging/systemd/memtrace.service");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("reading the unit {}", path.display()))?;
    let ambient = setting(&text, "AmbientCapabilities");
    ensure!(!ambient.is_empty(), "the unit sets no AmbientCapabilities");
    let bounding = setting(&text, "CapabilityBoundingSet");
    ensure!(ambient == bounding, "the unit gives {ambient:?} but is bounded by {bounding:?}");
    Ok(ambient)
}

/// All capabilities of a setting that may be given over several lines and continued ones.
fn setting(text: &str, name: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let mut all: Vec<String> = joined
        .lines()
        .filter_map(|line| line.trim().strip_prefix(name)?.trim_start().strip_prefix('='))
        .flat_map(str::split_whitespace)
        .map(|word| word.to_ascii_lowercase().trim_start_matches("cap_").to_owned())
        .collect();
    all.sort();
    all
}

/// The command that runs a binary as the unit would, with these capabilities.
#[must_use]
pub fn command(binary: &Path, capabilities: &[String]) -> Command {
    let set = capabilities.iter().fold("-all".to_owned(), |set, one| set + ",+" + one);
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "--no-new-privs"]);
    command.args(["--bounding-set", &set, "--inh-caps", &set, "--ambient-caps", &set]);
    command.arg("--").arg(binary);
    command
}

#[cfg(test)]
mod tests {
    use super::setting;

    #[test]
    fn a_setting_may_be_spread_over_lines() {
        let unit = "[Service]\nAmbientCapabilities=CAP_BPF CAP_PERFMON\n# CAP_X\n\
                    AmbientCapabilities=CAP_SYSLOG \\\n  CAP_SYS_PTRACE\n";
        let all = setting(unit, "AmbientCapabilities");
        assert_eq!(all, ["bpf", "perfmon", "sys_ptrace", "syslog"]);
    }
}
