//! What memtrace has in the kernel: programs, maps and links, told by the prefix of their names.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

/// What the names of memtrace's programs and maps begin with.
pub const PREFIX: &str = "mt_";

/// Identifiers in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// Programs: id and name.
    pub programs: BTreeSet<(u64, String)>,
    /// Maps: id and name.
    pub maps: BTreeSet<(u64, String)>,
    /// Links to these programs: id, and the program's id.
    pub links: BTreeSet<(u64, u64)>,
}

impl Objects {
    /// What is there now, but for what a memtrace holds that the suite did not start: this
    /// kernel may be watched by its owner.
    ///
    /// # Errors
    ///
    /// When bpftool is missing or fails.
    pub fn now() -> anyhow::Result<Self> {
        // Links first: a program read later than its link is at least still named.
        let links = bpftool("link")?;
        let mut programs = named(&bpftool("prog")?);
        let mut maps = named(&bpftool("map")?);
        let others = held_by_others();
        programs.retain(|(id, _)| !others.contains(&("prog_id", *id)));
        maps.retain(|(id, _)| !others.contains(&("map_id", *id)));
        let ids: BTreeSet<u64> = programs.iter().map(|(id, _)| *id).collect();
        let links = links
            .iter()
            .filter_map(|link| Some((link.get("id")?.as_u64()?, link.get("prog_id")?.as_u64()?)))
            .filter(|(_, program)| ids.contains(program))
            .collect();
        Ok(Self { programs, maps, links })
    }

    /// What is here and was not there before.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            programs: self.programs.difference(&before.programs).cloned().collect(),
            maps: self.maps.difference(&before.maps).cloned().collect(),
            links: self.links.difference(&before.links).copied().collect(),
        }
    }

    /// Waits until nothing is left that was not there before. The kernel takes maps and
    /// programs away in the background: 5 seconds are given.
    ///
    /// # Errors
    ///
    /// What is left, by name.
    pub fn wait_until_only(before: &Self) -> anyhow::Result<()> {
        crate::until("leaving nothing in the kernel", Duration::from_secs(5), || {
            let left = Self::now()?.since(before);
            ensure!(left == Self::default(), "left in the kernel: {left:?}");
            Ok(())
        })
    }
}

/// Kind and id of what is held by processes that are memtrace and do not descend from us. A
/// process that ends meanwhile holds nothing.
fn held_by_others() -> BTreeSet<(&'static str, u64)> {
    let mut held = BTreeSet::new();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes.map(|entry| entry.path()) {
        let memtrace = std::fs::read_link(process.join("exe"))
            .is_ok_and(|exe| exe.file_name().is_some_and(|name| name == "memtrace"));
        if !memtrace || is_ours(&process) {
            continue;
        }
        let descriptors = std::fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten();
        for text in descriptors.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()) {
            for (key, value) in text.lines().filter_map(|line| line.split_once(":\t")) {
                let kind = ["prog_id", "map_id"].into_iter().find(|kind| *kind == key);
                if let (Some(kind), Ok(id)) = (kind, value.trim().parse()) {
                    held.insert((kind, id));
                }
            }
        }
    }
    held
}

/// Whether a process is a descendant of the suite.
fn is_ours(process: &Path) -> bool {
    let own = Path::new("/proc").join(std::process::id().to_string());
    let mut process = process.to_path_buf();
    while process != own {
        let Ok(stat) = std::fs::read_to_string(process.join("stat")) else { return false };
        // Behind the name, which may hold anything: state, parent.
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        match parent {
            None | Some("0") => return false,
            Some(parent) => process = Path::new("/proc").join(parent),
        }
    }
    true
}

fn bpftool(kind: &str) -> anyhow::Result<Vec<Value>> {
    let output = Command::new("bpftool")
        .args(["-j", kind, "show"])
        .output()
        .context("running bpftool: run `cargo xtask setup`")?;
    ensure!(
        output.status.success(),
        "bpftool {kind} show: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).with_context(|| format!("bpftool {kind} show"))
}

fn named(rows: &[Value]) -> BTreeSet<(u64, String)> {
    let all = rows.iter().filter_map(|row| {
        let name = row.get("name")?.as_str()?;
        name.starts_with(PREFIX).then_some((row.get("id")?.as_u64()?, name.to_owned()))
    });
    all.collect()
}
