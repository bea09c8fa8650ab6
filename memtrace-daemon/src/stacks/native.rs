//! The second half of naming a user stack: places to frames. Holds what it has found, bounded.

use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::allocator::{self, Allocators};
use super::doing::{At, Thing};
use super::files::{FileKey, OpenFile};
use super::jit::JitName;
use super::names::Names;
use super::place::{Place, PlacedStack};
use super::sigbus;
use super::symbols::{Function, Symbols};
use crate::expendable::Worker;
use crate::host::text::limited;
use crate::record::{EXACT, StackLabel};
use crate::snapshot::{Frame, FrameKind};

/// Places whose frames are remembered, some 300 bytes each: more than a full table of sites has.
const MAX_FRAMES: usize = 16_384;
/// Longest name, bytes: C++ templates can fill pages.
const MAX_NAME: usize = 512;

/// Does the second half.
pub struct Namer {
    symbols: Symbols,
    at: At,
    allocators: Arc<Allocators>,
    frames: FxHashMap<(FileKey, u64), Arc<[Frame]>>,
    names: Names,
}

impl Namer {
    /// Makes one, for this thread.
    #[must_use]
    pub fn new(at: At, allocators: Arc<Allocators>) -> Self {
        if let Err(error) = sigbus::guard_this_thread() {
            tracing::warn!(%error, "no SIGBUS handler: a file that is cut short ends the daemon");
        }
        let (frames, names) = (FxHashMap::default(), Names::default());
        Self { symbols: Symbols::new(), at, allocators, frames, names }
    }

    /// The frames of a place, and what stands for it in a site's identity. `also` are offsets
    /// in the same file that will be asked for next.
    fn place(&mut self, place: &Place, also: &[u64]) -> (Arc<[Frame]>, String) {
        match place {
            Place::InFile(file, offset) => {
                let identity = format!("{}+{:#x}", file.identity(), offset & !EXACT);
                (self.in_file(file, *offset, also), identity)
            }
            Place::Jit(name) => (Arc::new([self.jit(name)]), name.identity.clone()),
            Place::Unnamed { identity, module, offset, reason } => {
                let frame = Frame {
                    module: module.clone(),
                    offset: *offset,
                    reason: Some(reason.clone()),
                    ..Frame::default()
                };
                (Arc::new([frame]), identity.clone())
            }
        }
    }

    fn jit(&mut self, name: &JitName) -> Frame {
        let JitName { kind, symbol, file, line, identity: _ } = name;
        Frame {
            kind: *kind,
            symbol: Some(self.names.one(symbol)),
            file: file.as_deref().map(|file| self.names.one(file)),
            line: *line,
            allocator: self.allocators.holds(FrameKind::Native, symbol),
            ..Frame::default()
        }
    }

    fn in_file(&mut self, file: &Arc<OpenFile>, offset: u64, also: &[u64]) -> Arc<[Frame]> {
        if let Some(frames) = self.frames.get(&(file.key, offset)) {
            return Arc::clone(frames);
        }
        let frames: Arc<[Frame]> = match self.functions(file, offset, also) {
            Ok(functions) => self.frames_of(file, offset, functions).into(),
            Err(reason) => {
                let reason = Some(self.names.one(&reason));
                Arc::new([Frame { reason, ..bare(file, offset) }])
            }
        };
        if self.frames.len() >= MAX_FRAMES {
            self.frames = FxHashMap::default();
            self.names.forget_unused();
        }
        self.frames.insert((file.key, offset), Arc::clone(&frames));
        frames
    }

    fn functions(
        &mut self,
        file: &Arc<OpenFile>,
        offset: u64,
        also: &[u64],
    ) -> Result<Vec<Function>, String> {
        let before = sigbus::replaced();
        let Self { symbols, at, .. } = self;
        let result = at
            .during(Thing::Lines(file.key), || symbols.name(file, offset, also, true))
            // What blocks or takes for ever may be the debug information.
            .or_else(|_| {
                at.during(Thing::Symbols(file.key), || symbols.name(file, offset, also, false))
            })?;
        if sigbus::replaced() != before {
            symbols.forget(file.key);
            return Err(format!("{} was cut short while it was read", file.module));
        }
        result
    }

