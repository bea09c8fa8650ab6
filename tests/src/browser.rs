//! What a real browser, Chromium, makes of a file. It runs the file's scripts and fetches
//! nothing.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::process;
use crate::scratch::Scratch;

/// A cold start on a slow machine takes seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// The document that a file has become, its scripts run, as markup. `query` stands behind `?` in
/// the address, escaped.
///
/// # Errors
///
/// When Chromium is not there or shows nothing.
pub fn document(file: &Path, query: &str) -> anyhow::Result<String> {
    let said =
        chromium(file, query, &["--virtual-time-budget=5000".as_ref(), "--dump-dom".as_ref()])?;
    ensure!(said.contains("<svg"), "{} became {said:?}", file.display());
    Ok(said)
}

/// A picture of what a file looks like, PNG.
///
/// # Errors
///
/// As [`document`].
pub fn picture(file: &Path, query: &str) -> anyhow::Result<Vec<u8>> {
    let scratch = Scratch::new()?;
    let path = scratch.join("picture.png");
    let mut option = std::ffi::OsString::from("--screenshot=");
    option.push(&path);
    chromium(file, query, &["--window-size=1200,600".as_ref(), &option])?;
    std::fs::read(&path).with_context(|| format!("no picture of {}", file.display()))
}

fn chromium(file: &Path, query: &str, options: &[&std::ffi::OsStr]) -> anyhow::Result<String> {
    // A profile of its own, gone afterwards.
    let profile = Scratch::new()?;
    let mut command = Command::new("chromium");
    command.args(["--headless", "--disable-gpu", "--disable-quic", "--no-first-run"]);
    command.args(["--disable-background-networking", "--disable-component-update"]);
    command.args(["--disable-sync", "--disable-extensions"]);
    if rustix::process::geteuid().is_root() {
        command.arg("--no-sandbox");
    }
    let mut directory = std::ffi::OsString::from("--user-data-dir=");
    directory.push(profile.path());
    command.arg(directory).args(options);
    command.arg(format!("file://{}?{query}", file.display()));
    let said = process::run(&mut command, LIMIT);
    let said = said.context("Chromium opens flame graphs: run `cargo xtask setup`")?;
    Ok(said.expect_status(0)?.stdout)
}
