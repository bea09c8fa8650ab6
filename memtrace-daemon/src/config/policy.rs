//! Whom to book and whom not: processes by comm, uid, cgroup and unit, libraries by build id
//! and path.

use std::path::PathBuf;

use serde::Deserialize;

/// The kernel keeps this many bytes of a process' name.
const COMM_BYTES: usize = 15;

/// If any list has an entry, only processes that match one are booked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Include {
    /// Names as the kernel has them, at most 15 bytes.
    pub comm: Vec<String>,
    /// Real user ids.
    pub uid: Vec<u32>,
    /// Cgroup paths below /sys/fs/cgroup; everything under them matches.
    pub cgroup: Vec<String>,
    /// systemd units.
    pub unit: Vec<String>,
}

/// Processes that are never booked, libraries that are never probed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Exclude {
    /// Names as the kernel has them, at most 15 bytes.
    pub comm: Vec<String>,
    /// Real user ids.
    pub uid: Vec<u32>,
    /// Cgroup paths below /sys/fs/cgroup; everything under them matches.
    pub cgroup: Vec<String>,
    /// systemd units.
    pub unit: Vec<String>,
    /// Libraries by build id, hex digits.
    pub library_build_id: Vec<String>,
    /// Libraries by the path that a process maps them with.
    pub library_path: Vec<PathBuf>,
    /// Libraries by name and version, as their DT_SONAME or their file's name has it.
    pub library_version: Vec<String>,
}

impl Include {
    /// Whether everybody is booked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { comm, uid, cgroup, unit } = self;
        comm.is_empty() && uid.is_empty() && cgroup.is_empty() && unit.is_empty()
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        names("include", &self.comm, &self.cgroup, &self.unit)
    }
}

impl Exclude {
    pub(super) fn validate(&self) -> Result<(), String> {
        names("exclude", &self.comm, &self.cgroup, &self.unit)?;
        for id in &self.library_build_id {
            if id.is_empty() || id.len() % 2 != 0 || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(format!(
                    "exclude.library_build_id: `{id}` is no build id; `file LIBRARY` prints it"
                ));
            }
        }
        for version in &self.library_version {
            let number = version.split_once(".so.").map_or("", |(_, number)| number);
            if version.contains('/') || !number.starts_with(|first: char| first.is_ascii_digit()) {
                return Err(format!(
                    "exclude.library_version: `{version}` is no library with a version; write it \
                     like libcudart.so.12 or libcuda.so.550.54"
                ));
            }
        }
        if let Some(path) = self.library_path.iter().find(|path| !path.is_absolute()) {
            return Err(format!(
                "exclude.library_path: `{}` is not an absolute path",
                path.display()
            ));
        }
        Ok(())
    }
}

fn names(section: &str, comm: &[String], cgroup: &[String], unit: &[String]) -> Result<(), String> {
    if let Some(comm) = comm.iter().find(|comm| comm.is_empty() || comm.len() > COMM_BYTES) {
        return Err(format!(
            "{section}.comm: `{comm}` is no name: the kernel keeps 1 to {COMM_BYTES} bytes of it"
        ));
    }
    if let Some(path) = cgroup.iter().find(|path| !path.starts_with('/')) {
        return Err(format!(
            "{section}.cgroup: `{path}` does not begin with /; write the path below /sys/fs/cgroup"
        ));
    }
    if let Some(unit) = unit.iter().find(|unit| !unit.contains('.') || unit.contains('/')) {
        return Err(format!("{section}.unit: `{unit}` is no unit; write it like nginx.service"));
    }
    Ok(())
}
