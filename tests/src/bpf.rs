//! What memtrace has in the kernel: programs, maps and links, told by the prefix of their names.

use std::collections::BTreeSet;
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
    /// What is there now.
    ///
    /// # Errors
    ///
    /// When bpftool is missing or fails.
    pub fn now() -> anyhow::Result<Self> {
        // Links first: a program read later than its link is at least still named.
        let links = bpftool("link")?;
        let programs = named(&bpftool("prog")?);
        let maps = named(&bpftool("map")?);
        let ids: BTreeSet<u64> = programs.iter().map(|(id, _)| *id).collect();
        let links = links
            .iter()
            .filter_map(|link| Some((link.get("id")?.as_u64()?, link.get("prog_id")?.as_u64()?)))
            .filter(|(_, program)| ids.contains(program))
            .collect();
        Ok(Self { programs, maps, links })
    }

    /// What is here and was not there before. A new link to a program that was there before is
    /// of whoever loaded that: a daemon of the host has found another library.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let old: BTreeSet<u64> = before.programs.iter().map(|(id, _)| *id).collect();
        Self {
            programs: self.programs.difference(&before.programs).cloned().collect(),
            maps: self.maps.difference(&before.maps).cloned().collect(),
            links: self
                .links
                .iter()
                .filter(|(_, program)| !old.contains(program))
                .copied()
                .collect(),
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
