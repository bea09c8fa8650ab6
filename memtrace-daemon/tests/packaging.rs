//! What is packaged is what its own tools accept: systemd's and Prometheus'.

#![cfg(test)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
}

fn unit() -> String {
    fs::read_to_string(packaging().join("systemd/memtrace.service")).unwrap()
}

/// Runs a command; its words if it fails or, where nothing may be said, says anything.
fn run(program: &str, arguments: &[&str], directory: &Path) -> (bool, String) {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// Values of one setting, in order.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn each_capability_stands_with_its_reason_and_none_is_too_much() {
    let unit = unit();
    let ambient = values(&unit, "AmbientCapabilities");
    let bounding: Vec<&str> =
        values(&unit, "CapabilityBoundingSet").iter().flat_map(|set| set.split(' ')).collect();
    assert_eq!(ambient, bounding);
    assert_eq!(ambient.len(), 6);
    assert!(!ambient.contains(&"CAP_SYS_ADMIN"));
    let lines: Vec<&str> = unit.lines().collect();
    for (above, line) in lines.iter().zip(lines.iter().skip(1)) {
        if line.starts_with("AmbientCapabilities=") {
            assert!(above.starts_with("# "), "{line} stands without its reason");
        }
    }
}

/// What hides /proc/kallsyms or the GPUs must stay off, whatever a score says.
#[test]
fn nothing_in_the_sandbox_blinds_the_daemon() {
    let unit = unit();
    for key in ["ProtectKernelLogs", "ProtectKernelTunables", "PrivateDevices", "PrivateUsers"] {
        assert_eq!(values(&unit, key), ["no"], "{key}");
    }
    assert_eq!(values(&unit, "ProcSubset"), ["all"]);
    // A deny list behind the allowance would take these away again.
    assert_eq!(values(&unit, "SystemCallFilter").last(), Some(&"bpf perf_event_open"));
}

/// The unit in a directory of its own, with an executable that is there.
struct Installed(PathBuf);

impl Installed {
    fn new(name: &str) -> Self {
        let directory =
            std::env::temp_dir().join(format!("memtrace-unit-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let unit = unit();
        assert_eq!(values(&unit, "ExecStart"), ["/usr/bin/memtrace daemon"]);
        let unit = unit.replace("/usr/bin/memtrace", env!("CARGO_BIN_EXE_memtrace"));
        fs::write(directory.join("memtrace.service"), unit).unwrap();
        Self(directory)
    }

    fn analyze(&self, arguments: &[&str]) -> (bool, String) {
        let unit = self.0.join("memtrace.service");
        let arguments = [arguments, &[unit.to_str().unwrap()]].concat();
        run("systemd-analyze", &arguments, &self.0)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

#[test]
#[ignore = "needs systemd-analyze: cargo xtask test"]
fn the_unit_verifies() {
    let (clean, said) = Installed::new("verify").analyze(&["verify"]);
    assert!(clean && said.is_empty(), "{said}");
}

#[test]
#[ignore = "needs systemd-analyze: cargo xtask test"]
fn the_unit_verifies_with_each_drop_in() {
    for entry in fs::read_dir(packaging().join("systemd/optional/memtrace.service.d")).unwrap() {
        let path = entry.unwrap().path();
        let installed = Installed::new("drop-in");
        let directory = installed.0.join("memtrace.service.d");
        fs::create_dir_all(&directory).unwrap();
        fs::copy(&path, directory.join(path.file_name().unwrap())).unwrap();
        let (clean, said) = installed.analyze(&["verify"]);
        assert!(clean && said.is_empty(), "{}: {said}", path.display());
    }
}

#[test]
#[ignore = "needs systemd-analyze: cargo xtask test"]
fn the_sandbox_scores_two_and_a_half_or_better() {
    let (good, said) =
        Installed::new("score").analyze(&["security", "--offline=yes", "--threshold=25"]);
    let overall = said.lines().find(|line| line.contains("Overall")).unwrap_or(&said);
    println!("{overall}");
    assert!(good, "{said}");
}

/// The commands of the README's section, in a root of their own as far as they need no running
/// system: what they copy is there, the user can be made, the unit is found and can be enabled.
#[test]
#[ignore = "needs systemd-sysusers: cargo xtask test"]
fn the_readme_installs_the_service() {
    let workspace = packaging().join("..").canonicalize().unwrap();
    let readme = fs::read_to_string(workspace.join("README.md")).unwrap();
    let section = readme.split("## On a host").nth(1).unwrap();
    let block = section.split("```sh").nth(1).unwrap().split("```").next().unwrap();
    let commands: Vec<&str> =
        block.lines().map(|line| line.split('#').next().unwrap().trim()).collect();
    let root = std::env::temp_dir().join(format!("memtrace-root-{}", std::process::id()));
    fs::create_dir_all(root.join("etc")).unwrap();
    let inside = |path: &str| format!("{}{path}", root.display());
    let mut installed = 0;
    for words in commands.iter().map(|line| line.split(' ').collect::<Vec<_>>()) {
        let ["install", "-D", "-m", mode, from, to] = *words else { continue };
        // The build under test stands for the release build.
        let from = from.replace("target/release/memtrace", env!("CARGO_BIN_EXE_memtrace"));
        let arguments = ["-D", "-m", mode, &from, &inside(to)];
        let (copied, said) = run("install", &arguments, &workspace);
        assert!(copied, "{words:?}: {said}");
        installed += 1;
    }
    assert_eq!(installed, 5, "{commands:?}");
    for command in ["systemd-sysusers", "systemctl enable --now memtrace", "memtrace dump"] {
        assert!(commands.contains(&command), "{command} is not among {commands:?}");
    }

    let (right, said) = run(
        &inside("/usr/bin/memtrace"),
        &["daemon", "--check", "--config", &inside("/etc/memtrace/memtrace.toml")],
        &root,
    );
    assert!(right, "{said}");
    let option = format!("--root={}", root.display());
    let (made, said) = run("systemd-sysusers", &[&option], &root);
    assert!(made, "{said}");
    let users = fs::read_to_string(inside("/etc/passwd")).unwrap();
    assert!(users.starts_with("memtrace:x:"), "{users}");
    let (enabled, said) = run("systemctl", &[&option, "enable", "memtrace"], &root);
    assert!(enabled, "{said}");
    let wanted = inside("/etc/systemd/system/multi-user.target.wants/memtrace.service");
    assert!(fs::symlink_metadata(wanted).is_ok());
    // What the unit points at is what was installed.
    let unit = unit();
    let documentation = values(&unit, "Documentation")[0].strip_prefix("file://").unwrap();
    let program = values(&unit, "ExecStart")[0].split(' ').next().unwrap();
    for path in [documentation, program] {
        assert!(Path::new(&inside(path)).exists(), "{path} is not installed");
    }
    fs::remove_dir_all(&root).unwrap();
}

#[test]
#[ignore = "needs promtool: cargo xtask test"]
fn prometheus_takes_the_scrape_and_the_alerts_fire_when_they_should() {
    let directory = packaging().join("prometheus");
    for arguments in [
        ["check", "config", "scrape.yml"],
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
    ] {
        let (good, said) = run("promtool", &arguments, &directory);
        assert!(good, "{arguments:?}: {said}");
    }
}
