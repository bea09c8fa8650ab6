//! Limits of cgroups: how much a process may still take before its group is out of memory.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::rows::Rows;
use crate::record::CgroupLimit;

/// Processes of one group are asked about one after another: it is read once for all of them.
const REMEMBERED: Duration = Duration::from_secs(4);
/// Groups remembered.
const MAX_GROUPS: usize = 4_096;
/// Nobody nests deeper; a path that does is not followed.
const MAX_DEPTH: usize = 32;

/// Where the memory controller is, and what it said lately.
#[derive(Default)]
pub(super) struct Limits {
    hierarchy: Option<Hierarchy>,
    known: HashMap<String, (Instant, Option<CgroupLimit>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    root: PathBuf,
    unified: bool,
}

impl Limits {
    /// What limits a process most, by the text of its /proc/PID/cgroup; `None` where nothing
    /// does, or where it cannot be seen.
    pub(super) fn of(&mut self, lines: &str) -> Option<CgroupLimit> {
        if self.hierarchy.is_none() {
            let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
            self.hierarchy = hierarchy(&mounts);
        }
        let hierarchy = self.hierarchy.as_ref()?;
        let group = group(lines, hierarchy.unified)?;
        if let Some((at, limit)) = self.known.get(group)
            && at.elapsed() < REMEMBERED
        {
            return limit.clone();
        }
        let limit = tightest(hierarchy, group);
        if self.known.len() >= MAX_GROUPS {
            self.known.clear();
        }
        self.known.insert(group.to_owned(), (Instant::now(), limit.clone()));
        limit
    }
}

/// The hierarchy that has the memory controller: an old one of its own where it is mounted,
/// because a controller is in one hierarchy only, else the unified one.
fn hierarchy(mounts: &str) -> Option<Hierarchy> {
    let mount = |kind: &str, option: Option<&str>| {
        mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (root, found, options) = (words.next()?, words.next()?, words.next()?);
            let has = option.is_none_or(|option| options.split(',').any(|one| one == option));
            (found == kind && has).then(|| PathBuf::from(root))
        })
    };
    let old = mount("cgroup", Some("memory")).map(|root| Hierarchy { root, unified: false });
    old.or_else(|| mount("cgroup2", None).map(|root| Hierarchy { root, unified: true }))
}

/// The path of a process in that hierarchy. One outside our own cgroup namespace cannot be
/// looked at.
fn group(lines: &str, unified: bool) -> Option<&str> {
    let path = lines.lines().find_map(|line| {
        let (id, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let ours = if unified {
            id == "0" && controllers.is_empty()
        } else {
            controllers.split(',').any(|name| name == "memory")
        };
        ours.then_some(path)
    })?;
    let outside = path.split('/').any(|part| part == "..");
    (path.starts_with('/') && !outside).then_some(path)
}

/// Of a group and those that it lies in, the one that has least room.
fn tightest(hierarchy: &Hierarchy, group: &str) -> Option<CgroupLimit> {
    let all = Path::new(group).ancestors().take(MAX_DEPTH);
    all.filter_map(|path| limit(hierarchy, path)).min_by_key(CgroupLimit::available_bytes)
}

fn limit(hierarchy: &Hierarchy, group: &Path) -> Option<CgroupLimit> {
    let cgroup = group.to_str()?;
    let directory = hierarchy.root.join(cgroup.trim_start_matches('/'));
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
    let (limit, used) = if hierarchy.unified {
        ("memory.max", "memory.current")
    } else {
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
    };
    let limit_bytes = bytes(&read(limit)?)?;
    let used_bytes = bytes(&read(used)?)?;
    let back = read("memory.stat").map_or(0, |stat| reclaimable(&stat, hierarchy.unified));
    let used_bytes = used_bytes.saturating_sub(back);
    Some(CgroupLimit { cgroup: cgroup.to_owned(), limit_bytes, used_bytes })
}

/// `None` for no limit: `max`, and the old hierarchy's largest number of pages.
fn bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < 1 << 62)
}

/// What the group gives back before it is out of memory.
fn reclaimable(stat: &str, unified: bool) -> u64 {
    let rows = Rows::new(stat);
    let names: [&str; 3] = if unified {
        ["active_file", "inactive_file", "slab_reclaimable"]
    } else {
        // With what lies below; reclaimable slab is not told.
        ["total_active_file", "total_inactive_file", ""]
    };
    names.into_iter().filter(|name| !name.is_empty()).map(|name| rows.or_zero(name)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_controller_is_found_in_old_and_new_hierarchies() {
        let new = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let root = PathBuf::from("/sys/fs/cgroup");
        assert_eq!(hierarchy(new), Some(Hierarchy { root, unified: true }));
        let both = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                    cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                    cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n";
        let root = PathBuf::from("/sys/fs/cgroup/memory");
        assert_eq!(hierarchy(both), Some(Hierarchy { root, unified: false }));
        assert_eq!(hierarchy("proc /proc proc rw 0 0\n"), None);
    }

    #[test]
    fn a_process_has_a_path_in_it() {
        let both = "8:pids:/\n4:cpu,memory:/docker/77\n0::/x.service\n";
        assert_eq!(group(both, false), Some("/docker/77"));
        assert_eq!(group(both, true), Some("/x.service"));
        assert_eq!(group("0::/../other\n", true), None, "outside our namespace");
        assert_eq!(group("1:name=systemd:/a\n", false), None);
    }

    #[test]
    fn the_tightest_group_up_the_hierarchy_limits() {
        let scratch = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy { root: scratch.path().to_owned(), unified: true };
        let make = |path: &str, max: &str, current: &str, stat: &str| {
            let directory = scratch.path().join(path);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("memory.max"), max).unwrap();
            std::fs::write(directory.join("memory.current"), current).unwrap();
            std::fs::write(directory.join("memory.stat"), stat).unwrap();
        };
        make("a", "1000\n", "900\n", "anon 7\nactive_file 100\ninactive_file 200\n");
        make("a/b", "600\n", "100\n", "");
        make("a/b/c", "max\n", "90\n", "");
        let found = tightest(&hierarchy, "/a/b/c").unwrap();
        let expected = CgroupLimit { cgroup: "/a".into(), limit_bytes: 1_000, used_bytes: 600 };
        assert_eq!((&found, found.available_bytes()), (&expected, 400));
        make("a/b/c", "300\n", "90\n", "");
        assert_eq!(tightest(&hierarchy, "/a/b/c").unwrap().cgroup, "/a/b/c");
        assert_eq!(tightest(&hierarchy, "/d"), None);
        assert_eq!(bytes("9223372036854771712\n"), None, "the old hierarchy's way to say max");
    }
}
