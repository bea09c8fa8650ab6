//! Which rows are news, and that those which are not stay rows.

use memtrace_common::{Amount, Domain};

use super::{Part, Place, RowId, Rows};
use crate::snapshot::{Baseline, Measured, OWN_PROBES, Process, Verdict};
use crate::verdict::{Judgement, VerdictConfig};

fn part(site: u64, verdict: Verdict, confidence: Option<f64>) -> Part {
    let bytes = Amount { bytes: site, count: 1 };
    Part {
        id: RowId { function: 7, context: "process", place: Place::Site(site) },
        domain: Domain::Cuda,
        api: "cudaMalloc",
        device: None,
        live: bytes,
        allocated: bytes,
        freed: Amount::default(),
        failures: 0,
        oldest_age_seconds: None,
        judgement: Judgement { verdict, confidence, ..Judgement::default() },
        current: true,
        frames_sampled: false,
        stack: None,
        frames: vec![].into(),
        samples: vec![],
        note: None,
    }
}

fn process() -> Process {
    Process {
        pid: 7,
        start_ns: 1,
        ppid: None,
        comm: "app".into(),
        cmdline: None,
        cgroup: None,
        ended: false,
        ended_at: None,
        baseline: Baseline::default(),
        measured: Measured::default(),
        device: None,
        pool: None,
        domains: [].into(),
        devices: vec![],
        sites: vec![],
    }
}

/// Sites that are news, and all rows with their verdicts, largest first.
fn given(config: &str, parts: Vec<Part>) -> (Vec<u64>, Vec<(u64, &'static str)>) {
    let config: VerdictConfig = toml::from_str(config).unwrap();
    let mut rows = Rows::default();
    for part in parts {
        rows.add(part);
    }
    let mut process = process();
    let news = rows.give_to(&mut process, &config);
    let rows = process.sites.iter().map(|site| (site.id.unwrap(), site.verdict.name()));
    (news.iter().map(|(site, _)| site.id.unwrap()).collect(), rows.collect())
}

fn three() -> Vec<Part> {
    vec![
        part(0x30, Verdict::Leak, Some(0.8)),
        part(0x20, Verdict::Growing, Some(0.4)),
        part(0x10, Verdict::Unreliable, None),
        part(0x08, Verdict::Plateau, Some(0.9)),
    ]
}

#[test]
fn a_known_or_unsure_site_is_a_row_and_no_news() {
    let rows = vec![(0x30, "leak"), (0x20, "growing"), (0x10, "unreliable"), (0x08, "plateau")];
    for (config, news) in [
        ("", vec![0x30, 0x20, 0x10]),
        ("known_sites = ['0000000000000030', '0000000000000099']", vec![0x20, 0x10]),
        ("known_sites = ['0000000000000010']", vec![0x30, 0x20]),
        ("confidence_to_report = 0.5", vec![0x30, 0x10]),
        ("confidence_to_report = 0.5\ndomain.kernel.confidence_to_report = 1.0", vec![0x30, 0x10]),
        ("confidence_to_report = 0.5\ndomain.cuda.confidence_to_report = 0.9", vec![0x10]),
        (
            "confidence_to_report = 1.0\ndomain.cuda.confidence_to_report = 0",
            vec![0x30, 0x20, 0x10],
        ),
    ] {
        assert_eq!(given(config, three()), (news, rows.clone()), "{config}");
    }
}

#[test]
fn what_is_past_or_our_own_is_no_news() {
    let past = Part { current: false, ..part(1, Verdict::Leak, Some(0.9)) };
    let own = Part { note: Some(OWN_PROBES), ..part(2, Verdict::Leak, Some(0.9)) };
    assert_eq!(given("", vec![past, own]), (vec![], vec![(2, "leak"), (1, "leak")]));
}
