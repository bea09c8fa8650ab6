//! Runs a BPF iterator over all its objects, once.

use std::io::{self, Read};

use aya::programs::Iter;

/// Runs a loaded program over all tasks that there are.
pub fn run(program: &mut Iter) -> io::Result<()> {
    let link = program.attach().and_then(|link| program.take_link(link));
    let iterator = link.map_err(io::Error::other)?.into_file();
    // The program says nothing: reading it to its end is what runs it.
    iterator.map_err(io::Error::other)?.read_to_end(&mut Vec::new()).map(drop)
}
