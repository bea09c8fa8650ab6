//! The systemd unit, as far as it can be had without systemd: another user, exactly the unit's
//! capabilities, no new privileges, its filters on system calls and sockets, and a private view
//! of the file system.
//!
//! What needs systemd or a cgroup of its own is not here: DevicePolicy=, IPAddressDeny=,
//! MemoryMax= and TasksMax=. Limits that the unit raises are left as they are.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::{fixture, paths, process};

/// A user that owns nothing here. The unit's own user need not exist on a test machine.
const USER: &str = "65534";

/// The unit's view of the file systems. $SCRATCH, the directory of a test's
/// daemon, stands for RuntimeDirectory= and StateDirectory=; the binary is linked into it, since
/// it may lie where the unit sees nothing.
const VIEW: &str = r#"
binary=$1 sandbox=$2 privileges=$3 calls=$4 families=$5
shift 5
cd "$SCRATCH"
for file in "$binary" "$sandbox"; do ln "$file" . 2>/dev/null || cp "$file" .; done
# ProtectHome=yes, PrivateTmp=yes.
for hidden in /home /root /run/user /tmp; do
    test ! -d "$hidden" || mount -t tmpfs -o mode=755 tmpfs "$hidden"
done
mkdir -p "$SCRATCH"
mount --no-canonicalize --bind . "$SCRATCH"
# ProtectProc=invisible, ReadOnlyPaths=, ProtectSystem=strict, ProtectControlGroups=yes.
mount -t proc -o hidepid=invisible proc /proc
for part in /proc/sys /sys; do mount --rbind "$part" "$part"; done
for part in /proc/sys /sys /sys/fs/cgroup /; do mount -o remount,bind,ro "$part"; done
cd /
umask 0077
exec setpriv $privileges -- "$SCRATCH/${sandbox##*/}" "$calls" "$families" \
    "$SCRATCH/${binary##*/}" "$@"
"#;

/// The unit's text.
///
/// # Errors
///
/// When it cannot be read.
pub fn text() -> anyhow::Result<String> {
    let path = paths::workspace().join("packaging/systemd/memtrace.service");
    std::fs::read_to_string(&path).with_context(|| format!("reading the unit {}", path.display()))
}

/// The capabilities that the unit gives, in lower case and without `cap_`.
///
/// # Errors
///
/// When the unit cannot be read, gives none, or bounds the service by another set.
pub fn capabilities() -> anyhow::Result<Vec<String>> {
    let text = text()?;
    let ambient = capability_set(&text, "AmbientCapabilities");
    ensure!(!ambient.is_empty(), "the unit sets no AmbientCapabilities");
    let bounding = capability_set(&text, "CapabilityBoundingSet");
    ensure!(ambient == bounding, "the unit gives {ambient:?} but is bounded by {bounding:?}");
    Ok(ambient)
}

/// All capabilities of a setting that may be given over several lines and continued ones.
fn capability_set(text: &str, name: &str) -> Vec<String> {
    let lines = setting(text, name);
    let mut all: Vec<String> = lines
        .iter()
        .flat_map(|line| line.split_whitespace())
        .map(|word| word.to_ascii_lowercase().trim_start_matches("cap_").to_owned())
        .collect();
    all.sort();
    all
}

/// The values of a setting, one a line that sets it.
fn setting(text: &str, name: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    joined
        .lines()
        .filter_map(|line| line.trim().strip_prefix(name)?.trim_start().strip_prefix('='))
        .map(|value| value.trim().to_owned())
        .collect()
}

