//! A control group for one test.

use std::path::PathBuf;

use anyhow::{Context, ensure};

/// A group below the root of its hierarchy, removed on drop. It must be empty by then.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
    path: String,
}

impl Cgroup {
    /// Makes one of this name in the unified hierarchy.
    ///
    /// # Errors
    ///
    /// When there is no unified hierarchy, or it cannot be made.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let root = root("cgroup2", "").context("no cgroup2 file system is mounted; mount one")?;
        Self::below(root, name)
    }

    /// Makes one of this name whose memory is limited, where the memory controller is.
    ///
    /// # Errors
    ///
    /// When there is no memory controller, or it cannot be made or limited.
    pub fn limited(name: &str, bytes: u64) -> anyhow::Result<Self> {
        let (group, file) = match root("cgroup", "memory") {
            Some(root) => (Self::below(root, name)?, "memory.limit_in_bytes"),
            None => {
                let root = root("cgroup2", "").context("no cgroup file system is mounted")?;
                std::fs::write(root.join("cgroup.subtree_control"), "+memory")
                    .context("turning the memory controller on")?;
                (Self::below(root, name)?, "memory.max")
            }
        };
        std::fs::write(group.directory.join(file), bytes.to_string())
            .with_context(|| format!("limiting {} to {bytes} bytes", group.path))?;
        Ok(group)
    }

    fn below(root: PathBuf, name: &str) -> anyhow::Result<Self> {
        let directory = root.join(name);
        std::fs::create_dir(&directory)
            .with_context(|| format!("making the control group {}", directory.display()))?;
        Ok(Self { directory, path: format!("/{name}") })
    }

    /// Its path as /proc/PID/cgroup has it.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Moves a process into it.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn take(&self, pid: u32) -> anyhow::Result<()> {
        std::fs::write(self.directory.join("cgroup.procs"), pid.to_string())
            .with_context(|| format!("moving {pid} into {}", self.path))?;
        let lines = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        ensure!(lines.contains(&self.path), "{pid} is in {lines}");
        Ok(())
    }
}

/// Where a hierarchy of this kind is mounted with this option.
fn root(kind: &str, option: &str) -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (root, found, options) = (words.next()?, words.next()?, words.next()?);
        let has = option.is_empty() || options.split(',').any(|one| one == option);
        (found == kind && has).then(|| PathBuf::from(root))
    })
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir(&self.directory) {
            eprintln!("left behind: {}: {error}", self.directory.display());
        }
    }
}
