//! Programs and directories that stack suites need and nobody compiles: interpreters, roots of
//! containers, perf maps.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::process::{self, Running};
use crate::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(30);

/// The interpreters of this version of Python that are here: Debian's and pyenv's.
///
/// # Errors
///
/// When there is none, with what brings one.
pub fn pythons(version: &str) -> anyhow::Result<Vec<PathBuf>> {
    let name = format!("python{version}");
    let mut found: Vec<PathBuf> = Vec::new();
    let mut add = |path: PathBuf| {
        // A shim of pyenv is a script.
        if let Ok(path) = std::fs::canonicalize(path)
            && is_elf(&path)
            && !found.contains(&path)
        {
            found.push(path);
        }
    };
    for directory in std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()) {
        add(directory.join(&name));
    }
    add(Path::new("/usr/bin").join(&name));
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv"));
    let roots = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or(home);
    let versions = roots.and_then(|root| std::fs::read_dir(root.join("versions")).ok());
    for entry in versions.into_iter().flatten().flatten() {
        add(entry.path().join("bin").join(&name));
    }
    ensure!(
        !found.is_empty(),
        "no {name} on PATH, in /usr/bin or below pyenv's root: install Debian's package {name} \
         where it has one, else type `pyenv install {version}`"
    );
    Ok(found)
}

/// The node on PATH.
///
/// # Errors
///
/// When there is none.
pub fn node() -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|one| one.join("node")).find(|one| is_elf(one));
    found.context("no node on PATH: run `cargo xtask setup`")
}

fn is_elf(path: &Path) -> bool {
    use std::io::Read;
    let mut magic = [0; 4];
    let file = std::fs::File::open(path);
    file.and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"\x7fELF"
}

/// A perf map that a program left, removed when this goes.
#[derive(Debug)]
pub struct PerfMap {
    path: PathBuf,
}

impl PerfMap {
    /// That of the process with this id.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        Self { path: PathBuf::from(format!("/tmp/perf-{pid}.map")) }
    }
}

impl Drop for PerfMap {
    fn drop(&mut self) {
        let target = PathBuf::from(format!("{}.target", self.path.display()));
        for path in [&self.path, &target] {
            // Not every program leaves one.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A directory that a process can have as its root: programs, and the libraries that they need
/// at the paths where the loader looks for them, all of them inodes of their own.
#[derive(Debug)]
pub struct Root {
    scratch: Scratch,
}

impl Root {
    /// Makes an empty one.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self { scratch: Scratch::new()? })
    }

    /// Its path outside.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.scratch.path()
    }

    /// A path in it, as seen from outside.
    #[must_use]
    pub fn inside(&self, path: &Path) -> PathBuf {
        self.path().join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Copies a file to a path in it.
    ///
    /// # Errors
    ///
    /// When it cannot be copied.
    pub fn put(&self, from: &Path, to: &Path) -> anyhow::Result<PathBuf> {
        let to = self.inside(to);
        let parent = to.parent().context("a file in no directory")?;
        std::fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
        std::fs::copy(from, &to)
            .with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
        Ok(to)
    }

    /// Copies a program to a path in it, and all libraries that it needs to where they are.
    ///
    /// # Errors
    ///
    /// When the loader cannot say which these are, or one cannot be copied.
    pub fn put_program(&self, from: &Path, to: &Path) -> anyhow::Result<()> {
        self.put(from, to)?;
        let mut command = Command::new("ldd");
        let said = process::run(command.arg(from), LIMIT)?.expect_status(0)?;
        // `name => /path (address)`, or `/path (address)` for the loader itself.
        for word in said.stdout.split_whitespace().filter(|word| word.starts_with('/')) {
            self.put(Path::new(word), Path::new(word))?;
        }
        // libgcc, which backtrace() loads by itself.
        let libgcc = Path::new("/lib/x86_64-linux-gnu/libgcc_s.so.1");
        self.put(libgcc, libgcc)?;
        Ok(())
    }

    /// The command that runs a program in it, with namespaces of its own for mounts and process
    /// ids: the program has process id 1 there.
    #[must_use]
    pub fn container(&self, program: &Path) -> Command {
        let script = "mount --bind \"$1\" \"$1\"; cd \"$1\"; mkdir -p proc old; \
             mount -t proc proc proc; shift; pivot_root . old; exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
        command.args(["--", "sh", "-ec", script, "sh"]).arg(self.path()).arg(program);
        command
    }
}

/// The process id here of the one child of a program.
///
/// # Errors
///
/// When it has none or several.
pub fn child_of(running: &Running) -> anyhow::Result<u32> {
    let pid = running.pid();
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    match text.split_whitespace().collect::<Vec<_>>().as_slice() {
        [one] => one.parse().with_context(|| format!("{path}: {one}")),
        others => bail!("{path}: {others:?} instead of one"),
    }
}

/// Anonymous memory of a process, KiB.
///
/// # Errors
///
/// When it has ended.
pub fn anonymous_kib(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().next()).context("no RssAnon")?;
    number.parse().with_context(|| format!("RssAnon: {number}"))
}
