//! What people and programs get to read, kept as it was approved.

use memtrace_common::Domain;

use super::escape::columns;
use super::*;
use crate::snapshot::{Taken, TakenBy};

fn shown(snapshot: &Snapshot, format: Format, filter: &Filter, width: Option<usize>) -> String {
    let mut out = vec![];
    render(snapshot, format, filter, width, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn text(snapshot: &Snapshot, width: Option<usize>) -> String {
    shown(snapshot, Format::Text, &Filter::default(), width)
}

#[test]
fn a_busy_host_on_a_terminal() {
    insta::assert_snapshot!(text(&fixture::busy(), Some(100)));
}

#[test]
fn a_busy_host_in_a_file() {
    insta::assert_snapshot!(text(&fixture::busy(), None));
}

#[test]
fn the_end_of_a_run() {
    insta::assert_snapshot!(text(&fixture::run(), Some(100)));
}

#[test]
fn nothing_at_all() {
    insta::assert_snapshot!(text(&fixture::empty(), Some(80)));
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for width in [60, 72, 80, 100, 240] {
        for snapshot in [fixture::busy(), fixture::run(), fixture::empty()] {
            for line in text(&snapshot, Some(width)).lines() {
                // Below about 90 columns the fixed columns of a table need what they need.
                let limit = width.clamp(90, 100);
                assert!(columns(line) <= limit, "{width}: {} columns: {line}", columns(line));
            }
        }
    }
}

#[test]
fn hostile_names_reach_no_terminal() {
    for format in [Format::Text, Format::Folded, Format::Json, Format::Svg] {
        let report = shown(&fixture::busy(), format, &Filter::default(), None);
        assert!(report.chars().all(|c| "\n\t".contains(c) || !c.is_control()), "{format}");
    }
    let report = text(&fixture::busy(), None);
    assert!(report.contains("sh -c \\x1b]0;pwned\\x07\\n\\u{202e}exe"), "{report}");
}

#[test]
fn json_reads_back_and_knows_its_nulls() {
    let report = shown(&fixture::busy(), Format::Json, &Filter::default(), None);
    let json: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["processes"][0]["sites"][1]["id"], "0000000000000abc");
    assert_eq!(json["processes"][0]["sites"][2]["id"], serde_json::Value::Null);
    assert_eq!(json["domains"]["kernel"]["live"]["count"], 19_458);
    assert_eq!(json["processes"][2]["comm"], "\x1b[2Jroot\nLEAK");
}

#[test]
fn folded_stacks_begin_with_their_domain() {
    insta::assert_snapshot!(shown(&fixture::busy(), Format::Folded, &Filter::default(), None));
}

#[test]
fn filters_show_a_part() {
    let busy = fixture::busy();
    let pids = |filter: Filter| {
        filter.apply(&busy).processes.iter().map(|process| process.pid).collect::<Vec<_>>()
    };
    assert_eq!(pids(Filter { pid: Some(977), ..Filter::default() }), [977]);
    assert_eq!(pids(Filter { comm: Some("python3".into()), ..Filter::default() }), [4121]);
    assert_eq!(pids(Filter { domain: Some(Domain::Kernel), ..Filter::default() }), [977, 31_337]);
    let site = Filter { site: Some(0xabc), ..Filter::default() }.apply(&busy).into_owned();
    assert_eq!(site.processes.len(), 1);
    assert_eq!(site.processes[0].sites.len(), 1);
    assert_eq!(site.findings.len(), 1);
    let cuda = Filter { domain: Some(Domain::Cuda), ..Filter::default() }.apply(&busy).into_owned();
    assert_eq!(cuda.domains.keys().collect::<Vec<_>>(), [&"cuda"]);
    assert_eq!(cuda.findings.len(), 1);
    assert_eq!(cuda.coverage.len(), 3);
}

#[test]
fn a_name_longer_than_the_kernel_keeps_still_finds_its_process() {
    let mut snapshot = fixture::empty();
    snapshot.processes = vec![fixture::process(1, "a-rather-long-n", vec![])];
    let filter = Filter { comm: Some("a-rather-long-name".into()), ..Filter::default() };
    assert_eq!(filter.apply(&snapshot).processes.len(), 1);
}

#[test]
fn formats_have_the_names_that_the_command_line_takes() {
    assert!("xml".parse::<Format>().is_err());
    for format in Format::ALL {
        assert_eq!(format.name().parse(), Ok(format));
    }
}

#[test]
fn folded_weights_add_up_to_the_live_bytes() {
    for snapshot in [fixture::busy(), fixture::run(), fixture::empty()] {
        let folded = shown(&snapshot, Format::Folded, &Filter::default(), None);
        let weights = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1);
        let sum: u64 = weights.map(|weight| weight.parse::<u64>().unwrap()).sum();
        let sites = snapshot.processes.iter().flat_map(|process| &process.sites);
        assert_eq!(sum, sites.map(|site| site.live_bytes).sum::<u64>());
    }
}

#[test]
fn a_stack_that_is_not_whole_says_why() {
    let mut snapshot = fixture::busy();
    let short = Taken { by: TakenBy::Copy, incomplete: Some("truncated\x07 copy".into()) };
    snapshot.processes[0].sites[1].stack = Some(short);
    let report = text(&snapshot, Some(100));
    assert!(report.contains("    stack incomplete: truncated\\x07 copy\n"), "{report}");
    let report = shown(&snapshot, Format::Json, &Filter::default(), None);
    let json: serde_json::Value = serde_json::from_str(&report).unwrap();
    let stack = |site: usize| &json["processes"][0]["sites"][site]["stack"];
    let short = r#"{"taken": "copy", "complete": false, "reason": "truncated\u0007 copy"}"#;
    assert_eq!(*stack(1), serde_json::from_str::<serde_json::Value>(short).unwrap());
    let whole = r#"{"taken": "copy", "complete": true, "reason": null}"#;
    assert_eq!(*stack(0), serde_json::from_str::<serde_json::Value>(whole).unwrap());
}

#[test]
fn a_dump_of_one_site_shows_its_stack() {
    let site = Filter { site: Some(0xdef), ..Filter::default() };
    let report = shown(&fixture::busy(), Format::Text, &site, Some(100));
    assert!(report.contains("    encode_prompt"), "{report}");
    assert!(report.contains("/opt/llm/serve.py:41"), "{report}");
}

#[test]
fn a_file_has_more_of_a_stack_than_a_terminal() {
    let mut snapshot = fixture::run();
    let frames = (0..40).map(|depth| fixture::frame(&format!("f{depth}"), "/m", "f.c", depth));
    snapshot.processes[0].sites[1].frames = frames.collect();
    let terminal = text(&snapshot, Some(100));
    assert!(terminal.contains("… 32 outer frames") && !terminal.contains(" f8 "), "{terminal}");
    let file = text(&snapshot, None);
    assert!(file.contains("… 8 outer frames") && file.contains(" f31 "), "{file}");
}

#[test]
fn the_status_of_a_busy_host() {
    insta::assert_snapshot!(
        summary::Summary::of(&fixture::busy())
            .text(Some(100))
            .replace(env!("CARGO_PKG_VERSION"), "VERSION")
    );
}
