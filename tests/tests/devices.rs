//! GPUs as NVML has them, through the real nvml-wrapper over a stub of NVML: held against the
//! books of the stub of CUDA, byte for byte, and what is left of processes that have ended.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::{Daemon, Options};
use memtrace_tests::dump::{DeviceProcess, Dump, Finding, ProcessDevice};
use memtrace_tests::fixture::{self, Fixtures, Variant};
use memtrace_tests::http::get_tcp;
use memtrace_tests::memtrace::LIMIT;
use memtrace_tests::nvml::Nvml;
use memtrace_tests::process::Running;
use memtrace_tests::truth::Truth;
use rustix::process::{Pid, Signal};

/// Devices are looked at every 5 s.
const LATE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A daemon that sees the stub driver, with hasty verdicts.
fn daemon(fixtures: &Fixtures, nvml: &Nvml) -> Result<Daemon> {
    let sections = "[verdict]\nwindow_seconds = 1\nminimum_age_seconds = 6\n";
    let options = Options { configuration: Some(sections.to_owned()), ..Options::default() };
    Daemon::start_with(&nvml.seen_by(options.knowing(fixtures))?)
}

/// A client that holds a block of each kind, and what it truly holds on the device.
fn client(fixtures: &Fixtures) -> Result<(Running, u64, u64)> {
    let mut command = Command::new(fixtures.client());
    let mut client = Running::start_talking(command.args(["kinds", "--hold"]))?;
    let truth = Truth::parse(client.read_json()?)?;
    let live = |domain| truth.domain(domain).live.bytes;
    let (cuda, managed) = (live("cuda"), live("managed"));
    ensure!(cuda > 0 && managed > 0, "the client holds nothing: {truth:?}");
    Ok((client, cuda, managed))
}

fn signed(bytes: u64) -> Result<i64> {
    Ok(i64::try_from(bytes)?)
}

