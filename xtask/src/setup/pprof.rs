//! google's pprof, the reader that its format is made for, for the tests of profiles. Debian has
//! its source only, and the pprof that comes with Go does not read symbols of C programs.

use std::{fs, process::Command};

use anyhow::{Context as _, Result};

use crate::command::{run, step, target};

/// Builds it into `target/pprof/pprof` where it is missing.
///
/// # Errors
/// One sentence with what could not be built.
pub fn ensure() -> Result<()> {
    let directory = target().join("pprof");
    let program = directory.join("pprof");
    if program.exists() {
        return Ok(());
    }
    step("pprof, from Debian's source (half a minute)");
    let cache = directory.join("cache");
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-o"]).arg(&program).arg("github.com/google/pprof");
    go.env("GO111MODULE", "off").env("GOPATH", "/usr/share/gocode");
    go.env("GOCACHE", &cache).env("CGO_ENABLED", "0");
    run(&mut go).with_context(|| {
        format!(
            "pprof is not there: install golang-github-google-pprof-dev, or put a pprof at {}",
            program.display()
        )
    })?;
    // All of Go's library, compiled; nobody needs it again.
    fs::remove_dir_all(&cache).with_context(|| format!("removing {}", cache.display()))
}
