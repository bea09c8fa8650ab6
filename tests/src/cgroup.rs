//! A control group for one test.

use std::path::PathBuf;

use anyhow::{Context, ensure};

/// A group in the unified hierarchy, below the root, removed on drop. It must be empty by then.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
    path: String,
}

impl Cgroup {
    /// Makes one of this name.
    ///
    /// # Errors
    ///
    /// When there is no unified hierarchy, or it cannot be made.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let mut fields = mounts.lines().map(|line| line.split(' '));
        let root = fields.find_map(|mut words| {
            let root = words.nth(1)?;
            (words.next() == Some("cgroup2")).then(|| PathBuf::from(root))
        });
        let root = root.context("no cgroup2 file system is mounted; mount one")?;
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

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir(&self.directory) {
            eprintln!("left behind: {}: {error}", self.directory.display());
        }
    }
}
