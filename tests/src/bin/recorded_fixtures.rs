//! `recorded-fixtures`: builds the fixtures as they are recorded for `tests/recordings`, and prints
//! the directory they are in. Must never trace anything itself.

use std::process::ExitCode;

use memtrace_tests::fixture::{Variant, build};

fn main() -> ExitCode {
    match build(Variant::Recorded) {
        Ok(fixtures) => {
            println!("{}", fixtures.directory().display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("recorded-fixtures: {error:#}");
            ExitCode::FAILURE
        }
    }
}
