//! Running other programs: shown before they run, their output streamed, a failure said
//! with the command that failed. Never a shell, never anything on standard input.

use std::{
    env,
    ffi::OsStr,
    fmt::Display,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};

/// The root of the repository.
pub fn root() -> PathBuf {
    // Compiled in: `cargo xtask` works from any directory below it.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/")).to_owned()
}

/// Says what is done now.
pub fn step(what: impl Display) {
    eprintln!("==> {what}");
}

/// A cargo in the root, as from a shell: without what the cargo that runs xtask has set.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("CARGO_PKG_") || name_text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command.current_dir(root());
    command
}

/// Runs a command and waits for its success.
///
/// # Errors
/// Says which command could not be run or how it failed.
pub fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    eprintln!("    {line}");
    let status =
        command.stdin(Stdio::null()).status().with_context(|| format!("cannot run `{line}`"))?;
    ensure!(status.success(), "`{line}` failed ({status})");
    Ok(())
}

/// Runs a command quietly; its standard output where it succeeded.
///
/// # Errors
/// Says which command could not be run, or how it failed and its last line of output.
pub fn output(command: &mut Command) -> Result<String> {
    let line = line(command);
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run `{line}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().lines().next_back().unwrap_or("it said nothing").to_owned();
        bail!("`{line}` failed ({}): {said}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program is on PATH or where Debian keeps those for root.
pub fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|directory| directory.join(program).is_file())
}

/// Whether this process is root.
///
/// # Errors
/// Where `id` cannot be run.
pub fn is_root() -> Result<bool> {
    Ok(output(Command::new("id").arg("-u"))?.trim() == "0")
}

fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    // A toolchain's path is long and says nothing.
    let program = program.file_name().unwrap_or(program.as_os_str());
    let words: Vec<_> =
        std::iter::once(program).chain(command.get_args()).map(OsStr::to_string_lossy).collect();
    words.join(" ")
}
