//! The capabilities that this process holds, and what each one that memtrace wants is for.

/// What memtrace wants, as data.
pub const WANTED: &[Wanted] = &[
    Wanted {
        name: "CAP_BPF",
        bit: 39,
        general: true,
        required: true,
        purpose: "load BPF programs and maps",
        without: "nothing can be traced",
    },
    Wanted {
        name: "CAP_PERFMON",
        bit: 38,
        general: true,
        required: true,
        purpose: "attach BPF programs to the kernel's tracepoints and to library functions",
        without: "nothing can be traced",
    },
    Wanted {
        name: "CAP_SYS_PTRACE",
        bit: 19,
        general: false,
        required: true,
        purpose: "see what other users' processes have mapped",
        without: "their libraries are not found and their stacks have no names",
    },
    Wanted {
        name: "CAP_DAC_READ_SEARCH",
        bit: 2,
        general: false,
        required: true,
        purpose: "open libraries and executables that other users own",
        without: "those are not probed, and their functions have no names",
    },
    Wanted {
        name: "CAP_SYSLOG",
        bit: 34,
        general: false,
        required: true,
        purpose: "read the kernel's symbol addresses in /proc/kallsyms",
        without: "kernel call sites have no names",
    },
    Wanted {
        name: "CAP_CHECKPOINT_RESTORE",
        bit: 40,
        general: true,
        required: true,
        purpose: "open mapped files through /proc/PID/map_files",
        without: "deleted files and files in containers are not probed and not named",
    },
];

/// Stands in for those that are `general`.
const CAP_SYS_ADMIN: u32 = 21;

/// One capability that memtrace wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Name, as capabilities(7) has it.
    pub name: &'static str,
    /// Number.
    pub bit: u32,
    /// Whether `CAP_SYS_ADMIN` stands in for it.
    pub general: bool,
    /// Whether memtrace ends without it.
    pub required: bool,
    /// What for.
    pub purpose: &'static str,
    /// What is degraded without it.
    pub without: &'static str,
}

impl Wanted {
    /// One sentence for where it is missing.
    #[must_use]
    pub fn sentence(&self) -> String {
        let Self { name, purpose, without, .. } = self;
        format!("{name} is missing: it is needed to {purpose}; without it {without}")
    }
}

/// A set of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// Those in effect for this process.
    ///
    /// # Errors
    /// A sentence, where /proc cannot be read.
    pub fn held() -> Result<Self, String> {
        let status = std::fs::read_to_string("/proc/self/status")
            .map_err(|error| format!("/proc/self/status cannot be read: {error}; mount /proc"))?;
        Self::parse(&status).ok_or_else(|| "/proc/self/status has no CapEff line".into())
    }

    /// Those with these numbers.
    #[must_use]
    pub fn of(bits: impl IntoIterator<Item = u32>) -> Self {
        Self(bits.into_iter().filter(|bit| *bit < 64).fold(0, |set, bit| set | 1 << bit))
    }

    fn parse(status: &str) -> Option<Self> {
        let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(hex.trim(), 16).ok().map(Self)
    }

    /// Whether the capability with this number is among them.
    #[must_use]
    pub const fn has(self, bit: u32) -> bool {
        bit < 64 && self.0 >> bit & 1 == 1
    }

    /// Whether one that memtrace wants is among them, or one that stands in for it.
    #[must_use]
    pub const fn allows(self, wanted: &Wanted) -> bool {
        self.has(wanted.bit) || wanted.general && self.has(CAP_SYS_ADMIN)
    }

    /// Those that memtrace wants and that are missing.
    pub fn missing(self) -> impl Iterator<Item = &'static Wanted> {
        WANTED.iter().filter(move |wanted| !self.allows(wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(hex: &str) -> Vec<&'static str> {
        let held = Capabilities::parse(&format!("Name:\tx\nCapEff:\t{hex}\n")).unwrap();
        held.missing().map(|wanted| wanted.name).collect()
    }

    #[test]
    fn each_missing_one_is_named() {
        assert_eq!(missing("000001ffffffffff"), Vec::<&str>::new());
        let all: Vec<_> = WANTED.iter().map(|wanted| wanted.name).collect();
        assert_eq!(missing("0000000000000000"), all);
        for wanted in WANTED {
            let sum: u64 = WANTED.iter().map(|wanted| 1 << wanted.bit).sum();
            assert_eq!(missing(&format!("{:016x}", sum - (1 << wanted.bit))), [wanted.name]);
        }
    }

    #[test]
    fn sys_admin_stands_in_for_its_parts_only() {
        let without = missing(&format!("{:016x}", 1_u64 << CAP_SYS_ADMIN));
        assert_eq!(without, ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_SYSLOG"]);
    }

    #[test]
    fn our_own_can_be_read() {
        let uid_zero = rustix::process::geteuid().is_root();
        assert_eq!(Capabilities::held().unwrap().has(19), uid_zero);
    }
}
