//! The command line, as data. What is wrong with it is said in one line, and exits with 2.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use memtrace_common::Domain;

use super::line;
use crate::config::values::{parse_bytes, parse_domain, parse_duration, parse_site};
use crate::config::{DEFAULT_SOCKET, Domains, Listen};
use crate::report::Format;

/// Finds which process and which code holds kernel and GPU memory.
#[derive(Clone, Debug, Parser)]
#[command(name = "memtrace", version, disable_help_subcommand = true)]
#[command(after_help = "Exit status: 0 done, 1 failed, 2 wrong usage. `run` exits as CMD does; \
                        3 if a --fail-on-… condition holds, 125 if memtrace failed, \
                        126 if CMD cannot be executed, 127 if it is not found.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run a command and report what it, and its children, kept.
    Run(RunArgs),
    /// Follow a running process and its children, then report.
    Attach(AttachArgs),
    /// Watch the whole host; serve metrics and dumps.
    Daemon(DaemonArgs),
    /// Print what the daemon has on its books now.
    Dump(DumpArgs),
    /// Watch the daemon's findings and sites in the terminal.
    Top(SocketArgs),
    /// Say in a few lines how the daemon fares.
    Status(SocketArgs),
    /// Have the daemon stop tracing at once: nothing in the kernel runs a program of it any more.
    Stop(SocketArgs),
    /// Have it go on. What came and went meanwhile is on no books.
    Resume(SocketArgs),
    /// Say what this host can do for memtrace, and how to mend what it cannot.
    Doctor(DoctorArgs),
    /// Write what is seen of the host, or of a command, into a file that can be replayed.
    Record(RecordArgs),
    /// Read such a file and report as if its last moment were now; needs no privilege.
    Replay(ReplayArgs),
}

/// What to trace.
#[derive(Clone, Debug, Args)]
pub struct TraceArgs {
    /// Kinds of memory to book, separated by commas.
    #[arg(long, value_name = "LIST", default_value_t)]
    pub domains: Domains,
    /// Walk the stack of every kernel allocation, not of samples (slower).
    #[arg(long)]
    pub exact: bool,
    /// Book named slab caches too, not only kmalloc (slower).
    #[arg(long)]
    pub kmem_cache: bool,
    /// Probe this library file although nothing maps it yet; can be repeated.
    #[arg(long = "library", value_name = "PATH")]
    pub libraries: Vec<PathBuf>,
    /// A function of your own that hands memory on, such as 'our::pool::*': the headline of a
    /// finding is the frame that called it; can be repeated.
    #[arg(long = "allocator", value_name = "PATTERN")]
    pub allocators: Vec<String>,
}

/// How long to trace, what to report, and what makes the exit status 3.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// How long kernel books may settle after the end before they are reported.
    #[arg(long, value_name = "T", default_value = "500ms", value_parser = parse_duration)]
    pub settle: Duration,
    /// Report after this time at the latest; without it, at the end of the process.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// What the report is written as, and where.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Exit with 3 if the verdict is `leak` anywhere. It takes 8 minutes to tell a leak from a
    /// cache that fills; for shorter runs there is --fail-on-kept.
    #[arg(long)]
    pub fail_on_leak: bool,
    /// Exit with 3 if at least this much is kept, in any domain or in one; can be repeated.
    #[arg(long, value_name = "BYTES[:DOMAIN]", value_parser = parse_kept)]
    pub fail_on_kept: Vec<KeptLimit>,
}

/// What a report is written as, and where.
#[derive(Clone, Debug, Args)]
pub struct OutputArgs {
    /// text, json (schema 1), folded (for flame graph tools), pprof (a gzipped profile) or svg (a
    /// flame graph for a browser).
    #[arg(long, value_name = "F", default_value = "text")]
    pub format: Format,
    /// Write to this file instead of standard output; pprof and svg go to no terminal.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `memtrace run`
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// What to trace.
    #[command(flatten)]
    pub trace: TraceArgs,
    /// What to report.
    #[command(flatten)]
    pub report: ReportArgs,
    /// Run CMD as this user.
    #[arg(long, value_name = "NAME", env = "SUDO_USER", hide_env_values = true)]
    pub user: Option<String>,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `memtrace attach`
#[derive(Clone, Debug, Args)]
pub struct AttachArgs {
    /// The process to follow.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: u32,
    /// What to trace.
    #[command(flatten)]
    pub trace: TraceArgs,
    /// What to report.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// `memtrace daemon`
#[derive(Clone, Debug, Args)]
pub struct DaemonArgs {
    /// Configuration file; without it /etc/memtrace/memtrace.toml, if that exists.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Serve /metrics at IP:PORT, or `off`; overrides the configuration.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<Listen>,
    /// Serve the socket here; overrides the configuration.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Keep here what outlives a restart; overrides the configuration.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Read the configuration, say whether it is right, and exit.
    #[arg(long)]
    pub check: bool,
}

/// Which daemon to ask.
#[derive(Clone, Debug, Args)]
pub struct SocketArgs {
    /// The daemon's socket.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
}

/// `memtrace dump`
#[derive(Clone, Debug, Args)]
pub struct DumpArgs {
    /// Which daemon to ask.
    #[command(flatten)]
    pub socket: SocketArgs,
    /// Only this process.
    #[arg(long, value_name = "N")]
    pub pid: Option<u32>,
    /// Only processes of this name.
    #[arg(long, value_name = "S")]
    pub comm: Option<String>,
    /// Only this kind of memory.
    #[arg(long, value_name = "D", value_parser = parse_domain)]
    pub domain: Option<Domain>,
    /// Only this allocation site, 16 hex digits.
    #[arg(long, value_name = "ID", value_parser = parse_site)]
    pub site: Option<u64>,
    /// What the dump is written as, and where.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `memtrace doctor`
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Write JSON.
    #[arg(long)]
    pub json: bool,
}

/// `memtrace record`
#[derive(Clone, Debug, Args)]
pub struct RecordArgs {
    /// The file to write, readable by its owner only: command lines are in it.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// What to trace.
    #[command(flatten)]
    pub trace: TraceArgs,
    /// Stop after this time; without it, at Ctrl-C or at the end of CMD.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Run CMD as this user.
    #[arg(long, value_name = "NAME", env = "SUDO_USER", hide_env_values = true)]
    pub user: Option<String>,
    /// A command to run and follow with its children; without it, the whole host is recorded.
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `memtrace replay`
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// The file to read.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What the report is written as, and where.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `--fail-on-kept BYTES[:DOMAIN]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptLimit {
    /// From this many bytes on, the condition holds.
    pub bytes: u64,
    /// In this domain; `None`: in any one of them, as domains are never added.
    pub domain: Option<Domain>,
}

fn parse_kept(text: &str) -> Result<KeptLimit, String> {
    let (bytes, domain) = match text.split_once(':') {
        Some((bytes, domain)) => (bytes, Some(parse_domain(domain)?)),
        None => (text, None),
    };
    Ok(KeptLimit { bytes: parse_bytes(bytes)?, domain })
}

/// Why there is nothing to do: help was asked for, or the command line is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// 0 for help and version, else 2.
    pub status: u8,
    /// For standard output (help, version) or standard error (one line).
    pub message: String,
}

/// Reads a command line, the program's name first.
///
/// # Errors
///
/// What to print, and the status to exit with.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, Stop> {
    Cli::try_parse_from(arguments).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            Stop { status: 0, message: error.render().to_string() }
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Stop {
            status: 2,
            message: "memtrace: say what to do: run, attach, daemon, dump, top, status, stop, \
                      resume, doctor, record or replay; \
                      see memtrace --help"
                .into(),
        },
        _ => Stop { status: 2, message: one_line(&error.render().to_string()) },
    })
}

