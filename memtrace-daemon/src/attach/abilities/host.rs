//! Abilities that are read from files: kernel release, architecture, namespaces, kernel symbols,
//! lockdown, bpffs; and NVML, which is asked.
//!
//! Nothing here needs privilege, mounts anything or writes anywhere.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::{Ability, State};
use crate::host::identity::initial_pid_namespace;
use crate::host::kernel::{Lockdown, Release, lockdown};

/// The magic number of bpffs in `statfs`.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// A driver that is stuck never answers NVML.
const NVML_DEADLINE: Duration = Duration::from_secs(5);
/// Lines of kallsyms that are looked at; the first of a kernel may really be at address 0.
const KALLSYMS_LINES: usize = 4_096;

/// Kernel, architecture and pid namespace.
pub(super) fn requirements(release: Option<Release>) -> Vec<Ability> {
    let name = rustix::system::uname();
    let full = name.release().to_string_lossy().into_owned();
    let (state, detail) = match release {
        None => (State::Unknown, format!("{full}, of which no version could be read")),
        // From 6.1 on one tracepoint tells of kmalloc on any node; everything else is older.
        Some(release) if !release.at_least(6, 1) => (State::Missing, format!("{full}, below 6.1")),
        Some(release) if !release.at_least(6, 6) => {
            (State::Present, format!("{full}; uprobes by perf events, slow to detach, below 6.6"))
        }
        Some(_) => (State::Present, full),
    };
    let kernel = Ability {
        name: "kernel",
        state,
        required: true,
        detail,
        degraded: "older kernels lack attach cookies, by which a probe knows its function",
        mend: "use a kernel of 6.1 or later, better 6.6 or later",
    };

    let machine = name.machine().to_string_lossy().into_owned();
    let state = if machine == "x86_64" { State::Present } else { State::Missing };
    let architecture = Ability {
        name: "architecture",
        state,
        required: true,
        detail: machine,
        degraded: "registers and stacks are read in x86-64's layout only",
        mend: "run memtrace on an x86-64 host",
    };

    let (state, detail) = match initial_pid_namespace() {
        Ok(()) => (State::Present, "memtrace is in it"),
        Err(_) => (State::Missing, "memtrace is not in it, or has no /proc"),
    };
    let pid_namespace = Ability {
        name: "pid_namespace",
        state,
        required: true,
        detail: detail.into(),
        degraded: "the kernel names processes by the initial pid namespace, which /proc here does \
                   not know",
        mend: "run memtrace on the host, or its container with the host's pid namespace (--pid=host)",
    };
    vec![kernel, architecture, pid_namespace]
}

/// Kernel symbols and lockdown.
pub(super) fn symbols_and_lockdown() -> Vec<Ability> {
    let (state, detail) = kallsyms();
    let kallsyms = Ability {
        name: "kallsyms",
        state,
        required: false,
        detail,
        degraded: "kernel frames have no names",
        mend: "give CAP_SYSLOG, and sysctl -w kernel.kptr_restrict=1 where it is 2",
    };
    vec![kallsyms, lockdown_row(lockdown())]
}

fn kallsyms() -> (State, String) {
    let file = match File::open("/proc/kallsyms") {
        Ok(file) => file,
        Err(error) => return (State::Missing, format!("/proc/kallsyms: {error}")),
    };
    let lines = BufReader::new(file).lines().take(KALLSYMS_LINES).map_while(Result::ok);
    if has_addresses(lines) {
        (State::Present, "addresses readable".into())
    } else {
        (State::Missing, "all addresses are zeros".into())
    }
}

fn has_addresses(lines: impl Iterator<Item = String>) -> bool {
    lines
        .filter_map(|line| u64::from_str_radix(line.split(' ').next()?, 16).ok())
        .any(|address| address != 0)
}

fn lockdown_row(lockdown: Lockdown) -> Ability {
    let reads = lockdown == Lockdown::Confidentiality;
    let (state, detail) = match lockdown {
        Lockdown::None => (State::Present, "off".to_owned()),
        Lockdown::Integrity => (State::Missing, "mode integrity".to_owned()),
        Lockdown::Confidentiality => (State::Missing, "mode confidentiality".to_owned()),
        Lockdown::Unknown(reason) => (State::Unknown, reason),
    };
    Ability {
        name: "lockdown",
        state,
        required: reads,
        detail,
        degraded: if reads {
            "BPF programs may not read kernel memory"
        } else {
            "a locked-down kernel may refuse fentry (see there); confidentiality refuses all"
        },
        mend: "boot with lockdown=none or lockdown=integrity, or without Secure Boot",
    }
}

/// What memtrace does not depend on.
pub(super) fn conveniences() -> Vec<Ability> {
    let (state, detail) = match rustix::fs::statfs("/sys/fs/bpf") {
        Ok(fs) if u64::try_from(fs.f_type).is_ok_and(|magic| magic == BPF_FS_MAGIC) => {
            (State::Present, "mounted at /sys/fs/bpf".to_owned())
        }
        Ok(_) => (State::Missing, "not mounted at /sys/fs/bpf".to_owned()),
        Err(error) => (State::Missing, format!("/sys/fs/bpf: {error}")),
    };
    let bpffs = Ability {
        name: "bpffs",
        state,
        required: false,
        detail,
        degraded: "nothing at present: memtrace pins nothing, so nothing outlives it",
        mend: "mount -t bpf bpf /sys/fs/bpf",
    };
    let (state, detail) = nvml();
    let nvml = Ability {
        name: "nvml",
        state,
        required: false,
        detail,
        degraded: "device memory in use is not shown beside the traced sum",
        mend: "nothing to do without an NVIDIA GPU; else install the driver's libnvidia-ml.so.1 \
               and let memtrace see /dev/nvidia*",
    };
    vec![bpffs, nvml]
}

fn nvml() -> (State, String) {
    let (send, receive) = mpsc::channel();
    // Left behind if the driver never answers: the process ends soon after.
    thread::spawn(move || {
        let answer = Nvml::init().and_then(|nvml| {
            Ok(format!("driver {}, {} devices", nvml.sys_driver_version()?, nvml.device_count()?))
        });
        // Nobody listens after the deadline.
        let _ = send.send(answer);
    });
    match receive.recv_timeout(NVML_DEADLINE) {
        Ok(Ok(detail)) => (State::Present, detail),
        Ok(Err(NvmlError::LibloadingError(_))) => {
            (State::Missing, "no libnvidia-ml.so here: no NVIDIA driver".into())
        }
        Ok(Err(error)) => (State::Missing, error.to_string()),
        Err(_) => (State::Unknown, "the driver did not answer within 5 s".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_confidentiality_stops_memtrace() {
        let blocks = |lockdown| lockdown_row(lockdown).blocks();
        assert!(blocks(Lockdown::Confidentiality));
        assert!(!blocks(Lockdown::Integrity) && !blocks(Lockdown::None));
        assert!(!blocks(Lockdown::Unknown("not told".into())));
    }

    #[test]
    fn kallsyms_of_zeros_only_is_hidden() {
        let lines = |text: &str| has_addresses(text.lines().map(str::to_owned));
        assert!(!lines("0000000000000000 A fixed_percpu_data\n0000000000000000 T _text"));
        assert!(lines("0000000000000000 A fixed_percpu_data\nffffffff81000000 T _text"));
    }
}
