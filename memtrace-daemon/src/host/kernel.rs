//! The running kernel: its release, and whether it is locked down.

use std::fmt;
use std::io;

/// Where the kernel says whether it is locked down; needs securityfs to be mounted.
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// A kernel release, as far as it orders kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// 6 of 6.18.2.
    pub major: u32,
    /// 18 of 6.18.2.
    pub minor: u32,
    /// 2 of 6.18.2.
    pub patch: u32,
}

impl Release {
    /// Reads `6.18.2-amd64`, `6.12-rc3`, `5.14.0-427.el9`; `None` where it begins otherwise.
    #[must_use]
    pub fn parse(release: &str) -> Option<Self> {
        let end = release.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(release.len());
        let mut parts = release.get(..end)?.split('.');
        Some(Self {
            major: parts.next()?.parse().ok()?,
            minor: parts.next()?.parse().ok()?,
            patch: parts.next().and_then(|part| part.parse().ok()).unwrap_or(0),
        })
    }

    /// The running kernel's.
    #[must_use]
    pub fn running() -> Option<Self> {
        Self::parse(&super::text::text(rustix::system::uname().release().to_bytes()))
    }

    /// Whether it is this one or a later one.
    #[must_use]
    pub const fn at_least(&self, major: u32, minor: u32) -> bool {
        self.major > major || self.major == major && self.minor >= minor
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Whether the kernel is locked down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lockdown {
    /// Not at all.
    None,
    /// Nobody may change the running kernel: no kprobes that write, fentry may be refused.
    Integrity,
    /// Nobody may read its memory either: no BPF tracing.
    Confidentiality,
    /// It cannot be read, with the reason.
    Unknown(String),
}

/// Whether the running kernel is locked down.
#[must_use]
pub fn lockdown() -> Lockdown {
    parse_lockdown(std::fs::read_to_string(LOCKDOWN))
}

/// `none [integrity] confidentiality`: the one in brackets holds.
fn parse_lockdown(text: io::Result<String>) -> Lockdown {
    let text = match text {
        Ok(text) => text,
        Err(error) => {
            let hint = "securityfs is not mounted, or the kernel has no lockdown";
            return Lockdown::Unknown(format!("{LOCKDOWN}: {error} ({hint})"));
        }
    };
    let held = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    match held.map(|(word, _)| word) {
        Some("none") => Lockdown::None,
        Some("integrity") => Lockdown::Integrity,
        Some("confidentiality") => Lockdown::Confidentiality,
        _ => Lockdown::Unknown(format!("{LOCKDOWN} says {:?}", text.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_and_ordered() {
        let read = |text| Release::parse(text).map(|r| (r.major, r.minor, r.patch));
        assert_eq!(read("6.18.2-amd64"), Some((6, 18, 2)));
        assert_eq!(read("6.12-rc3"), Some((6, 12, 0)));
        assert_eq!(read("5.14.0-427.13.1.el9_4.x86_64"), Some((5, 14, 0)));
        assert_eq!(read("unknown"), None);
        let at_least = |text| Release::parse(text).unwrap().at_least(6, 6);
        assert!(at_least("6.6.0") && at_least("6.18.1") && at_least("7.0.0"));
        assert!(!at_least("6.5.9") && !at_least("5.19.0"));
        assert!(Release::running().unwrap().major >= 5);
    }

    #[test]
    fn lockdown_is_the_word_in_brackets() {
        let read = |text: &str| parse_lockdown(Ok(text.into()));
        assert_eq!(read("[none] integrity confidentiality\n"), Lockdown::None);
        assert_eq!(read("none [integrity] confidentiality\n"), Lockdown::Integrity);
        assert_eq!(read("none integrity [confidentiality]\n"), Lockdown::Confidentiality);
        assert!(matches!(read("?"), Lockdown::Unknown(_)));
        let missing = parse_lockdown(Err(io::ErrorKind::NotFound.into()));
        assert!(matches!(missing, Lockdown::Unknown(why) if why.contains("securityfs")));
    }
}