/// clap's first paragraph, without line breaks: the rest repeats the usage.
fn one_line(rendered: &str) -> String {
    let first = rendered.split("\n\n").next().unwrap_or_default();
    let words = line::one_line(first);
    let said = words.strip_prefix("error: ").unwrap_or(&words);
    format!("memtrace: {said}; see memtrace --help")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Cli, Stop> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn the_declaration_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn run_takes_the_command_as_it_is() {
        let cli = read(
            "memtrace run --domains cuda,kernel --exact --settle 2s --duration 1m \
             --fail-on-kept 1MiB --fail-on-kept 4096:cuda -o r.json --format json \
             --library /a --library /b -- sh -c --exact",
        )
        .unwrap();
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert_eq!(run.command, ["sh", "-c", "--exact"]);
        assert_eq!(run.trace.domains.to_string(), "kernel,cuda");
        assert_eq!(run.trace.libraries.len(), 2);
        assert!(run.trace.exact && !run.trace.kmem_cache);
        assert_eq!(run.report.settle, Duration::from_secs(2));
        assert_eq!(run.report.duration, Some(Duration::from_secs(60)));
        assert_eq!(run.report.output.format, Format::Json);
        assert_eq!(
            run.report.fail_on_kept,
            [
                KeptLimit { bytes: 1 << 20, domain: None },
                KeptLimit { bytes: 4096, domain: Some(Domain::Cuda) }
            ]
        );
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let Command::Run(run) = read("memtrace run -- true").unwrap().command else {
            panic!("not run")
        };
        assert_eq!(run.trace.domains.to_string(), "kernel,cuda,managed,pinned");
        assert_eq!(run.report.settle, Duration::from_millis(500));
        assert_eq!(run.report.output.format, Format::Text);
        let Command::Dump(dump) = read("memtrace dump").unwrap().command else {
            panic!("not dump")
        };
        assert_eq!(dump.socket.socket, PathBuf::from("/run/memtrace/memtrace.sock"));
    }

    #[test]
    fn wrong_usage_is_one_line_and_2() {
        for (line, expected) in [
            ("memtrace", "say what to do"),
            ("memtrace run", "<CMD>"),
            ("memtrace run --domains gpu -- true", "unknown domain `gpu`"),
            ("memtrace run --format xml -- true", "unknown format `xml`"),
            ("memtrace run --settle 5 -- true", "`5` is no duration"),
            ("memtrace run --fail-on-kept lots -- true", "`lots` is no size"),
            ("memtrace run --fail-on-kept 1M:gpu -- true", "unknown domain `gpu`"),
            ("memtrace attach", "--pid <PID>"),
            ("memtrace attach --pid 0", "--pid <PID>"),
            ("memtrace dump --site 12", "`12` is no site"),
            ("memtrace daemon --listen nowhere", "`nowhere` is no address"),
            ("memtrace frobnicate", "unrecognized subcommand 'frobnicate'"),
        ] {
            let stop = read(line).unwrap_err();
            assert_eq!(stop.status, 2, "{line}");
            assert!(stop.message.contains(expected), "{line} gave: {}", stop.message);
            assert_eq!(stop.message.lines().count(), 1, "{}", stop.message);
        }
    }

    #[test]
    fn help_is_no_failure() {
        let stop = read("memtrace run --help").unwrap_err();
        assert_eq!(stop.status, 0);
        assert!(stop.message.contains("--fail-on-kept <BYTES[:DOMAIN]>"));
        assert_eq!(read("memtrace --version").unwrap_err().status, 0);
    }
}
