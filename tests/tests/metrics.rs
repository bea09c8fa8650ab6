//! `/metrics` in both formats, held against promtool and a real Prometheus; and what else the
//! daemon serves, and to whom.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::{Daemon, free_address};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::http::{self, get_tcp};
use memtrace_tests::memtrace::LIMIT;
use memtrace_tests::process::{self, Running};
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;
use serde_json::Value;

const LATE: Duration = Duration::from_secs(30);
const OPEN_METRICS: (&str, &str) = ("Accept", "application/openmetrics-text; version=1.0.0");

/// A daemon with a client on its books that holds memory in three domains.
struct Watched {
    daemon: Daemon,
    client: Running,
    truth: Truth,
}

impl Watched {
    fn start() -> Result<Self> {
        let fixtures = fixture::build(Variant::Plain)?;
        let daemon = Daemon::start_knowing(&fixtures)?;
        let mut client = Command::new(fixtures.client());
        let mut client = Running::start_talking(client.args(["kinds", "--hold"]))?;
        let truth = Truth::parse(client.read_json()?)?;
        daemon.dump_until("the client", LATE, |dump| dump.process(client.pid()).map(|_| ()))?;
        Ok(Self { daemon, client, truth })
    }

    fn metrics(&self, headers: &[(&str, &str)]) -> Result<String> {
        let answer = get_tcp(self.daemon.address(), "/metrics", headers)?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(answer.body)
    }
}

fn promtool(text: &str) -> Result<()> {
    let mut command = Command::new("promtool");
    let said = process::run_with_input(command.args(["check", "metrics"]), text, LIMIT)?;
    ensure!(said.status == 0 && said.stderr.is_empty(), "promtool: {said:?}\n{text}");
    Ok(())
}

