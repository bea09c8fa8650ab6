//! memtrace's development tasks: `cargo xtask setup|build|run|test|bless|lint|bench`.
//!
//! A file a subcommand; this one parses and hands over. Nobody who uses a package of
//! memtrace needs it, and nothing of memtrace may depend on it.

#[path = "../../memtrace-daemon/build/bpf_toolchain.rs"]
mod bpf_toolchain;

mod bench;
mod bless;
mod build;
mod command;
mod gpu;
mod lint;
mod run;
mod setup;
mod test;
mod torch;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};

/// Development tasks of memtrace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Brings what is missing: Debian packages, bpf-linker, the libraries that tests trace
    Setup {
        /// What shall be possible afterwards
        #[arg(long = "for", value_enum, default_value_t = setup::Purpose::Test)]
        purpose: setup::Purpose,
    },
    /// Sets up and leaves the release binary at target/release/memtrace
    Build,
    /// Sets up, builds and runs `memtrace ARGS`; the exit status is memtrace's
    Run {
        /// Arguments of memtrace
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Sets up, builds and runs all tests, as root: those on the real kernel as well
    Test {
        /// Runs only tests whose name contains one of these
        filters: Vec<OsString>,
        /// Runs those on PyTorch's own library instead, which it downloads (530 MB)
        #[arg(long, conflicts_with = "filters")]
        torch: bool,
        /// Runs those on a real GPU's driver instead
        #[arg(long, conflicts_with_all = ["filters", "torch"])]
        gpu: bool,
    },
    /// Replays tests/recordings and writes what is expected of them anew, to be looked through
    Bless,
    /// Checks formatting, lints, licences and dependencies
    Lint,
    /// Measures what tracing costs, beside nothing, empty programs and bpftrace
    Bench(bench::BenchArgs),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Setup { purpose } => setup::ensure(purpose),
        Task::Build => build::build(),
        Task::Run { arguments } => run::run(&arguments),
        Task::Test { torch: true, .. } => torch::test(),
        Task::Test { gpu: true, .. } => gpu::test(),
        Task::Test { filters, torch: false, gpu: false } => test::test(&filters),
        Task::Bless => bless::bless(),
        Task::Lint => lint::lint(),
        Task::Bench(arguments) => bench::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