/// A process of which NVML counts so many bytes, and the books have so many.
fn told(nvml: u64, traced: u64) -> Result<ProcessDevice> {
    let untraced_bytes = Some(signed(nvml)? - signed(traced)?);
    Ok(ProcessDevice { nvml_bytes: Some(nvml), traced_bytes: Some(traced), untraced_bytes })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_nvml_counts_is_held_against_the_books_to_the_byte() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let device = format!("device {} {} {}", 80 * GIB, GIB, 9 * GIB);
    // Two of them: what others on this host have on the books is on neither.
    let nvml = Nvml::new(&fixtures, &[device.clone(), device.clone()])?;
    let daemon = daemon(&fixtures, &nvml)?;
    let (client, cuda, managed) = client(&fixtures)?;
    let pid = client.pid();
    let traced = cuda + managed;
    let used = 500 * MIB;
    nvml.say(&[
        device.clone(),
        device.clone(),
        format!("process 1 {pid} {used}"),
        // It draws as well: the same memory, not more.
        format!("drawing 1 {pid} {used}"),
    ])?;
    daemon.dump_until("NVML beside the books", LATE, |dump| {
        let own = dump.process(pid)?.device.context("nothing of NVML")?;
        let truly = told(used, traced)?;
        ensure!(own == truly, "{own:?}, truly {truly:?}");
        let [first, second] = &dump.devices[..] else { anyhow::bail!("{:?}", dump.devices) };
        let figures = (second.total_bytes, second.used_bytes, second.free_bytes);
        ensure!(figures == (80 * GIB, 9 * GIB, 70 * GIB), "{second:?}");
        let sums = (first.traced_bytes, first.untraced_bytes);
        ensure!(sums == (Some(0), Some(signed(9 * GIB)?)), "{first:?}");
        ensure!(second.traced_bytes == Some(traced), "{second:?}, truly {traced}");
        ensure!(second.untraced_bytes == Some(signed(9 * GIB - traced)?), "{second:?}");
        ensure!(second.processes == [DeviceProcess { pid, used_bytes: Some(used), gone: false }]);
        ensure!(first.all_listed && second.all_listed, "{first:?} {second:?}");
        Ok(())
    })?;
    memtrace_tests::until("metrics of devices", LATE, || {
        let body = get_tcp(daemon.address(), "/metrics", &[])?.body;
        let value = |start: &str, label: &str| -> Result<i64> {
            let mut lines = body.lines();
            let line = lines.find(|line| line.starts_with(start) && line.contains(label));
            let line = line.with_context(|| format!("no {start} … {label} in\n{body}"))?;
            Ok(line.rsplit(' ').next().unwrap_or_default().parse()?)
        };
        for (kind, truly) in [
            ("total", 80 * GIB),
            ("used", 9 * GIB),
            ("traced", traced),
            ("untraced", 9 * GIB - traced),
        ] {
            let start = format!("memtrace_device_memory_bytes{{device=\"1\",kind=\"{kind}\"");
            ensure!(value(&start, "")? == signed(truly)?, "{kind}, truly {truly}\n{body}");
        }
        let start = format!("memtrace_process_device_memory_bytes{{pid=\"{pid}\"");
        for (kind, truly) in [("used", used), ("traced", traced), ("untraced", used - traced)] {
            let kind = format!("kind=\"{kind}\"");
            ensure!(value(&start, &kind)? == signed(truly)?, "{kind}, truly {truly}\n{body}");
        }
        Ok(())
    })?;
    let status = daemon.call("status", &[])?.expect_status(0)?.stdout;
    assert!(status.contains("1: 9.0 GiB of 80.0 GiB in use by NVML"), "{status}");
    // The driver has not counted all of it yet, and then loses the device.
    nvml.say(&[device.clone(), device.clone(), format!("process 1 {pid} 10")])?;
    daemon.dump_until("less than the books have", LATE, |dump| {
        let own = dump.process(pid)?.device.context("nothing of NVML")?;
        let truly = told(10, cuda)?;
        ensure!(own == truly, "{own:?}, truly {truly:?}");
        Ok(())
    })?;
    nvml.say(&[device.clone(), device, "lost 1".to_owned()])?;
    daemon.dump_until("the loss of a device", LATE, |dump| {
        let indexes: Vec<u32> = dump.devices.iter().map(|device| device.index).collect();
        ensure!(indexes == [0], "{indexes:?}");
        Ok(())
    })?;
    Ok(())
}

/// Neither 0 nor the whole of what the books have is true of what nobody has counted.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_nvml_does_not_tell_is_null() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let device = format!("device {} {} {}", 80 * GIB, GIB, 9 * GIB);
    let nvml = Nvml::new(&fixtures, std::slice::from_ref(&device))?;
    let daemon = daemon(&fixtures, &nvml)?;
    let (client, cuda, managed) = client(&fixtures)?;
    let pid = client.pid();
    // Some of its managed memory may be on the device: how much is not known either.
    let unknown = ProcessDevice { nvml_bytes: None, traced_bytes: None, untraced_bytes: None };
    let is_unknown = |dump: &Dump, on: &[DeviceProcess], all_listed: bool| -> Result<()> {
        let process = dump.process(pid)?;
        ensure!(process.device == Some(unknown), "{:?}", process.device);
        ensure!(process.measured.device_bytes.is_none(), "{:?}", process.measured);
        let [gpu] = &dump.devices[..] else { anyhow::bail!("{:?}", dump.devices) };
        ensure!(gpu.used_bytes == 9 * GIB && gpu.free_bytes == 70 * GIB, "{gpu:?}");
        ensure!((gpu.traced_bytes, gpu.untraced_bytes) == (None, None), "{gpu:?}");
        ensure!(gpu.processes == on && gpu.all_listed == all_listed, "{gpu:?}");
        Ok(())
    };
    nvml.say(&[device.clone(), format!("process 0 {pid} {}", u64::MAX)])?;
    let on = [DeviceProcess { pid, used_bytes: None, gone: false }];
    daemon.dump_until("a figure that is not told", LATE, |dump| is_unknown(dump, &on, true))?;
    memtrace_tests::until("metrics of what is known", LATE, || {
        let body = get_tcp(daemon.address(), "/metrics", &[])?.body;
        let has = |kind: &str| {
            body.contains(&format!("memtrace_device_memory_bytes{{device=\"0\",kind=\"{kind}\""))
        };
        ensure!(has("total") && has("used") && !has("traced") && !has("untraced"), "{body}");
        let start = format!("memtrace_process_device_memory_bytes{{pid=\"{pid}\"");
        ensure!(!body.contains(&start), "{body}");
        Ok(())
    })?;
    let status = daemon.call("status", &[])?.expect_status(0)?.stdout;
    assert!(status.contains("how much of it is traced is not known"), "{status}");
    nvml.say(&[device.clone(), "unlisted 0".to_owned()])?;
    daemon.dump_until("no list of processes", LATE, |dump| is_unknown(dump, &[], false))?;
    let used = 500 * MIB;
    nvml.say(&[device, format!("process 0 {pid} {used}")])?;
    daemon.dump_until("a figure that is told after all", LATE, |dump| {
        let own = dump.process(pid)?.device.context("nothing of NVML")?;
        ensure!(own == told(used, cuda + managed)?, "{own:?}");
        Ok(())
    })?;
    Ok(())
}

