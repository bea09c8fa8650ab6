//! Attaches programs that do nothing where memtrace attaches its own, for `cargo xtask bench`:
//! what is left above them is memtrace's own cost.
//!
//! Prints `ready` once attached and detaches when standard input ends. It must stay empty: one
//! program, two instructions.

use std::ffi::CString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, bail};
use aya_obj::btf::BtfKind;
use aya_obj::generated::{bpf_attach_type, bpf_prog_type};
use memtrace_daemon::attach::abilities::kernel_type;
use memtrace_daemon::attach::abilities::program;
use memtrace_daemon::attach::abilities::sys::{Program, attach_tracing};
use memtrace_daemon::attach::sys::link_uprobe_multi;
use memtrace_daemon::catalog;
use object::{Object, ObjectSegment, ObjectSymbol};

const USAGE: &str = "usage: empty_probes tracepoints NAME…   BTF tracepoints, a program for each
       empty_probes libraries FILE…    entry and return of every function of the catalog";

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let links = match arguments.split_first() {
        Some((kind, names)) if kind == "tracepoints" => {
            names.iter().map(|name| tracepoint(name)).collect::<anyhow::Result<Vec<_>>>()?
        }
        Some((kind, files)) if kind == "libraries" => {
            let links = files.iter().map(|file| library(Path::new(file)));
            links.collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect()
        }
        _ => bail!("{USAGE}"),
    };
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(links);
    Ok(())
}

fn tracepoint(name: &str) -> anyhow::Result<OwnedFd> {
    let program = Program {
        name: "mt_empty",
        kind: bpf_prog_type::BPF_PROG_TYPE_TRACING,
        attach: Some(bpf_attach_type::BPF_TRACE_RAW_TP),
        attach_btf_id: kernel_type(&format!("btf_trace_{name}"), BtfKind::Typedef)?,
        instructions: &program::nothing(),
        functions: None,
    };
    let program = program.load().with_context(|| format!("loading a program for {name}"))?;
    attach_tracing(program.as_fd()).with_context(|| format!("attaching to {name}"))
}

fn library(path: &Path) -> anyhow::Result<Vec<OwnedFd>> {
    let offsets = offsets(path)?;
    if offsets.is_empty() {
        bail!("{} has no function of the catalog", path.display());
    }
    let program = Program {
        name: "mt_empty",
        kind: bpf_prog_type::BPF_PROG_TYPE_KPROBE,
        attach: Some(bpf_attach_type::BPF_TRACE_UPROBE_MULTI),
        attach_btf_id: 0,
        instructions: &program::nothing(),
        functions: None,
    };
    let program = program.load().context("loading a uprobe_multi program (kernel 6.6 or later)")?;
    let name = CString::new(path.as_os_str().as_encoded_bytes())?;
    let cookies = vec![0; offsets.len()];
    [false, true]
        .into_iter()
        .map(|at_return| {
            link_uprobe_multi(program.as_fd(), &name, &offsets, &cookies, at_return)
                .with_context(|| format!("attaching to {}", path.display()))
        })
        .collect()
}

/// Where the functions of the catalog that a file exports begin in it, in bytes.
fn offsets(path: &Path) -> anyhow::Result<Vec<u64>> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let file =
        object::File::parse(&*bytes).with_context(|| format!("parsing {}", path.display()))?;
    let file_offset = |address: u64| {
        file.segments().find_map(|segment| {
            let (start, length) = segment.file_range();
            let inside = address.checked_sub(segment.address())?;
            (inside < length).then_some(start + inside)
        })
    };
    let wanted =
        |name: &str| catalog::library_functions().iter().any(|function| function.symbol == name);
    Ok(file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.name().is_ok_and(wanted))
        .filter_map(|symbol| file_offset(symbol.address()))
        .collect())
}
