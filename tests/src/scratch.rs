//! Directories for one test, removed with everything in them at the end.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;

/// A directory of one's own below /tmp, open to every user, removed on drop.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Scratch {
    /// Makes a new one.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn new() -> anyhow::Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Below /tmp and short: the path of a unix socket holds 107 bytes.
        let path = PathBuf::from(format!("/tmp/memtrace-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        open_to_all(&path)?;
        Ok(Self { path })
    }

    /// A path in it.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file in it and gives its path.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Copies a file into it: a new inode with the same name.
    ///
    /// # Errors
    ///
    /// When it cannot be copied.
    pub fn copy(&self, from: &Path) -> anyhow::Result<PathBuf> {
        let to = self.path.join(from.file_name().context("a file without a name")?);
        std::fs::copy(from, &to)
            .with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
        Ok(to)
    }
}

fn open_to_all(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))
        .with_context(|| format!("opening {} to all", path.display()))
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("left behind: {}: {error}", self.path.display());
        }
    }
}
