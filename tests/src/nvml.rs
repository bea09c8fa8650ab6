//! GPUs that a test makes up: what the stub of NVML says, by a text that the test writes.

use std::path::PathBuf;

use anyhow::Context;

use crate::daemon::Options;
use crate::fixture::Fixtures;
use crate::scratch::Scratch;

/// A driver that says what it is told to.
#[derive(Debug)]
pub struct Nvml {
    scratch: Scratch,
    library: PathBuf,
}

impl Nvml {
    /// One with these lines, see [`Nvml::say`].
    ///
    /// # Errors
    ///
    /// When they cannot be written.
    pub fn new(fixtures: &Fixtures, lines: &[String]) -> anyhow::Result<Self> {
        let nvml = Self { scratch: Scratch::new()?, library: fixtures.nvml() };
        nvml.say(lines)?;
        Ok(nvml)
    }

    /// What it says from now on: `device TOTAL RESERVED USED` for each device in order,
    /// `process DEVICE PID BYTES` and `drawing DEVICE PID BYTES` for what is on them (`u64::MAX`
    /// bytes are NVML's word for a figure that it does not tell), `unlisted DEVICE` for one whose
    /// processes it does not list, and `lost DEVICE` for one that does not answer.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn say(&self, lines: &[String]) -> anyhow::Result<()> {
        // Renamed: nobody reads half of it.
        let aside = self.scratch.write("aside", &(lines.join("\n") + "\n"))?;
        std::fs::rename(&aside, self.state()).context("renaming what NVML is to say")
    }

    /// Options of a daemon with these that finds this driver.
    ///
    /// # Errors
    ///
    /// When the library is in no directory.
    pub fn seen_by(&self, options: Options) -> anyhow::Result<Options> {
        let directory = self.library.parent().context("a library without a directory")?;
        let mut environment = options.environment;
        environment.push(("LD_LIBRARY_PATH", directory.display().to_string()));
        environment.push(("STUB_NVML", self.state().display().to_string()));
        Ok(Options { environment, ..options })
    }

    fn state(&self) -> PathBuf {
        self.scratch.join("nvml")
    }
}