/// What was given in stream order has come back; the pool below keeps what it has of the device, as
/// one with a release threshold does.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn a41_a_pool_that_keeps_the_device_is_no_leak_and_both_figures_are_shown() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let device = format!("device {} 0 {}", 80 * GIB, 9 * GIB);
    // Two of them: what others on this host have on the books is on neither.
    let nvml = Nvml::new(&fixtures, &[device.clone(), device.clone()])?;
    let daemon = daemon(&fixtures, &nvml)?;
    // 20 seconds, four times a second 100 blocks of 1 to 4 MiB.
    let mut command = Command::new(fixtures.cases());
    let mut pool = Running::start_talking(command.args(["a41", "500", "40"]))?;
    let (pid, kept) = (pool.pid(), 400 * MIB);
    pool.read_json()?;
    nvml.say(&[device.clone(), device, format!("process 1 {pid} {kept}")])?;
    let truth = Truth::parse(pool.read_json()?)?;
    ensure!(truth.domain("cuda").live.bytes == 0, "not all has come back: {truth:?}");
    daemon.dump_until("a pool beside its books", LATE, |dump| {
        dump.check_conservation()?;
        let process = dump.process(pid)?;
        truth.check_running(process)?;
        let own = process.device.context("nothing of NVML")?;
        ensure!(own == told(kept, 0)?, "{own:?}");
        let [_, second] = &dump.devices[..] else { anyhow::bail!("{:?}", dump.devices) };
        let sums = (second.traced_bytes, second.untraced_bytes);
        ensure!(sums == (Some(0), Some(signed(9 * GIB)?)), "{second:?}");
        for site in process.sites("cuda") {
            let rests = ["warming", "steady"].contains(&site.verdict.as_str());
            ensure!(site.passes("allocate_in_order") && rests, "{site:#?}");
        }
        let leak = dump.findings.iter().find(|one| {
            one.verdict == "leak" && one.domain == "cuda" && one.processes.contains(&pid)
        });
        ensure!(leak.is_none(), "{leak:#?}");
        Ok(())
    })?;
    let status = daemon.call("status", &[])?.expect_status(0)?.stdout;
    assert!(status.contains("1: 9.0 GiB of 80.0 GiB in use by NVML; 0 B traced"), "{status}");
    Ok(())
}

