//! The formats, as promtool and Prometheus read them.

use std::io::Write;
use std::process::{Command, Stdio};

use super::*;
use crate::report::fixture;
use crate::snapshot::{Loss, Process, Verdict};

fn scrape(format: Exposition) -> String {
    Metrics::default().scrape(Arc::new(fixture::busy()), format).unwrap()
}

#[test]
fn both_formats_as_they_were_approved() {
    let version = env!("CARGO_PKG_VERSION");
    for (name, format) in
        [("openmetrics", Exposition::OpenMetrics), ("prometheus", Exposition::Prometheus)]
    {
        insta::assert_snapshot!(name, scrape(format).replace(version, "VERSION"));
    }
}

#[test]
fn the_scraper_chooses() {
    let prometheus_242 = "application/openmetrics-text;version=1.0.0,\
        application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
    for (accept, format) in [
        (None, Exposition::Prometheus),
        (Some("*/*"), Exposition::Prometheus),
        (Some("text/plain"), Exposition::Prometheus),
        (Some(prometheus_242), Exposition::OpenMetrics),
        (Some("application/openmetrics-text"), Exposition::OpenMetrics),
        (Some("application/openmetrics-text;q=0"), Exposition::Prometheus),
        (Some("application/openmetrics-text;q=0.1, text/plain;q=0.9"), Exposition::Prometheus),
    ] {
        assert_eq!(Exposition::accepted(accept), format, "{accept:?}");
    }
}

#[test]
fn an_unnamed_site_is_in_other_and_no_label() {
    let body = scrape(Exposition::Prometheus);
    let other = r#"memtrace_site_live_bytes{domain="pinned",comm="other",pid="other",site="other",function="other"} 67108864"#;
    assert!(body.contains(other), "{body}");
    assert!(!body.contains(r#"site="""#) && !body.contains("unattributed"));
}

#[test]
fn user_books_of_an_ended_process_are_history() {
    let snapshot = fixture::run();
    let body = Metrics::default().scrape(Arc::new(snapshot), Exposition::Prometheus).unwrap();
    assert!(!body.contains(r#"memtrace_process_live_bytes{domain="cuda",pid="4242""#), "{body}");
    assert!(body.contains(r#"memtrace_process_live_bytes{domain="kernel",pid="4242""#), "{body}");
}

#[test]
fn a_thousand_processes_of_ten_sites_stay_bounded() {
    let mut snapshot = fixture::empty();
    snapshot.processes = (1..=1_000u32)
        .map(|pid| -> Process {
            let sites = (0..10)
                .map(|site| {
                    let live = fixture::amount(u64::from(pid) * 4096 + site, 1);
                    fixture::site(u64::from(pid) << 8 | site, "cuda", "cudaMalloc", live)
                })
                .collect();
            fixture::process(pid, &format!("worker-{pid}"), sites)
        })
        .collect();
    let template = fixture::busy().findings[0].clone();
    snapshot.findings = (0..5_000)
        .map(|site| crate::snapshot::Finding {
            site: Some(site),
            verdict: Verdict::Growing,
            ..template.clone()
        })
        .collect();
    let body = Metrics::default().scrape(Arc::new(snapshot), Exposition::Prometheus).unwrap();
    let series = |name: &str| body.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(series("memtrace_site_live_bytes{"), 50 + 4);
    assert_eq!(series("memtrace_process_live_bytes{"), 100 + 4);
    assert_eq!(series("memtrace_finding{"), 100 + 1);
    assert_eq!(series("memtrace_exhaustion_seconds{"), 100 + 1);
    assert!(body.contains(r#"site="000000000003e809""#), "the largest is not among them");
}

#[test]
fn every_cause_of_loss_is_there_from_the_start() {
    let mut snapshot = fixture::empty();
    snapshot.loss.insert("ring_full", Loss { count: 7, bytes: None });
    let body = Metrics::default().scrape(Arc::new(snapshot), Exposition::Prometheus).unwrap();
    for cause in memtrace_common::LossCause::ALL {
        assert!(body.contains(&format!("memtrace_lost_total{{cause=\"{}\"}}", cause.name())));
    }
    assert!(body.contains("memtrace_lost_total{cause=\"ring_full\"} 7\n"));
}

fn promtool(arguments: &[&str], input: &str) -> (bool, String) {
    let mut child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is in Debian's package prometheus");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
#[ignore = "needs promtool: cargo xtask test"]
fn promtool_finds_nothing_in_the_text_format() {
    let (clean, said) = promtool(&["check", "metrics"], &scrape(Exposition::Prometheus));
    assert!(clean && said.is_empty(), "{said}");
}

/// `promtool check metrics` reads the text format only. OpenMetrics has the same families with
/// their suffixes in other places, so the lint gets it with these moved; nothing else differs.
#[test]
#[ignore = "needs promtool: cargo xtask test"]
fn promtool_finds_nothing_in_openmetrics() {
    let body = scrape(Exposition::OpenMetrics);
    assert!(body.ends_with("# EOF\n"));
    let counters: Vec<&str> = body
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut moved = String::new();
    for line in body.lines().filter(|line| !line.starts_with("# UNIT")) {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words.as_slice() {
            ["#", keyword, name, rest] if counters.contains(name) => {
                moved.push_str(&format!("# {keyword} {name}_total {rest}\n"));
            }
            ["#", "TYPE", name, "unknown"] => moved.push_str(&format!("# TYPE {name} untyped\n")),
            _ => moved.push_str(&format!("{line}\n")),
        }
    }
    let (clean, said) = promtool(&["check", "metrics"], &moved);
    assert!(clean && said.is_empty(), "{said}");
}

/// Prometheus' own OpenMetrics parser, by way of a command that reads such files.
#[test]
#[ignore = "needs promtool: cargo xtask test"]
fn prometheus_reads_openmetrics() {
    let directory = std::env::temp_dir().join(format!("memtrace-om-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("metrics");
    let body: String = scrape(Exposition::OpenMetrics)
        .lines()
        .map(|line| {
            // The command wants a time on each sample.
            if line.starts_with('#') { format!("{line}\n") } else { format!("{line} 1700000000\n") }
        })
        .collect();
    std::fs::write(&file, body).unwrap();
    let blocks = directory.join("blocks");
    let (file, blocks) = (file.to_str().unwrap(), blocks.to_str().unwrap());
    let (read, said) = promtool(&["tsdb", "create-blocks-from", "openmetrics", file, blocks], "");
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(read, "{said}");
}
