//! Where a report goes: standard output or a file, and how wide it may be.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use crate::report::Format;

/// Why a report cannot be written. One line.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The file or standard output cannot be written.
    #[error("cannot write {to}: {source}; name another file with -o")]
    Write {
        /// Where to.
        to: String,
        /// What came back.
        #[source]
        source: io::Error,
    },
    /// It would end on a terminal, which would show noise.
    #[error("a terminal cannot show {0}; name a file with -o FILE, or pipe it to a program")]
    Terminal(Format),
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
    /// Opens a file, or standard output, for a report of this format.
    ///
    /// # Errors
    ///
    /// One line, where the file cannot be made, or it is a terminal and the format is not for
    /// terminals.
    pub fn open(path: Option<&Path>, format: Format) -> Result<Self, OutputError> {
        let output = match path {
            None => Self { file: None, started: true },
            Some(path) => {
                match File::options().write(true).create(true).truncate(false).open(path) {
                    Ok(file) => Self { file: Some((file, path.to_owned())), started: false },
                    Err(source) => {
                        return Err(OutputError::Write { to: path.display().to_string(), source });
                    }
                }
            }
        };
        if !format.for_terminals() && output.is_terminal() {
            return Err(OutputError::Terminal(format));
        }
        Ok(output)
    }

    fn is_terminal(&self) -> bool {
        match &self.file {
            Some((file, _)) => file.is_terminal(),
            None => io::stdout().is_terminal(),
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
                Err(OutputError::Write { to: self.name(), source })
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
        let error = Output::open(Some(Path::new("/nonexistent/report")), Format::Text)
            .unwrap_err()
            .to_string();
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
        let mut output = Output::open(Some(&path), Format::Pprof).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"the old report");
        output.write_all(b"new ").unwrap();
        output.write_all(b"report").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new report");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_is_not_for_terminals_goes_to_none() {
        let (_other_end, terminal) = terminal();
        for (format, refused) in [(Format::Text, false), (Format::Pprof, true), (Format::Svg, true)]
        {
            let opened = Output::open(Some(&terminal), format);
            let said = opened.err().map(|error| error.to_string());
            let expected = format!(
                "a terminal cannot show {format}; name a file with -o FILE, or pipe it to a program"
            );
            assert_eq!(said, refused.then_some(expected));
        }
    }

    /// A terminal of our own, and the end that keeps it open.
    fn terminal() -> (File, PathBuf) {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let end = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&end).unwrap();
        unlockpt(&end).unwrap();
        let name = ptsname(&end, Vec::new()).unwrap().into_string().unwrap();
        (end.into(), PathBuf::from(name))
    }

    #[test]
    fn a_reader_that_left_is_no_error() {
        let output = Output::open(None, Format::Text).unwrap();
        assert!(output.finished(Err(io::ErrorKind::BrokenPipe.into())).is_ok());
        let full = output.finished(Err(io::ErrorKind::StorageFull.into())).unwrap_err();
        assert!(full.to_string().starts_with("cannot write standard output: "));
    }
}