    fn frames_of(&mut self, file: &OpenFile, offset: u64, functions: Vec<Function>) -> Vec<Frame> {
        let last = functions.len().saturating_sub(1);
        let Self { allocators, names, .. } = self;
        let frame = |(number, function): (usize, Function)| {
            let Function { name, file: source, line } = function;
            Frame {
                allocator: allocators.holds(FrameKind::Native, &name),
                symbol: Some(names.one(&limited(name, MAX_NAME))),
                file: source.map(|source| names.one(&limited(source, MAX_NAME))),
                line,
                inlined: number != last,
                ..bare(file, offset)
            }
        };
        functions.into_iter().enumerate().map(frame).collect()
    }
}

impl Worker for Namer {
    type Job = PlacedStack;
    type Out = StackLabel;

    fn work(&mut self, stack: &PlacedStack) -> StackLabel {
        let mut frames = Vec::with_capacity(stack.places.len());
        let mut identity = Vec::with_capacity(stack.places.len());
        let mut offsets = FxHashMap::<_, Vec<u64>>::default();
        for place in stack.places.iter() {
            if let Place::InFile(file, offset) = place {
                offsets.entry(file.key).or_default().push(*offset);
            }
        }
        for place in stack.places.iter() {
            let also = match place {
                Place::InFile(file, _) => offsets.get(&file.key).map_or(&[][..], |all| all),
                _ => &[],
            };
            let (of_place, id) = self.place(place, also);
            frames.extend_from_slice(&of_place);
            identity.push(id);
        }
        allocator::mark_interpreter(&mut frames);
        StackLabel { key: stack.key, frames: frames.into(), identity: identity.into() }
    }

    fn idle(&mut self) {
        self.symbols.close_unused(Instant::now());
    }
}

/// A label without names, where the second half could not be done.
#[must_use]
pub fn unnamed(stack: &PlacedStack, why: &str) -> StackLabel {
    let (mut frames, mut identity) = (Vec::new(), Vec::new());
    for place in stack.places.iter() {
        let (frame, id) = match place {
            Place::InFile(file, offset) => {
                (bare(file, *offset), format!("{}+{:#x}", file.identity(), offset & !EXACT))
            }
            Place::Jit(name) => {
                let symbol = Some(name.symbol.as_str().into());
                let frame = Frame { kind: name.kind, symbol, ..Frame::default() };
                frames.push(frame);
                identity.push(name.identity.clone());
                continue;
            }
            Place::Unnamed { identity, module, offset, reason: _ } => {
                let (module, offset) = (module.clone(), *offset);
                (Frame { module, offset, ..Frame::default() }, identity.clone())
            }
        };
        frames.push(Frame { reason: Some(why.into()), ..frame });
        identity.push(id);
    }
    StackLabel { key: stack.key, frames: frames.into(), identity: identity.into() }
}

fn bare(file: &OpenFile, offset: u64) -> Frame {
    Frame {
        kind: FrameKind::Native,
        module: Some(file.module.clone()),
        build_id: file.facts.build_id.clone(),
        offset: Some(offset & !EXACT),
        ..Frame::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::doing::Doing;
    use crate::stacks::files;
    use crate::stacks::maps::{self, Row};

    fn row_of(address: u64) -> Row {
        let rows = maps::read(std::fs::File::open("/proc/self/maps").unwrap()).unwrap();
        rows.into_iter().find(|row| row.holds(address)).unwrap()
    }

    #[test]
    fn files_are_closed_when_unused_and_a_descriptor_used_again_is_not_taken_for_them() {
        let mut namer = Namer::new(Arc::new(Doing::default()).thread(), Arc::default());
        let name = |namer: &mut Namer, address: u64| {
            let row = row_of(address);
            let file = Arc::new(files::open(std::process::id(), &row).unwrap());
            let offset = row.file_offset(address);
            let (frames, _) = namer.place(&Place::InFile(Arc::clone(&file), offset), &[]);
            (Arc::downgrade(&file), frames.last().unwrap().symbol.clone().unwrap())
        };
        let ours = row_of as *const () as u64 + 4;
        let (file, symbol) = name(&mut namer, ours);
        assert!(symbol.ends_with("tests::row_of"), "{symbol}");
        namer.symbols.close_unused(Instant::now());
        assert!(file.upgrade().is_some());
        namer.symbols.close_unused(Instant::now() + std::time::Duration::from_secs(120));
        assert!(file.upgrade().is_none());
        // The next file most likely gets the same descriptor.
        let (_, symbol) = name(&mut namer, libc::getpid as *const () as u64 + 4);
        assert!(symbol.ends_with("getpid"), "{symbol}");
    }
}
