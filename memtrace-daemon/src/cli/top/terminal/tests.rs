//! On a terminal of the test's own: a panic gives it back. The test program is started once
//! more, with that terminal, and panics there.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use super::Terminal;

const CHILD: &str = "MEMTRACE_TEST_PANICS_ON_ITS_TERMINAL";

#[test]
fn a_panic_gives_the_terminal_back() {
    if std::env::var_os(CHILD).is_some() {
        let _terminal = Terminal::take().unwrap();
        let modes = tcgetattr(std::io::stdin()).unwrap().local_modes;
        assert!(!modes.contains(LocalModes::ECHO), "raw mode");
        panic!("on purpose");
    }
    let end = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&end).unwrap();
    unlockpt(&end).unwrap();
    let name = ptsname(&end, Vec::new()).unwrap().into_string().unwrap();
    let terminal = File::options().read(true).write(true).open(name).unwrap();
    let before = tcgetattr(&terminal).unwrap();
    let handle = || Stdio::from(terminal.try_clone().unwrap());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cli::top::terminal::tests::a_panic_gives_the_terminal_back"])
        .arg("--nocapture")
        .env(CHILD, "1")
        .stdin(handle())
        .stdout(handle())
        .stderr(handle())
        .spawn()
        .unwrap();
    // What it writes must be read, or it waits.
    let mut output = File::from(end);
    let reader = std::thread::spawn(move || {
        let mut said = vec![];
        let mut part = [0; 4096];
        // At the end of the last writer a terminal gives an error.
        while let Ok(length @ 1..) = output.read(&mut part) {
            said.extend_from_slice(&part[..length]);
        }
        String::from_utf8_lossy(&said).into_owned()
    });
    assert_eq!(child.wait().unwrap().code(), Some(101), "it panics");
    let after = tcgetattr(&terminal).unwrap();
    assert_eq!(after.local_modes, before.local_modes);
    assert_eq!(after.input_modes, before.input_modes);
    assert_eq!(after.output_modes, before.output_modes);
    drop(terminal);
    let said = reader.join().unwrap();
    let place = |text: &str| said.find(text).unwrap_or_else(|| panic!("no {text:?} in {said:?}"));
    assert!(place("\x1b[?1049h") < place("\x1b[?1049l"), "the screen: {said:?}");
    assert!(place("\x1b[?25l") < place("\x1b[?25h"), "the cursor: {said:?}");
    assert!(place("\x1b[?1049l") < place("on purpose"), "said where it can be read: {said:?}");
}