/// The numbers of the system calls that the unit allows.
///
/// # Errors
///
/// When systemd cannot be asked what its groups of calls are.
pub fn system_calls() -> anyhow::Result<BTreeSet<u32>> {
    let header = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";
    let header = std::fs::read_to_string(header)
        .with_context(|| format!("{header}: run `cargo xtask setup`"))?;
    let mut names = BTreeSet::new();
    for line in setting(&text()?, "SystemCallFilter") {
        let (removed, words) =
            line.strip_prefix('~').map_or((false, line.as_str()), |rest| (true, rest));
        for word in words.split_whitespace() {
            for name in calls_of(word)? {
                if removed {
                    names.remove(&name);
                } else {
                    names.insert(name);
                }
            }
        }
    }
    let number = |line: &str| {
        let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        if names.contains(name) { number.trim().parse().ok() } else { None }
    };
    let numbers: BTreeSet<u32> = header.lines().filter_map(number).collect();
    ensure!(numbers.len() > 100, "only {} system calls in {names:?}", numbers.len());
    Ok(numbers)
}

/// The calls of a group such as `@system-service`, or a call itself.
fn calls_of(word: &str) -> anyhow::Result<Vec<String>> {
    if !word.starts_with('@') {
        return Ok(vec![word.to_owned()]);
    }
    let mut command = Command::new("systemd-analyze");
    command.args(["syscall-filter", "--no-pager", word]);
    let said = process::run(&mut command, crate::memtrace::LIMIT)?.expect_status(0)?;
    let members = said.stdout.lines().filter(|line| line.starts_with(' ')).map(str::trim);
    let mut calls = Vec::new();
    for member in members.filter(|member| !member.starts_with('#')) {
        calls.extend(calls_of(member)?);
    }
    Ok(calls)
}

/// The numbers of the address families that the unit allows.
fn families() -> anyhow::Result<Vec<String>> {
    let lines = setting(&text()?, "RestrictAddressFamilies");
    let words = lines.iter().flat_map(|line| line.split_whitespace());
    let number = |family| match family {
        "AF_UNIX" => Ok(libc::AF_UNIX.to_string()),
        "AF_INET" => Ok(libc::AF_INET.to_string()),
        "AF_INET6" => Ok(libc::AF_INET6.to_string()),
        other => anyhow::bail!("the unit allows {other}, which this harness does not know"),
    };
    words.map(number).collect()
}

/// The command that runs a binary as the unit's user, with these capabilities, and else as here.
#[must_use]
pub fn command(binary: &Path, capabilities: &[String]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(privileges(capabilities)).arg("--").arg(binary);
    command
}

fn privileges(capabilities: &[String]) -> Vec<String> {
    let set = capabilities.iter().fold("-all".to_owned(), |set, one| set + ",+" + one);
    let flags = ["--reuid", USER, "--regid", USER, "--clear-groups", "--no-new-privs"];
    let sets = ["--bounding-set", "--inh-caps", "--ambient-caps"];
    let sets = sets.into_iter().flat_map(|name| [name.to_owned(), set.clone()]);
    flags.into_iter().map(str::to_owned).chain(sets).collect()
}

/// The command that runs a binary as the unit would, with these capabilities: for
/// [`crate::daemon::Daemon`], which says in SCRATCH where the daemon may write.
///
/// # Errors
///
/// When the unit cannot be read or understood, or the sandbox cannot be built.
pub fn sandboxed(binary: &Path, capabilities: &[String]) -> anyhow::Result<Command> {
    let sandbox = fixture::build(fixture::Variant::Plain)?.sandbox();
    let calls: Vec<String> = system_calls()?.iter().map(u32::to_string).collect();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--ipc", "--uts", "--propagation", "private", "--"]);
    command.args(["sh", "-euc", VIEW, "sh"]).arg(binary).arg(sandbox);
    command.arg(privileges(capabilities).join(" "));
    command.arg(calls.join(",")).arg(families()?.join(","));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::{capability_set, setting};

    #[test]
    fn a_setting_may_be_spread_over_lines() {
        let unit = "[Service]\nAmbientCapabilities=CAP_BPF CAP_PERFMON\n# CAP_X\n\
                    AmbientCapabilities=CAP_SYSLOG \\\n  CAP_SYS_PTRACE\n";
        let all = capability_set(unit, "AmbientCapabilities");
        assert_eq!(all, ["bpf", "perfmon", "sys_ptrace", "syslog"]);
        assert_eq!(setting(unit, "AmbientCapabilities")[0], "CAP_BPF CAP_PERFMON");
    }
}
