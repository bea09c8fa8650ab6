//! Makes processes hold kernel memory, to the object: `fixture-kernel COMMAND NUMBER… [--hold]`.
//!
//! Prints what it did as JSON lines on standard output; with `--hold` it waits for a line on
//! standard input after each. It must never touch a queue that it did not make, and leaves one
//! behind only in the commands that say so, with its id on the line.

mod descriptors;
mod memory;
mod mqueue;
mod pings;
mod sysv;

use std::io::BufRead;
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::{Value, json};

/// The arguments of a command.
pub struct Arguments {
    numbers: Vec<u64>,
    hold: bool,
}

impl Arguments {
    /// The number at this place.
    fn number(&self, index: usize) -> anyhow::Result<u64> {
        self.numbers
            .get(index)
            .copied()
            .with_context(|| format!("argument {} is missing", index + 1))
    }

    /// The number at this place as a size in memory.
    fn size(&self, index: usize) -> anyhow::Result<usize> {
        Ok(usize::try_from(self.number(index)?)?)
    }

    /// Says what is true now, and waits for a line when asked to.
    fn checkpoint(&self, mut line: Value) -> anyhow::Result<()> {
        if let Some(members) = line.as_object_mut() {
            members.insert("pid".to_owned(), json!(std::process::id()));
        }
        println!("{line}");
        if self.hold {
            std::io::stdin().lock().read_line(&mut String::new())?;
        }
        Ok(())
    }
}

fn run() -> anyhow::Result<()> {
    // Our own name may be anything; the arguments are text.
    let words: Result<Vec<String>, _> =
        std::env::args_os().skip(1).map(std::ffi::OsString::into_string).collect();
    let mut words = words.map_err(|word| anyhow::anyhow!("not text: {word:?}"))?;
    let hold = words.last().is_some_and(|word| word == "--hold");
    words.truncate(words.len() - usize::from(hold));
    let mut words = words.into_iter();
    let command = words.next().context("which command?")?;
    let numbers = words.map(|word| word.parse().with_context(|| format!("not a number: {word}")));
    let arguments = Arguments { numbers: numbers.collect::<anyhow::Result<_>>()?, hold };
    match command.as_str() {
        "keep" => sysv::keep(&arguments),
        "receive" => sysv::receive(&arguments),
        "both-paths" => mqueue::both_paths(&arguments),
        "flood" => sysv::flood(&arguments),
        "mixed" => sysv::mixed(&arguments),
        "eventfds" => descriptors::eventfds(&arguments),
        "pipes" => descriptors::pipes(&arguments),
        "waits" => descriptors::waits(&arguments),
        "resident" => memory::resident(&arguments),
        "shared" => memory::shared(&arguments),
        "pings" => pings::pings(&arguments),
        "epoll-loop" => descriptors::epoll_loop(&arguments),
        "pipe-loop" => descriptors::pipe_loop(&arguments),
        _ => bail!("no command {command}"),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fixture-kernel: {error:#}");
            ExitCode::from(70)
        }
    }
}
