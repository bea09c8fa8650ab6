//! Folded stacks, for flame graphs: `domain;comm-pid;outer;…;inner bytes`.
//!
//! The domain is the outermost frame, as domains are never added to each other. Sites without
//! frames or without live bytes have no line.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use super::escape::escape;
use super::frames;
use crate::snapshot::{Frame, FrameKind, Process, Site, Snapshot};

/// Writes one line a stack, sorted; equal stacks are one line.
///
/// # Errors
///
/// What came back from writing.
pub fn write(snapshot: &Snapshot, out: &mut dyn Write) -> io::Result<()> {
    let mut stacks = BTreeMap::<String, u64>::new();
    for process in &snapshot.processes {
        for site in &process.sites {
            if site.live_bytes > 0 && !site.frames.is_empty() {
                let total = stacks.entry(stack(process, site)).or_default();
                *total = total.saturating_add(site.live_bytes);
            }
        }
    }
    let mut out = BufWriter::new(out);
    for (stack, bytes) in stacks {
        writeln!(out, "{stack} {bytes}")?;
    }
    out.flush()
}

fn stack(process: &Process, site: &Site) -> String {
    let root = [site.domain.to_owned(), part(&format!("{}-{}", process.comm, process.pid))];
    // A kernel site's user frames are an example of who called; they come outside.
    let caller = site.samples.first().filter(|_| site.domain == "kernel");
    let outside = caller.into_iter().flat_map(|sample| sample.user_frames.iter().rev());
    let frames = outside.chain(site.frames.iter().rev()).map(folded_name);
    root.into_iter().chain(frames).collect::<Vec<_>>().join(";")
}

fn folded_name(frame: &Frame) -> String {
    let name = part(&frames::name(frame));
    // flamegraph.pl's mark for kernel frames.
    if frame.kind == FrameKind::Kernel { format!("{name}_[k]") } else { name }
}

/// A name without the character that separates frames.
fn part(name: &str) -> String {
    escape(name).replace(';', ":")
}
