//! Cgroup paths: which one names a process, and the unit in it.

/// The path that says most of the lines of /proc/PID/cgroup: the unified hierarchy's, else
/// systemd's own, else the memory controller's, else any that is not the root.
#[must_use]
pub fn path(lines: &str) -> Option<String> {
    let rank = |id: &str, controllers: &str, path: &str| {
        let kind = match controllers {
            "" if id == "0" => 3,
            "name=systemd" => 2,
            controllers if controllers.split(',').any(|name| name == "memory") => 1,
            _ => 0,
        };
        // On hosts with both versions the unified one may be empty.
        (path != "/", kind)
    };
    let parts = lines.lines().filter_map(|line| {
        let (id, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        Some((rank(id, controllers, path), path))
    });
    parts.max_by_key(|(rank, _)| *rank).map(|(_, path)| path.to_owned())
}

/// The unit that a cgroup path belongs to: the innermost service, else the innermost scope.
#[must_use]
pub fn unit(path: &str) -> Option<&str> {
    let last = |suffix| path.rsplit('/').find(|part: &&str| part.ends_with(suffix));
    last(".service").or_else(|| last(".scope"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_that_says_most_is_taken() {
        let unified = "0::/system.slice/vllm.service\n";
        assert_eq!(path(unified).unwrap(), "/system.slice/vllm.service");
        let both = "12:memory:/m\n1:name=systemd:/system.slice/a.service\n0::/\n";
        assert_eq!(path(both).unwrap(), "/system.slice/a.service");
        let old = "4:cpu,memory:/docker/77\n3:freezer:/x\n";
        assert_eq!(path(old).unwrap(), "/docker/77");
        assert_eq!(path("0::/\n").unwrap(), "/");
        assert_eq!(path("nonsense"), None);
    }

    #[test]
    fn units_are_found_in_paths() {
        assert_eq!(unit("/system.slice/vllm.service"), Some("vllm.service"));
        assert_eq!(unit("/system.slice/vllm.service/payload"), Some("vllm.service"));
        let user = "/user.slice/user-1.slice/user@1.service/app.slice/ray.service";
        assert_eq!(unit(user), Some("ray.service"));
        assert_eq!(unit("/system.slice/docker-77.scope"), Some("docker-77.scope"));
        assert_eq!(unit("/docker/77"), None);
    }
}
