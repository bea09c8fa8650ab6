//! Where a report goes: standard output or a file, and how wide it may be.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Why a report cannot be written. One line.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {to}: {source}; name another file with -o")]
pub struct OutputError {
    /// Where to.
    pub to: String,
    /// What came back.
    #[source]
    pub source: io::Error,
}

/// An open destination. Opened before anything is traced, so that a name that cannot be
/// written costs nobody a night's run.
#[derive(Debug)]
pub struct Output {
    file: Option<(File, PathBuf)>,
    /// Whether anything has been written: until then an existing file keeps what it has.
    started: bool,
}

impl Output {
    /// Opens a file, or standard output.
    ///
    /// # Errors
    ///
    /// One line, where the file cannot be made.
    pub fn open(path: Option<&Path>) -> Result<Self, OutputError> {
        let Some(path) = path else { return Ok(Self { file: None, started: true }) };
        match File::options().write(true).create(true).truncate(false).open(path) {
            Ok(file) => Ok(Self { file: Some((file, path.to_owned())), started: false }),
            Err(source) => Err(OutputError { to: path.display().to_string(), source }),
        }
    }

    /// Columns, if a terminal shows it; `None` for a file or a pipe.
    #[must_use]
    pub fn width(&self) -> Option<usize> {
        let stdout = io::stdout();
        if self.file.is_some() || !stdout.is_terminal() {
            return None;
        }
        // A terminal that does not say (a serial console) has 80.
        let columns = rustix::termios::tcgetwinsize(&stdout).map_or(0, |size| size.ws_col);
        Some(if columns == 0 { 80 } else { usize::from(columns) })
    }

    /// Says what writing came to. A reader that has seen enough (`| head`) is no error.
    ///
    /// # Errors
    ///
    /// One line.
    pub fn finished(&self, result: io::Result<()>) -> Result<(), OutputError> {
        match result {
            Err(source) if source.kind() != io::ErrorKind::BrokenPipe => {
                Err(OutputError { to: self.name(), source })
            }
            _ => Ok(()),
        }
    }

    fn name(&self) -> String {
        match &self.file {
            Some((_, path)) => path.display().to_string(),
            None => "standard output".into(),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.file {
            Some((file, _)) => {
                if !std::mem::replace(&mut self.started, true) {
                    // What is no regular file (a pipe, a terminal) has no length; no matter.
                    drop(file.set_len(0));
                }
                file.write(bytes)
            }
            None => io::stdout().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.file {
            Some((file, _)) => file.flush(),
            None => io::stdout().flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwritable_file_is_one_line() {
        let error = Output::open(Some(Path::new("/nonexistent/report"))).unwrap_err().to_string();
        assert_eq!(
            error,
            "cannot write /nonexistent/report: No such file or directory (os error 2); \
             name another file with -o"
        );
    }

    #[test]
    fn an_old_report_stays_until_there_is_a_new_one() {
        let path = std::env::temp_dir().join(format!("memtrace-output-{}", std::process::id()));
        std::fs::write(&path, "the old report").unwrap();
        let mut output = Output::open(Some(&path)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"the old report");
        output.write_all(b"new ").unwrap();
        output.write_all(b"report").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new report");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_reader_that_left_is_no_error() {
        let output = Output::open(None).unwrap();
        assert!(output.finished(Err(io::ErrorKind::BrokenPipe.into())).is_ok());
        let full = output.finished(Err(io::ErrorKind::StorageFull.into())).unwrap_err();
        assert!(full.to_string().starts_with("cannot write standard output: "));
    }
}
