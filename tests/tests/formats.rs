//! Profiles and flame graphs, read by programs that have nothing to do with memtrace: google's
//! pprof, and Chromium.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::browser;
use memtrace_tests::daemon::Daemon;
use memtrace_tests::fixture::{self, Fixtures, Variant};
use memtrace_tests::memtrace::{self, LIMIT};
use memtrace_tests::pprof::{Profile, build_id, pprof};
use memtrace_tests::process::{self, Running};
use memtrace_tests::scratch::Scratch;
use memtrace_tests::truth::Truth;

/// Runs a program under `memtrace run --format F -o FILE` and gives what was true of it.
fn run(
    format: &str,
    domains: &str,
    to: &Path,
    program: &Path,
    arguments: &[&str],
) -> Result<Truth> {
    let mut command = memtrace::command(["run", "--domains", domains, "--format", format, "-o"])?;
    command.arg(to).arg("--").arg(program).args(arguments);
    Truth::parse(process::run(&mut command, LIMIT)?.expect_status(0)?.last_json()?)
}

/// The four values that a domain's samples must add up to.
fn values(truth: &Truth, domain: &str) -> [u64; 4] {
    let domain = truth.domain(domain);
    [domain.live.bytes, domain.live.count, domain.seen.bytes, domain.seen.count]
}

const TYPES: [&str; 4] =
    ["live_space/bytes[dflt]", "live_objects/count", "alloc_space/bytes", "alloc_objects/count"];

