//! The terminal, taken and given back: raw mode, the alternate screen, the cursor. It is given
//! back when the guard goes, in a panic, and before the process stops; twice does no harm.

use std::io::{self, IsTerminal, Stdout, Write};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::Rect;

/// Whether it is taken. Process-wide, because a panic hook is.
static TAKEN: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

/// Says so where there is none.
///
/// # Errors
///
/// One line: what to use instead.
pub fn needed() -> anyhow::Result<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        anyhow::bail!(
            "`top` needs a terminal, and standard input or output is none; \
             `memtrace status` and `memtrace dump` print text anywhere"
        );
    }
    Ok(())
}

/// The terminal while it is taken.
#[derive(Debug)]
pub struct Terminal {
    screen: ratatui::Terminal<CrosstermBackend<Stdout>>,
}

impl Terminal {
    /// Takes it.
    ///
    /// # Errors
    ///
    /// One line: it cannot be set.
    pub fn take() -> anyhow::Result<Self> {
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                give_back();
                before(info);
            }));
        });
        set().map_err(|error| {
            give_back();
            anyhow::anyhow!("cannot set the terminal: {error}; `memtrace dump` needs none")
        })?;
        match ratatui::Terminal::new(CrosstermBackend::new(io::stdout())) {
            Ok(screen) => Ok(Self { screen }),
            Err(error) => {
                give_back();
                anyhow::bail!("the terminal does not say how large it is: {error}; see `stty size`")
            }
        }
    }

    /// Where to draw.
    pub fn screen(&mut self) -> &mut ratatui::Terminal<CrosstermBackend<Stdout>> {
        &mut self.screen
    }

    /// Gives it back, stops the process as Ctrl-Z does, and takes it again when it goes on.
    ///
    /// # Errors
    ///
    /// What came back from setting the terminal.
    pub fn suspend(&mut self) -> io::Result<()> {
        give_back();
        // The whole job, `sudo` around us included, as the terminal itself would. Where no
        // shell waits to wake us (an orphaned group) the kernel ignores it.
        rustix::process::kill_current_process_group(rustix::process::Signal::TSTP)?;
        set()?;
        self.redraw()
    }

    /// Has the next drawing draw everything. `clear` of the screen itself asks the terminal
    /// where its cursor is, and the answer would be read as keys.
    ///
    /// # Errors
    ///
    /// What came back from the terminal.
    pub fn redraw(&mut self) -> io::Result<()> {
        let size = self.screen.size()?;
        self.screen.resize(Rect::new(0, 0, size.width, size.height))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

fn set() -> io::Result<()> {
    TAKEN.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

/// Gives the terminal back. What fails is not said: there may be no terminal any more.
pub fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // The mode first: it needs nobody to read what we write.
        let _ = disable_raw_mode();
        let mut out = io::stdout();
        let _ = execute!(out, LeaveAlternateScreen, Show);
        let _ = out.flush();
    }
}

#[cfg(test)]
mod tests;
