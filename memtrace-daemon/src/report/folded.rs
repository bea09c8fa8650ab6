//! Folded stacks, for flame graph tools: `domain;comm-pid;outer;…;inner bytes`.
//!
//! The weights add up to the live bytes of the sites. Kernel frames end in `_[k]`, inlined ones
//! in `_[i]`, as these tools know them.

use std::io::{self, BufWriter, Write};

use super::tree::Tree;
use crate::snapshot::Snapshot;

/// Writes one line a stack; equal stacks are one line. A site without live bytes has none.
///
/// # Errors
///
/// What came back from writing.
pub fn write(snapshot: &Snapshot, out: &mut dyn Write) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    Tree::of(snapshot).each_stack(usize::MAX, |stack, bytes| writeln!(out, "{stack} {bytes}"))?;
    out.flush()
}
