//! Who the host is, and who we are on it.

use std::path::Path;

use super::text::text;
use crate::snapshot::HostInfo;

/// Inode of the initial pid namespace: the same on every Linux (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Name, kernel release and machine.
#[must_use]
pub fn host_info() -> HostInfo {
    let names = rustix::system::uname();
    HostInfo {
        name: text(names.nodename().to_bytes()),
        kernel: text(names.release().to_bytes()),
        arch: text(names.machine().to_bytes()),
    }
}

/// Ourselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// Process id.
    pub pid: u32,
    /// Name, as the kernel has it.
    pub comm: String,
}

/// Who we are.
#[must_use]
pub fn own() -> Own {
    let comm = std::fs::read("/proc/self/comm").unwrap_or_default();
    Own { pid: std::process::id(), comm: text(comm.trim_ascii_end()) }
}

/// Whether we are in the initial pid namespace, whose ids the kernel's records carry.
///
/// # Errors
/// One sentence: why not, and what to do.
pub fn initial_pid_namespace() -> Result<(), String> {
    check_pid_namespace(std::fs::read_link("/proc/self/ns/pid").ok().as_deref())
}

fn check_pid_namespace(link: Option<&Path>) -> Result<(), String> {
    match link.map(|link| link.as_os_str().as_encoded_bytes()) {
        Some(found) if found == INITIAL_PID_NAMESPACE.as_bytes() => Ok(()),
        Some(found) => Err(format!(
            "memtrace runs in a pid namespace of its own ({}), but the kernel gives process ids \
             of the initial one: run it on the host, or in a container with the host's pid \
             namespace (docker run --pid=host, hostPID: true)",
            text(found)
        )),
        None => Err("/proc/self/ns/pid cannot be read: mount /proc".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_pid_namespace_is_told_with_what_to_do() {
        assert_eq!(check_pid_namespace(Some(Path::new("pid:[4026531836]"))), Ok(()));
        let sentence = check_pid_namespace(Some(Path::new("pid:[4026532299]"))).unwrap_err();
        assert!(sentence.contains("--pid=host") && sentence.contains("4026532299"), "{sentence}");
        assert!(check_pid_namespace(None).unwrap_err().contains("mount /proc"));
    }

    #[test]
    fn the_host_and_we_have_names() {
        let host = host_info();
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        assert_eq!(host.kernel, release.trim());
        assert_eq!(host.arch, "x86_64");
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(host.name, name.trim());
        assert_eq!(own().pid, std::process::id());
        assert!(!own().comm.is_empty());
    }
}
