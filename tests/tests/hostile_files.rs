//! Files that are made to mislead or to delay whoever names stacks: code in no file with every
//! kind of perf map, libraries whose tables are absurd, a file behind another one's name. What
//! cannot be named says why, and the report comes.

#![expect(
    clippy::indexing_slicing,
    clippy::unit_arg,
    reason = "a file of our own that is not as we think fails the test, as it should"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memtrace_tests::daemon::Daemon;
use memtrace_tests::dump::{Process, Site, amount};
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::memtrace::{Run, Traced};
use memtrace_tests::process::Running;
use memtrace_tests::scratch::Scratch;
use memtrace_tests::stacks::build::{self, USUAL};
use memtrace_tests::stacks::programs::PerfMap;

const LATE: Duration = Duration::from_secs(20);

fn trace(program: &Path, arguments: &[&Path]) -> Result<Traced> {
    let cudart = fixture::build(Variant::Plain)?.cudart();
    let run = Run::new("cuda").option("--library").option(cudart);
    let traced = run.trace(program, arguments.iter().map(|one| one.as_os_str()))?;
    traced.dump.check_conservation()?;
    Ok(traced)
}

/// The one site of a process: three blocks of 1,000 bytes.
fn the_site(process: &Process) -> Result<&Site> {
    let sites: Vec<&Site> = process.sites("cuda").collect();
    let [site] = sites.as_slice() else { anyhow::bail!("{} sites: {sites:#?}", sites.len()) };
    ensure!(amount(site.allocations, site.allocated_bytes) == amount(3, 3_000), "{site:?}");
    Ok(site)
}