#[test]
#[ignore = "needs root: cargo xtask test"]
fn pprof_reads_the_profile_of_a_run_and_names_the_leaking_line() -> Result<()> {
    let client = fixture::build(Variant::Plain)?.client();
    let scratch = Scratch::new()?;
    let file = scratch.join("leak.pb.gz");
    let truth = run("pprof", "cuda,pinned", &file, &client, &["leak", "100", "1000"])?;
    let profile = Profile::read(&file)?;
    assert_eq!(profile.types, TYPES);
    assert_eq!(profile.sums(None), values(&truth, "cuda"));
    assert_eq!(profile.sums(None)[0], 100_000);

    let sample = profile.samples.first().context("no samples")?;
    assert_eq!(sample.labels["domain"], "cuda");
    assert_eq!(sample.labels["api"], "cudaMalloc");
    assert_eq!(sample.labels["comm"], "client");
    assert_eq!(sample.labels["pid"], truth.pid.to_string());
    let site = &sample.labels["site"];
    assert!(site.len() == 16 && site.chars().all(|c| c.is_ascii_hexdigit()), "{site}");
    let stack = profile.stack(sample);
    assert!(stack[0].starts_with("site_a ") && stack[0].contains("client_sites.c:7"), "{stack:?}");
    assert!(stack.iter().any(|line| line.starts_with("main ")), "{stack:?}");
    let mapping = profile.mapping(&client)?;
    assert_eq!(mapping.rest, format!("{} [FN][FL][LN]", build_id(&client)?));

    // What a person would type.
    let top = pprof(&file, &["-top", "-lines"], None)?;
    let first = top.lines().skip_while(|line| !line.contains("flat%")).nth(1);
    let first = first.with_context(|| format!("no rows in {top}"))?;
    ensure!(first.contains("site_a ") && first.contains("client_sites.c:7"), "{top}");
    ensure!(first.trim_start().starts_with("97.66kB"), "{top}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn pprof_reads_a_dump_of_every_domain_and_of_parts() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let daemon = Daemon::start_knowing(&fixtures)?;
    let client = fixtures.client();
    let mut client = Running::start_talking(Command::new(client).args(["kinds", "--hold"]))?;
    let truth = Truth::parse(client.read_json()?)?;
    let dump = daemon.dump_until("the client", Duration::from_secs(20), |dump| {
        truth.check_running(dump.process(client.pid())?)?;
        ensure!(dump.process(client.pid())?.at("cuda", "site_a").rows == 1, "no name yet");
        Ok(dump.process(client.pid())?.clone())
    })?;
    let scratch = Scratch::new()?;
    let pid = client.pid().to_string();
    let profile = |filter: &[&str]| -> Result<Profile> {
        let file = scratch.join("dump.pb.gz");
        let name = file.display().to_string();
        let arguments = [&["--format", "pprof", "-o", &name], filter].concat();
        daemon.call("dump", &arguments)?.expect_status(0)?;
        Profile::read(&file)
    };
    let one = profile(&["--pid", &pid])?;
    for domain in ["cuda", "managed", "pinned"] {
        assert_eq!(one.sums(Some(("domain", domain))), values(&truth, domain), "{domain}");
    }
    assert!(one.samples.iter().all(|sample| sample.labels["pid"] == pid));
    assert!(one.comments.contains(&format!("only pid {pid}")), "{:?}", one.comments);

    let pinned = profile(&["--comm", "client", "--domain", "pinned"])?;
    assert_eq!(pinned.sums(Some(("pid", &pid))), values(&truth, "pinned"));
    assert!(pinned.samples.iter().all(|sample| sample.labels["domain"] == "pinned"));

    let site = dump.sites("cuda").find(|site| site.is_in("site_a")).context("no site_a")?;
    let id = site.id.clone().context("a site without id")?;
    let of_site = profile(&["--site", &id])?;
    assert_eq!(of_site.sums(Some(("pid", &pid)))[0], 1001);
    assert!(of_site.samples.iter().all(|sample| sample.labels["site"] == id));
    let stack = of_site.stack(&of_site.samples[0]);
    assert!(stack[0].contains("client_sites.c:7"), "{stack:?}");
    Ok(())
}

/// Copies of the client and its libraries, the client stripped of its names.
fn stripped(fixtures: &Fixtures, scratch: &Scratch) -> Result<PathBuf> {
    for library in [fixtures.cudart(), fixtures.cuda()] {
        scratch.copy(&library)?;
    }
    let client = scratch.copy(&fixtures.client())?;
    process::run(Command::new("strip").arg(&client), LIMIT)?.expect_status(0)?;
    Ok(client)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn pprof_names_by_build_id_what_memtrace_could_not() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let scratch = Scratch::new()?;
    let client = stripped(&fixtures, &scratch)?;
    let file = scratch.join("leak.pb.gz");
    let truth = run("pprof", "cuda", &file, &client, &["leak", "10", "1000"])?;
    let profile = Profile::read(&file)?;
    assert_eq!(profile.sums(None), values(&truth, "cuda"));
    let id = build_id(&client)?;
    assert_eq!(profile.mapping(&client)?.rest.trim(), id, "no names, and it does not say so");

    let symbols = scratch.join("symbols");
    std::fs::create_dir_all(symbols.join(&id))?;
    std::fs::copy(fixtures.client(), symbols.join(&id).join("client"))?;
    let top = pprof(&file, &["-symbolize=local", "-top", "-lines"], Some(&symbols))?;
    let first = top.lines().skip_while(|line| !line.contains("flat%")).nth(1);
    let first = first.with_context(|| format!("no rows in {top}"))?;
    ensure!(first.contains("site_a ") && first.contains("client_sites.c:7"), "{top}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn chromium_shows_the_leaking_function_and_finds_it() -> Result<()> {
    let client = fixture::build(Variant::Plain)?.client();
    let scratch = Scratch::new()?;
    let file = scratch.join("leak.svg");
    run("svg", "cuda", &file, &client, &["leak", "100", "1000"])?;
    let plain = browser::document(&file, "")?;
    // The script has run: it writes the names that fit, from the titles.
    ensure!(plain.contains(">site_a </text>"), "{plain}");
    ensure!(plain.contains("<title>site_a (100,000 bytes, 100.00%)</title>"), "{plain}");
    ensure!(!plain.contains("Matched: 1"), "nothing was searched");

    let found = browser::document(&file, "s=%5Esite_a%20")?;
    ensure!(found.contains(">Matched: 100%</text>"), "{found}");
    ensure!(found.contains(">Reset Search</text>"), "{found}");
    let frames = found.split("<g").filter(|frame| frame.contains("fill=\"rgb(230,0,230)\""));
    let marked: Vec<&str> = frames.collect();
    ensure!(marked.len() == 1 && marked[0].contains("site_a"), "{marked:?}");
    let missing = browser::document(&file, "s=%5Enobody%20")?;
    ensure!(!missing.contains("fill=\"rgb(230,0,230)\""), "{missing}");

    let picture = browser::picture(&file, "")?;
    ensure!(picture.starts_with(b"\x89PNG"), "no picture");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn chromium_takes_a_hostile_name_for_a_name() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let scratch = Scratch::new()?;
    for library in [fixtures.cudart(), fixtures.cuda()] {
        scratch.copy(&library)?;
    }
    let program = scratch.join("]]><i>&\"';\u{7}");
    std::fs::copy(fixtures.client(), &program)?;
    let file = scratch.join("hostile.svg");
    let truth = run("svg", "cuda", &file, &program, &["leak", "3", "1000"])?;
    let document = browser::document(&file, "")?;
    ensure!(!document.contains("parsererror") && !document.contains("<i>"), "{document}");
    let title = format!("<title>]]&gt;&lt;i&gt;&amp;\"':\\x07-{} (3,000 bytes, ", truth.pid);
    ensure!(document.contains(&title), "{title} is not in {document}");
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn nothing_live_is_a_picture_and_a_profile_all_the_same() -> Result<()> {
    let scratch = Scratch::new()?;
    let report = |format: &str| -> Result<PathBuf> {
        let file = scratch.join(&format!("report.{format}"));
        let mut command = memtrace::command(["run", "--domains", "cuda", "--format", format])?;
        command.arg("-o").arg(&file).args(["--", "true"]);
        process::run(&mut command, LIMIT)?.expect_status(0)?;
        Ok(file)
    };
    let document = browser::document(&report("svg")?, "")?;
    ensure!(document.contains(">nothing is live</text>"), "{document}");
    let profile = Profile::read(&report("pprof")?)?;
    assert_eq!(profile.types, TYPES);
    assert_eq!(profile.samples.len(), 0);
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_terminal_gets_a_sentence_before_anything_runs() -> Result<()> {
    let memtrace = memtrace_tests::paths::memtrace()?;
    for (format, arguments, status) in [
        ("pprof", "run --format pprof -- echo ran", 125),
        ("svg", "run --format svg -- echo ran", 125),
        ("pprof", "dump --format pprof --socket /nonexistent", 1),
        ("svg", "dump --format svg --socket /nonexistent", 1),
    ] {
        // script(1) gives it a terminal.
        let line = format!("{} {arguments}", memtrace.display());
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        let said = process::run(&mut command, LIMIT)?.expect_status(status)?;
        let expected =
            format!("memtrace: a terminal cannot show {format}; name a file with -o FILE");
        ensure!(said.stdout.starts_with(&expected), "{said:?}");
        ensure!(said.stdout.lines().count() == 1, "{said:?}");
    }
    Ok(())
}