fn orphan(dump: &Dump, pid: u32) -> Result<&Finding> {
    let mut found = dump.findings.iter().filter(|finding| finding.processes == [pid]);
    let orphan = found.find(|finding| finding.verdict == "orphaned");
    orphan.with_context(|| format!("no orphan {pid}: {:?} {:?}", dump.findings, dump.devices))
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn memory_that_nvml_counts_for_a_process_that_is_gone_is_orphaned() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let device = format!("device {} 0 {}", 80 * GIB, 9 * GIB);
    let nvml = Nvml::new(&fixtures, std::slice::from_ref(&device))?;
    let daemon = daemon(&fixtures, &nvml)?;
    let (mut client, ..) = client(&fixtures)?;
    let pid = client.pid();
    let lines = [device, format!("process 0 {pid} {}", 2 * GIB)];
    nvml.say(&lines)?;
    daemon.dump_until("the process on its device", LATE, |dump| {
        let on = &dump.devices.first().context("no device")?.processes;
        ensure!(on.iter().any(|one| one.pid == pid && !one.gone), "{on:?}");
        ensure!(orphan(dump, pid).is_err(), "{:?}", dump.findings);
        Ok(())
    })?;
    client.go_on()?;
    client.finish(LIMIT)?.expect_status(0)?;
    daemon.dump_until("the finding", LATE, |dump| {
        let finding = orphan(dump, pid)?;
        ensure!((finding.level.as_str(), finding.domain.as_str()) == ("process", "cuda"));
        ensure!(finding.comm == "client", "{finding:?}");
        let words = finding.decided_by.join("; ");
        ensure!(words.contains("2.0 GiB on device 0"), "{words}");
        Ok(())
    })?;
    let text = daemon.call("dump", &[])?.expect_status(0)?.stdout;
    assert!(text.contains(&format!("2.0 GiB of it for pid {pid}, which has ended")), "{text}");
    // The driver gives it back after all.
    nvml.say(&lines[..1])?;
    daemon.dump_until("the end of the finding", LATE, |dump| {
        ensure!(orphan(dump, pid).is_err(), "{:?}", dump.findings);
        Ok(())
    })?;
    Ok(())
}

/// A process that its parent leaves behind, killed on drop.
struct Left(Pid);

impl Drop for Left {
    fn drop(&mut self) {
        if let Err(error) = rustix::process::kill_process(self.0, Signal::KILL) {
            eprintln!("cannot kill {:?}: {error}", self.0);
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_worker_that_only_nvml_knows_of_is_orphaned_when_its_parent_is_killed() -> Result<()> {
    let fixtures = fixture::build(Variant::Plain)?;
    let device = format!("device {} 0 {}", 80 * GIB, 9 * GIB);
    let nvml = Nvml::new(&fixtures, std::slice::from_ref(&device))?;
    let daemon = daemon(&fixtures, &nvml)?;
    let script = "import subprocess, sys\n\
        print(subprocess.Popen(['sleep', '600']).pid, flush=True)\n\
        sys.stdin.read()";
    let mut parent = Running::start_talking(Command::new("python3").args(["-c", script]))?;
    let pid: u32 = parent.read_line()?.trim().parse()?;
    let worker = Left(Pid::from_raw(i32::try_from(pid)?).context("no process")?);
    nvml.say(&[device, format!("process 0 {pid} {}", 3 * GIB)])?;
    daemon.dump_until("what NVML counts", LATE, |dump| {
        let process = dump.process(pid)?;
        ensure!(process.measured.anonymous_bytes.is_some(), "not measured yet");
        let own = process.device.context("nothing of NVML")?;
        ensure!(own == told(3 * GIB, 0)?, "{own:?}");
        ensure!(orphan(dump, pid).is_err(), "{:?}", dump.findings);
        Ok(())
    })?;
    parent.signal(Signal::KILL)?;
    parent.finish(LIMIT)?;
    daemon.dump_until("the finding", LATE, |dump| {
        let finding = orphan(dump, pid)?;
        let words = finding.decided_by.join("; ");
        ensure!(words.contains(&format!("(pid {}) ended", parent.pid())), "{words}");
        ensure!(words.contains("NVML counts 3.0 GiB, the books have 0 B"), "{words}");
        Ok(())
    })?;
    drop(worker);
    Ok(())
}