fn jit(kind: &str) -> Result<(Traced, PerfMap)> {
    let traced = trace(&build::build(USUAL)?.file("jit"), &[Path::new(kind)])?;
    let map = PerfMap::of(traced.process()?.pid);
    Ok((traced, map))
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn code_that_a_perf_map_names_is_named_and_its_callers_are_there() -> Result<()> {
    let daemon = Daemon::start_knowing(&fixture::build(Variant::Plain)?)?;
    let program = build::build(USUAL)?.file("jit");
    let mut running = Running::start_talking(Command::new(program).arg("file"))?;
    let _map = PerfMap::of(running.pid());
    running.read_json()?;
    daemon.dump_until("names of code made at run time", LATE, |dump| {
        let site = the_site(dump.process(running.pid())?)?;
        let names: Vec<_> = site.frames.iter().map(|one| one.symbol.as_deref()).collect();
        let truth = ["site_jitted", "jitted_function", "call_jitted", "main"].map(Some);
        ensure!(names.starts_with(&truth), "{names:?}\n{:?} {:#?}", site.stack, site.frames);
        Ok(())
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn perf_maps_that_are_no_good_name_nothing_and_delay_nothing() -> Result<()> {
    for kind in ["none", "fifo", "symlink", "foreign", "sparse", "garbage"] {
        let (traced, _map) = jit(kind)?;
        let site = the_site(traced.process()?).with_context(|| kind.to_owned())?;
        println!("{kind} | {:?} | {:#?}", site.stack, site.frames.get(1));
        ensure!(site.is_in("site_jitted"), "{kind}: {:#?}", site.frames);
        let named = site.passes("jitted_function") || site.passes("everything");
        ensure!(!named, "{kind} was believed: {:#?}", site.frames);
        // Whether or not the walk goes on behind it: the frame that has no name says why.
        let stack = site.stack.as_ref().context("not said how the stack was taken")?;
        let ends = site.frames.last().and_then(|one| one.symbol.as_deref()) == Some("_start");
        ensure!(!stack.complete || ends, "{kind}: called whole: {:#?}", site.frames);
        let said = site.frames.get(1).and_then(|one| one.reason.as_deref());
        ensure!(said.or(stack.reason.as_deref()).is_some(), "{kind}: no reason: {site:#?}");
    }
    Ok(())
}

/// A change to a library that the loader does not care about, and everybody else should.
struct Absurd {
    name: &'static str,
    change: fn(&mut Elf) -> Result<()>,
}

/// A library in memory. Offsets are those of the 64-bit ELF header and of section headers.
struct Elf {
    bytes: Vec<u8>,
}

impl Elf {
    fn number(&self, at: usize, size: usize) -> usize {
        let bytes = self.bytes[at..at + size].iter().rev();
        bytes.fold(0, |number, byte| number << 8 | usize::from(*byte))
    }

    fn set(&mut self, at: usize, value: &[u8]) {
        self.bytes[at..at + value.len()].copy_from_slice(value);
    }

    /// Where the header of a section is.
    fn header(&self, name: &str) -> Result<usize> {
        let (table, count, names) =
            (self.number(0x28, 8), self.number(0x3c, 2), self.number(0x3e, 2));
        let strings = self.number(table + names * 64 + 0x18, 8);
        let is_it = |header: &usize| {
            let at = strings + self.number(*header, 4);
            self.bytes[at..].starts_with(name.as_bytes()) && self.bytes[at + name.len()] == 0
        };
        let found = (0..count).map(|index| table + index * 64).find(is_it);
        found.with_context(|| format!("no section {name}"))
    }

    fn content(&mut self, name: &str) -> Result<&mut [u8]> {
        let header = self.header(name)?;
        let (start, size) = (self.number(header + 0x18, 8), self.number(header + 0x20, 8));
        Ok(&mut self.bytes[start..start + size])
    }
}

const ABSURD: &[Absurd] = &[
    Absurd {
        name: "section table beyond the file",
        change: |elf| Ok(elf.set(0x28, &(1_u64 << 60).to_le_bytes())),
    },
    Absurd { name: "65,535 sections", change: |elf| Ok(elf.set(0x3c, &[0xff, 0xff])) },
    Absurd {
        name: "no section but the number in the first one",
        change: |elf| {
            let table = elf.number(0x28, 8);
            elf.set(0x3c, &[0, 0]);
            Ok(elf.set(table + 0x20, &u64::MAX.to_le_bytes()))
        },
    },
    Absurd {
        name: "symbols of 4 EiB",
        change: |elf| {
            let header = elf.header(".symtab")?;
            Ok(elf.set(header + 0x20, &(1_u64 << 62).to_le_bytes()))
        },
    },
    Absurd {
        name: "symbols of no size",
        change: |elf| {
            let header = elf.header(".symtab")?;
            Ok(elf.set(header + 0x38, &0_u64.to_le_bytes()))
        },
    },
    Absurd {
        name: "symbols whose names are symbols",
        change: |elf| {
            let (header, table) = (elf.header(".symtab")?, elf.number(0x28, 8));
            let own = u32::try_from((header - table) / 64)?;
            Ok(elf.set(header + 0x28, &own.to_le_bytes()))
        },
    },
    Absurd { name: "names without end", change: |elf| Ok(elf.content(".strtab")?.fill(b'x')) },
    Absurd {
        name: "debug information of ones",
        change: |elf| Ok(elf.content(".debug_info")?.fill(0xff)),
    },
    Absurd {
        name: "abbreviations of ones",
        change: |elf| Ok(elf.content(".debug_abbrev")?.fill(0xff)),
    },
    Absurd { name: "lines of zeros", change: |elf| Ok(elf.content(".debug_line")?.fill(0)) },
    Absurd {
        name: "unwind information of ones",
        change: |elf| {
            elf.content(".eh_frame_hdr")?.fill(0xff);
            Ok(elf.content(".eh_frame")?.fill(0xff))
        },
    },
    Absurd {
        name: "unwind information of zeros",
        change: |elf| {
            elf.content(".eh_frame_hdr")?.fill(0);
            Ok(elf.content(".eh_frame")?.fill(0))
        },
    },
    Absurd {
        name: "a table of 4,294,967,295 unwind entries",
        change: |elf| {
            let header = elf.content(".eh_frame_hdr")?;
            header[8..12].fill(0xff);
            Ok(())
        },
    },
];

/// The library of `through`, changed.
fn absurd(scratch: &Scratch, absurd: &Absurd) -> Result<PathBuf> {
    let library = build::build(USUAL)?.file("libmiddle-in_first.so");
    let mut elf = Elf { bytes: std::fs::read(library)? };
    (absurd.change)(&mut elf)?;
    let path = scratch.join("libmiddle.so");
    // A new inode each time: nobody may take it for the one before.
    if path.exists() {
        std::fs::remove_file(&path)?;
    }
    std::fs::write(&path, elf.bytes)?;
    Ok(path)
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn libraries_with_absurd_tables_are_refused_with_a_reason() -> Result<()> {
    let scratch = Scratch::new()?;
    let program = build::build(USUAL)?.file("through");
    let mut wrong = Vec::new();
    for one in ABSURD {
        let library = absurd(&scratch, one)?;
        let traced = trace(&program, &[&library]).with_context(|| one.name.to_owned())?;
        let site = the_site(traced.process()?).with_context(|| one.name.to_owned())?;
        println!("{} | {:?} | {:#?}", one.name, site.stack, site.frames.get(1));
        if let Err(error) = check_absurd(site, &library) {
            wrong.push(format!("{}: {error:#}\n{:#?}", one.name, site.frames));
        }
    }
    ensure!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

fn check_absurd(site: &Site, library: &Path) -> Result<()> {
    ensure!(site.is_in("site_through"), "the site itself is lost");
    let stack = site.stack.as_ref().context("not said how the stack was taken")?;
    let last = site.frames.last().and_then(|one| one.symbol.as_deref());
    ensure!(!stack.complete || last == Some("_start"), "called whole, ends at {last:?}");
    let inside = |module: &str| Path::new(module) == library;
    let frames = site.frames.iter().filter(|one| one.module.as_deref().is_some_and(inside));
    for frame in frames.clone() {
        let name = frame.symbol.as_deref();
        let right = ["in_first", "enter"].map(Some).contains(&name);
        ensure!(right || name.is_none() && frame.reason.is_some(), "{frame:?}");
    }
    ensure!(frames.count() > 0, "no frame in the library");
    // A file may be refused as a whole; then the stack ends there, and says at which file.
    if !stack.complete {
        let reason = stack.reason.as_deref().unwrap_or_default();
        ensure!(reason.contains(&*library.to_string_lossy()), "the reason is {reason:?}");
    }
    Ok(())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_library_of_another_kind_behind_the_name_of_the_runtime_names_nothing() -> Result<()> {
    // Named like the runtime, and mapped; it is neither probed nor taken for an allocator.
    let scratch = Scratch::new()?;
    let library = scratch.join("libcudart.so.12");
    std::fs::copy(build::build(USUAL)?.file("libmiddle-in_first.so"), &library)?;
    let traced = trace(&build::build(USUAL)?.file("through"), &[&library])?;
    let site = the_site(traced.process()?)?;
    let names: Vec<_> = site.frames.iter().map(|one| one.symbol.as_deref()).collect();
    ensure!(
        names.starts_with(&["site_through", "in_first", "enter", "main"].map(Some)),
        "{names:?}"
    );
    ensure!(site.frames.iter().all(|one| !one.allocator), "{:#?}", site.frames);
    let probed = traced.dump.coverage_of(&library).map(|row| row.attached).unwrap_or_default();
    ensure!(!probed, "{:?}", traced.dump.coverage);
    Ok(())
}