/// promtool reads the older format only. The two differ in the metadata of counters and infos,
/// which OpenMetrics names without their suffix (put it there), and in the name of no type.
fn as_older_format(text: &str) -> String {
    let kind = |kind: &str| -> BTreeSet<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        lines.filter_map(|line| line.strip_suffix(kind)).map(|n| n.trim().to_owned()).collect()
    };
    let (counters, infos) = (kind(" counter"), kind(" info"));
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.starts_with("# UNIT ")) {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words.as_slice() {
            ["#", what, name, rest] if counters.contains(*name) => {
                out.push_str(&format!("# {what} {name}_total {rest}\n"));
            }
            ["#", what, name, rest] if infos.contains(*name) => {
                let rest = if *what == "TYPE" { "gauge" } else { rest };
                out.push_str(&format!("# {what} {name}_info {rest}\n"));
            }
            ["#", "TYPE", name, "unknown"] => out.push_str(&format!("# TYPE {name} untyped\n")),
            _ => out.push_str(&format!("{line}\n")),
        }
    }
    out
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn promtool_accepts_the_text_format() -> Result<()> {
    let watched = Watched::start()?;
    let answer = get_tcp(watched.daemon.address(), "/metrics", &[])?;
    let kind = answer.header("content-type").context("no content type")?;
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    promtool(&answer.body)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn promtool_accepts_the_openmetrics_format() -> Result<()> {
    let watched = Watched::start()?;
    let answer = get_tcp(watched.daemon.address(), "/metrics", &[OPEN_METRICS])?;
    let kind = answer.header("content-type").context("no content type")?;
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    assert!(answer.body.ends_with("# EOF\n"), "not ended");
    promtool(&as_older_format(&answer.body))
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn every_metric_of_the_contract_is_there() -> Result<()> {
    let body = Watched::start()?.metrics(&[])?;
    for start in [
        "memtrace_process_live_bytes{",
        "memtrace_site_live_bytes{",
        "memtrace_site_allocated_bytes_total{",
        "memtrace_site_freed_bytes_total{",
        "memtrace_bytes_total{",
        "memtrace_records_total{",
        "memtrace_lost_total{",
        "memtrace_probe_attached{",
        "memtrace_build_info{",
    ] {
        assert!(body.lines().any(|line| line.starts_with(start)), "no {start} in\n{body}");
    }
    for named in ["memtrace_finding", "memtrace_exhaustion_seconds", "memtrace_explained_ratio"] {
        assert!(body.contains(&format!("# HELP {named} ")), "no {named} in\n{body}");
    }
    for cause in [
        "ring_full",
        "live_map_full",
        "account_map_full",
        "inflight_full",
        "missed_return",
        "recursion",
        "unreadable_pointer",
        "implausible",
        "unknown_process",
        "stack_budget",
        "rate_ceiling",
    ] {
        let start = format!("memtrace_lost_total{{cause=\"{cause}\"}} ");
        assert!(body.lines().any(|line| line.starts_with(&start)), "no {start}");
    }
    Ok(())
}

/// The sum of the values of all lines that begin so and contain a label.
fn sum(body: &str, start: &str, label: &str) -> Result<u64> {
    let lines = body.lines().filter(|line| line.starts_with(start) && line.contains(label));
    let values = lines.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<f64>());
    let sum: f64 = values.sum::<Result<f64, _>>().context("a value that is no number")?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole bytes")]
    Ok(sum as u64)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn metrics_say_the_bytes_that_the_stub_gave() -> Result<()> {
    let watched = Watched::start()?;
    let pid = format!("pid=\"{}\"", watched.client.pid());
    memtrace_tests::until("metrics to the byte", LATE, || {
        let body = watched.metrics(&[])?;
        for domain in memtrace_tests::truth::DOMAINS {
            let truly = watched.truth.domain(domain).live.bytes;
            let start = format!("memtrace_process_live_bytes{{domain=\"{domain}\"");
            ensure!(sum(&body, &start, &pid)? == truly, "{start} {pid}, truly {truly}\n{body}");
            let start = format!("memtrace_site_live_bytes{{domain=\"{domain}\"");
            ensure!(sum(&body, &start, &pid)? == truly, "{start} {pid}, truly {truly}\n{body}");
        }
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_exported_terms_are_conserved() -> Result<()> {
    let body = Watched::start()?.metrics(&[])?;
    for domain in ["kernel", "cuda", "managed", "pinned"] {
        let term = |state: &str| {
            let start = format!("memtrace_bytes_total{{domain=\"{domain}\"");
            sum(&body, &start, &format!("state=\"{state}\""))
        };
        let mut all = 0;
        for state in ["live", "freed", "closed", "freed_unseen", "dropped"] {
            all += term(state)?;
        }
        assert_eq!(term("seen")?, all, "{domain}");
    }
    Ok(())
}

fn ask(prometheus: &str, query: &str) -> Result<Value> {
    let answer = get_tcp(prometheus, &format!("/api/v1/query?query={query}"), &[])?;
    let value: Value = serde_json::from_str(&answer.body).context("not JSON")?;
    let first = value.pointer("/data/result/0/value/1").cloned();
    first.with_context(|| format!("no result of {query}: {value}"))
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_real_prometheus_scrapes_it() -> Result<()> {
    let watched = Watched::start()?;
    let scratch = Scratch::new()?;
    let configuration = scratch.write(
        "prometheus.yml",
        &format!(
            "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: memtrace\n    \
             static_configs:\n      - targets: ['{}']\n",
            watched.daemon.address()
        ),
    )?;
    let address = free_address()?;
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", configuration.display()));
    command.arg(format!("--storage.tsdb.path={}", scratch.join("data").display()));
    command.arg(format!("--web.listen-address={address}"));
    let _prometheus = Running::start(&mut command)?;
    let truly = watched.truth.domain("cuda").live.bytes.to_string();
    let pid = watched.client.pid();
    memtrace_tests::until("a scrape", LATE, || {
        ensure!(ask(&address, "up%7Bjob%3D%22memtrace%22%7D")? == "1", "the target is down");
        let live = format!(
            "sum(memtrace_process_live_bytes%7Bdomain%3D%22cuda%22%2Cpid%3D%22{pid}%22%7D)"
        );
        let scraped = ask(&address, &live)?;
        ensure!(scraped == truly.as_str(), "scraped {scraped}, truly {truly}");
        ask(&address, "memtrace_build_info").map(|_| ())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn tcp_serves_three_routes_and_the_socket_everything() -> Result<()> {
    let daemon = Daemon::start()?;
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(get_tcp(daemon.address(), path, &[])?.status, 200, "{path}");
        assert_eq!(daemon.get(path)?.status, 200, "{path}");
    }
    for name in ["status", "processes", "sites", "findings", "dump"] {
        let path = format!("/api/v1/{name}");
        assert_eq!(get_tcp(daemon.address(), &path, &[])?.status, 404, "{path} on TCP");
        let answer = daemon.get(&path)?;
        assert_eq!(answer.status, 200, "{path}");
        serde_json::from_str::<Value>(&answer.body)
            .with_context(|| format!("{path} is no JSON"))?;
    }
    assert_eq!(daemon.get("/api/v1/nonsense")?.status, 404);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_page_that_rebinds_its_name_cannot_read_the_metrics() -> Result<()> {
    let daemon = Daemon::start()?;
    let answer = get_tcp(daemon.address(), "/metrics", &[("Host", "evil.example")])?;
    assert!((400..500).contains(&answer.status), "{answer:?}");
    assert!(!answer.body.contains("memtrace_"), "{answer:?}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn command_lines_are_on_the_socket_only() -> Result<()> {
    let watched = Watched::start()?;
    let secret = "kinds --hold";
    assert!(!watched.metrics(&[])?.contains(secret));
    let dump = http::get_unix(&watched.daemon.socket(), "/api/v1/dump", &[])?.body;
    assert!(dump.contains(secret), "the dump has no command line of the client");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_socket_is_open_to_owner_and_group_only() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let daemon = Daemon::start()?;
    let mode = std::fs::metadata(daemon.socket())?.permissions().mode() & 0o777;
    assert_eq!(mode, 0o660, "{mode:o}");
    Ok(())
}

#[test]
fn the_older_format_names_counters_with_their_suffix() -> Result<()> {
    let new = "# HELP a Help.\n# TYPE a counter\n# UNIT a bytes\na_total{x=\"1\"} 1\n# EOF\n";
    assert_eq!(
        as_older_format(new),
        "# HELP a_total Help.\n# TYPE a_total counter\na_total{x=\"1\"} 1\n# EOF\n"
    );
    Ok(())
}
