//! What the configuration calls known, or not sure enough, is no finding, and stays in the books
//! with its verdict. An id from one daemon's dump is right for the next daemon.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::{Dump, Site};
use memtrace_tests::fixture::{self, Fixtures, Variant};
use memtrace_tests::memtrace::LIMIT;
use memtrace_tests::process::Running;

/// A daemon that has only the client on its books, and judges within seconds.
fn daemon(fixtures: &Fixtures, verdict: &str) -> Result<Daemon> {
    let configuration = Some(format!(
        "[include]\ncomm = [\"client\"]\n\
         [verdict]\nwindow_seconds = 1.0\nminimum_age_seconds = 1.0\n{verdict}"
    ));
    Daemon::start_with(&Options { configuration, ..Options::default() }.knowing(fixtures))
}

/// The site of the client's leak, once its verdict is that it grows.
fn growing(dump: &Dump, pid: u32) -> Result<&Site> {
    let site = dump.process(pid)?.sites.iter().find(|site| site.domain == "cuda");
    let site = site.context("no site in cuda")?;
    ensure!(["growing", "leak"].contains(&site.verdict.as_str()), "it is {}", site.verdict);
    Ok(site)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_known_or_unsure_site_has_a_verdict_and_no_finding() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let mut command = Command::new(fixtures.client());
    let client = Running::start(command.args(["slow-leak", "100000", "200000", "50"]))?;
    let pid = client.pid();
    let id = daemon(&fixtures, "")?.dump_until("a finding", LIMIT, |dump| {
        let id = growing(dump, pid)?.id.clone();
        ensure!(dump.findings.iter().any(|one| one.domain == "cuda" && one.site == id), "none");
        id.context("the site has no id")
    })?;
    for (verdict, said) in [
        (format!("known_sites = [\"{id}\"]\n"), true),
        ("[verdict.domain.cuda]\nconfidence_to_report = 1.0\n".to_owned(), false),
    ] {
        daemon(&fixtures, &verdict)?.dump_until("the row's verdict", LIMIT, |dump| {
            ensure!(growing(dump, pid)?.id.as_ref() == Some(&id), "another id");
            let found: Vec<_> = dump.findings.iter().filter(|one| one.domain == "cuda").collect();
            ensure!(found.is_empty(), "with {verdict:?} there is {found:?}");
            let named = dump.not_seen.iter().any(|row| row.contains("known_sites"));
            ensure!(named == said, "{:?}", dump.not_seen);
            Ok(())
        })?;
    }
    Ok(())
}
