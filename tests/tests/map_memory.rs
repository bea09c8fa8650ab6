//! What `doctor` says the maps will take, against what this kernel reports for real ones.
//!
//! Makes each map once and lets it go; loads no program.

use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use memtrace_daemon::attach::abilities::sys::Map;
use memtrace_daemon::attach::memory::{MapKind, plan, possible_cpus};
use memtrace_daemon::attach::object::OBJECT;
use memtrace_daemon::attach::options::Sizes;

/// What the formulas leave out: the map's own structure and its locks.
const LEFT_OUT: u64 = 1_024;

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_kernel_reports_what_was_reckoned() -> Result<()> {
    let cpus = possible_cpus()?;
    let plan = plan(OBJECT, &Sizes::default(), cpus)?;
    assert!(plan.len() > 10, "{plan:?}");
    for map in plan.iter().filter(|map| map.kind != MapKind::TaskStorage) {
        let fd = Map {
            name: "mt_memory",
            kind: map.kind.kernel().context("every kind has a name")?,
            key: map.key,
            value: map.value,
            entries: map.entries,
            flags: 0,
            types: None,
        }
        .create()
        .with_context(|| format!("making {map:?}"))?;
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
        let reported = info.lines().find_map(|line| line.strip_prefix("memlock:"));
        let reported: u64 = reported.context("no memlock in fdinfo")?.trim().parse()?;
        let reckoned = map.bytes(cpus);
        assert!(
            (reckoned..=reckoned + LEFT_OUT).contains(&reported),
            "{map:?}: reckoned {reckoned}, the kernel reports {reported}"
        );
    }
    Ok(())
}
