//! A terminal of one's own that a suite can look at and type into: tmux with a socket in a
//! scratch directory, which ends with everything in it when it is dropped.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::process;
use crate::scratch::Scratch;

/// How long a person would wait for a screen to change before they wonder.
const SEEN_WITHIN: Duration = Duration::from_secs(30);
/// tmux itself answers at once.
const TMUX: Duration = Duration::from_secs(20);

/// A session with one shell in it.
#[derive(Debug)]
pub struct Session {
    scratch: Scratch,
}

impl Session {
    /// Starts a shell in a terminal of this size.
    ///
    /// # Errors
    ///
    /// When tmux is missing or fails.
    pub fn start(columns: u16, lines: u16) -> Result<Self> {
        let session = Self { scratch: Scratch::new()? };
        let (columns, lines) = (columns.to_string(), lines.to_string());
        // Nobody's configuration, and a shell that says no more than `$ `.
        let shell = "env PS1='$ ' TERM=screen-256color LC_ALL=C.UTF-8 sh";
        session.call([
            "-f",
            "/dev/null",
            "-u",
            "new-session",
            "-d",
            "-x",
            &columns,
            "-y",
            &lines,
            shell,
        ])?;
        session.wait_for("a shell", |screen| screen.starts_with('$'))?;
        Ok(session)
    }

    fn socket(&self) -> PathBuf {
        self.file("tmux")
    }

    /// A path that lives as long as the session.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    fn call<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<String> {
        let mut tmux = Command::new("tmux");
        // Not inside whatever session the suite itself runs in.
        tmux.env_remove("TMUX").arg("-S").arg(self.socket()).args(arguments);
        let said = process::run(&mut tmux, TMUX).context("tmux: run `cargo xtask setup`")?;
        Ok(said.expect_status(0)?.stdout)
    }

    /// Types a line and Enter.
    ///
    /// # Errors
    ///
    /// When tmux fails.
    pub fn enter(&self, line: &str) -> Result<()> {
        self.type_text(line)?;
        self.press(&["Enter"])
    }

    /// Types letters as they are.
    ///
    /// # Errors
    ///
    /// When tmux fails.
    pub fn type_text(&self, text: &str) -> Result<()> {
        self.call(["send-keys", "-l", text]).map(drop)
    }

    /// Presses keys by tmux' names for them: `Escape`, `C-c`, `Down`.
    ///
    /// # Errors
    ///
    /// When tmux fails.
    pub fn press(&self, keys: &[&str]) -> Result<()> {
        self.call(["send-keys"].iter().chain(keys)).map(drop)
    }

    /// Gives the terminal another size.
    ///
    /// # Errors
    ///
    /// When tmux fails.
    pub fn resize(&self, columns: u16, lines: u16) -> Result<()> {
        let (columns, lines) = (columns.to_string(), lines.to_string());
        self.call(["resize-window", "-x", &columns, "-y", &lines]).map(drop)
    }

    /// What a person sees.
    ///
    /// # Errors
    ///
    /// When tmux fails.
    pub fn screen(&self) -> Result<String> {
        self.call(["capture-pane", "-p"])
    }

    /// The same with the codes for colours and the like.
    ///
    /// # Errors
    ///
    /// When tmux fails.
    pub fn screen_with_codes(&self) -> Result<String> {
        self.call(["capture-pane", "-p", "-e"])
    }

    /// Waits until the screen is as expected, and gives it.
    ///
    /// # Errors
    ///
    /// When it is not in time: with what is there.
    pub fn wait_for(&self, what: &str, as_expected: impl Fn(&str) -> bool) -> Result<String> {
        crate::until(what, SEEN_WITHIN, || {
            let screen = self.screen()?;
            ensure!(as_expected(&screen), "the screen is\n{screen}");
            Ok(screen)
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Err(error) = self.call(["kill-server"]) {
            eprintln!("tmux at {} may be left: {error:#}", self.socket().display());
        }
    }
}
