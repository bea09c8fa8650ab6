//! `cargo xtask bless`: writes anew what is expected of the recordings in `tests/recordings`, for
//! a person to look through before it is committed.

use anyhow::Result;

use crate::command;

/// Replays all recordings and writes down what they come to.
///
/// # Errors
/// Where a recording cannot be replayed.
pub fn bless() -> Result<()> {
    let mut test = command::cargo();
    test.args(["test", "--package", "memtrace-tests", "--test", "frozen"]);
    command::run(test.env("MEMTRACE_BLESS", "1"))?;
    command::step("see what has changed: git diff tests/recordings");
    Ok(())
}
