//! The binary `memtrace`: parses the command line, wires a subcommand, exits.

use std::{env, ffi::OsString, process::ExitCode};

use memtrace_daemon::cli::{
    args::{self, Cli, Command},
    attach, control, daemon, doctor, dump, launch, line, record, replay, run, status, top,
};
use memtrace_daemon::heap;
use tracing_subscriber::EnvFilter;

/// Exit status of everything but `run`: failed.
const STATUS_FAILED: u8 = 1;
/// Exit status: wrong usage.
const STATUS_USAGE: u8 = 2;

fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = env::args_os().collect();
    if arguments.get(1).is_some_and(|first| first == launch::LAUNCH) {
        return launch::launcher(arguments.split_off(2));
    }
    match args::parse(arguments) {
        Ok(cli) => start(cli),
        Err(stop) if stop.status == 0 => {
            print!("{}", stop.message);
            ExitCode::SUCCESS
        }
        Err(stop) => {
            eprintln!("{}", stop.message.trim_end());
            ExitCode::from(STATUS_USAGE)
        }
    }
}

fn start(cli: Cli) -> ExitCode {
    let failed = match &cli.command {
        Command::Run(_) => launch::STATUS_FAILED,
        _ => STATUS_FAILED,
    };
    heap::set_up();
    log_to_stderr(matches!(cli.command, Command::Daemon(_)));
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("memtrace")
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(failed, &anyhow::Error::from(error)),
    };
    let result = runtime.block_on(dispatch(cli.command));
    // A thread that hangs in a file must not keep us from ending.
    runtime.shutdown_background();
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => fail(failed, &error),
    }
}

async fn dispatch(command: Command) -> anyhow::Result<u8> {
    match command {
        Command::Run(arguments) => run::run(arguments).await,
        Command::Attach(arguments) => attach::attach(arguments).await,
        Command::Daemon(arguments) => daemon::daemon(arguments).await,
        Command::Dump(arguments) => dump::dump(&arguments).await.map(|()| 0),
        Command::Top(arguments) => top::top(arguments).await.map(|()| 0),
        Command::Status(arguments) => status::status(&arguments).await.map(|()| 0),
        Command::Stop(arguments) => control::stop(&arguments).await.map(|()| 0),
        Command::Resume(arguments) => control::resume(&arguments).await.map(|()| 0),
        Command::Doctor(arguments) => {
            let colour = std::io::IsTerminal::is_terminal(&std::io::stdout());
            Ok(doctor::run(&arguments, &mut std::io::stdout(), colour)?)
        }
        Command::Record(arguments) => record::record(arguments).await,
        Command::Replay(arguments) => replay::replay(&arguments).map(|()| 0),
    }
}

fn fail(status: u8, error: &anyhow::Error) -> ExitCode {
    eprintln!("memtrace: {}", line::error_line(error));
    ExitCode::from(status)
}

/// Logs go to standard error: a daemon's in full, others' only when something is wrong.
fn log_to_stderr(daemon: bool) {
    let default = if daemon { "info" } else { "warn" };
    let filter =
        EnvFilter::try_from_env("MEMTRACE_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // journald adds its own time stamps.
    if env::var_os("JOURNAL_STREAM").is_some() {
        logs.without_time().with_ansi(false).init();
    } else {
        logs.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init();
    }
}
