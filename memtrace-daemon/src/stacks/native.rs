//! The second half of naming a user stack: a file and an offset to functions, inlined ones
//! included, with source file and line. blazesym does the reading; here are the limits around
//! it, because files are hostile and large, and the daemon's memory is small.

use std::sync::Arc;
use std::time::{Duration, Instant};

use blazesym::symbolize::evict::{self, Evict};
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Reason, Sym, Symbolized, Symbolizer};
use rustc_hash::FxHashMap;

use super::allocator::{self, Allocators};
use super::doing::{At, Thing};
use super::files::{FileKey, OpenFile};
use super::jit::JitName;
use super::names::Names;
use super::place::{Place, PlacedStack};
use super::sigbus;
use crate::expendable::Worker;
use crate::host::text::{limited, text};
use crate::record::StackLabel;
use crate::snapshot::{Frame, FrameKind};

/// Files whose symbols are kept at a time.
const MAX_FILES: usize = 48;
/// Bytes of debug information of the files kept, but for the last one: reading takes a third
/// of it as memory of our own.
const MAX_DEBUG: u64 = 32 << 20;
/// A file that nothing was named in for this long is closed: an open file keeps its file
/// system from being unmounted.
const CLOSE_AFTER: Duration = Duration::from_secs(60);
/// Places whose frames are remembered.
const MAX_FRAMES: usize = 8_192;
/// Most functions inlined at one place that are shown.
const MAX_INLINED: usize = 16;
/// Longest name, bytes: C++ templates can fill pages.
const MAX_NAME: usize = 512;

/// Does the second half.
pub struct Namer {
    symbolizer: Symbolizer,
    at: At,
    allocators: Arc<Allocators>,
    open: Vec<Held>,
    frames: FxHashMap<(FileKey, u64), Arc<[Frame]>>,
    names: Names,
}

/// A file that the symbolizer has open. It must be evicted before the descriptor is closed.
struct Held {
    file: Arc<OpenFile>,
    used: Instant,
}

impl Namer {
    /// Makes one, for this thread.
    #[must_use]
    pub fn new(at: At, allocators: Arc<Allocators>) -> Self {
        if let Err(error) = sigbus::guard_this_thread() {
            tracing::warn!(%error, "no SIGBUS handler: a file that is cut short ends the daemon");
        }
        // The files are told apart and evicted here, so blazesym need not look again.
        let symbolizer = Symbolizer::builder().enable_auto_reload(false).build();
        let (open, frames, names) = (Vec::new(), FxHashMap::default(), Names::default());
        Self { symbolizer, at, allocators, open, frames, names }
    }

    fn place(&mut self, place: &Place) -> (Arc<[Frame]>, String) {
        match place {
            Place::InFile(file, offset) => {
                let identity = format!("{}+{offset:#x}", file.identity());
                (self.in_file(file, *offset), identity)
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

    fn in_file(&mut self, file: &Arc<OpenFile>, offset: u64) -> Arc<[Frame]> {
        if let Some(frames) = self.frames.get(&(file.key, offset)) {
            return Arc::clone(frames);
        }
        let frames: Arc<[Frame]> = match self.symbols(file, offset) {
            Ok(frames) => frames.into(),
            Err(reason) => Arc::new([Frame { reason: Some(reason.into()), ..bare(file, offset) }]),
        };
        if self.frames.len() >= MAX_FRAMES {
            self.frames.clear();
        }
        self.frames.insert((file.key, offset), Arc::clone(&frames));
        frames
    }

    fn symbols(&mut self, file: &Arc<OpenFile>, offset: u64) -> Result<Vec<Frame>, String> {
        if let Some(why) = file.facts.refused {
            return Err(format!("{}: {why}", file.module));
        }
        self.hold(file);
        let before = sigbus::replaced();
        let Self { symbolizer, at, allocators, names, .. } = self;
        let mut reader = Reader { symbolizer, allocators, names };
        let result = at.during(Thing::Symbols(file.key), || reader.look_up(file, offset))?;
        let cut = sigbus::replaced() != before;
        if cut {
            self.close(|held| held.file.key == file.key);
        }
        if cut {
            return Err(format!("{} was cut short while it was read", file.module));
        }
        result
    }

    fn hold(&mut self, file: &Arc<OpenFile>) {
        let now = Instant::now();
        if let Some(held) = self.open.iter_mut().find(|held| held.file.key == file.key) {
            held.used = now;
            return;
        }
        let debug =
            |open: &[Held]| open.iter().map(|held| held.file.facts.debug_bytes).sum::<u64>();
        while self.open.len() >= MAX_FILES || debug(&self.open) > MAX_DEBUG {
            let Some(oldest) = self.open.iter().map(|held| held.used).min() else { break };
            self.close(|held| held.used == oldest);
        }
        self.open.push(Held { file: Arc::clone(file), used: now });
    }

    fn close_unused(&mut self, now: Instant) {
        let before = self.open.len();
        self.close(|held| now.duration_since(held.used) > CLOSE_AFTER);
        #[cfg(target_env = "gnu")]
        if self.open.len() < before {
            // SAFETY: gives free memory back to the system; always allowed.
            unsafe { libc::malloc_trim(0) };
        }
    }

    fn close(&mut self, which: impl Fn(&Held) -> bool) {
        for held in self.open.extract_if(.., |held| which(held)) {
            let evict = Evict::Elf(evict::Elf::new(held.file.path()));
            // Cannot fail for a file: it only forgets.
            let _ = self.symbolizer.evict(&evict);
        }
    }
}

/// What names an address in a file, apart for a moment.
struct Reader<'a> {
    symbolizer: &'a Symbolizer,
    allocators: &'a Allocators,
    names: &'a mut Names,
}

impl Reader<'_> {
    fn look_up(&mut self, file: &OpenFile, offset: u64) -> Result<Vec<Frame>, String> {
        let path = file.path();
        // The call is before the return address: so is its line.
        let input = Input::FileOffset(offset.saturating_sub(1));
        let ask = |debug_syms| {
            let mut source = Elf::new(&path);
            source.debug_syms = debug_syms;
            self.symbolizer.symbolize_single(&Source::Elf(source), input)
        };
        let mut result = ask(file.facts.debug);
        if result.is_err() && file.facts.debug {
            // Damaged or unknown debug information; the symbols may be whole.
            result = ask(false);
        }
        match result {
            Ok(Symbolized::Sym(mut symbol)) => {
                // Debug information cut to lines has bare names; symbols have whole paths.
                if file.facts.debug
                    && !symbol.name.contains("::")
                    && let Ok(Symbolized::Sym(whole)) = ask(false)
                    && whole.name.contains("::")
                {
                    symbol.name = whole.name;
                }
                Ok(self.frames_of(file, offset, &symbol))
            }
            Ok(Symbolized::Unknown(reason)) => Err(unknown(file, reason)),
            Err(error) => Err(format!("symbols of {} cannot be read: {error}", file.module)),
        }
    }

    /// The inlined functions, innermost first, and the function that they are in.
    fn frames_of(&mut self, file: &OpenFile, offset: u64, symbol: &Sym<'_>) -> Vec<Frame> {
        let Self { symbolizer: _, allocators, names } = self;
        let mut frame = |name: &str, code: Option<&CodeInfo<'_>>, inlined| Frame {
            symbol: Some(names.one(&limited(name.into(), MAX_NAME))),
            file: code.map(|code| {
                let path = text(code.to_path().as_os_str().as_encoded_bytes());
                names.one(&limited(path, MAX_NAME))
            }),
            line: code.and_then(|code| code.line),
            inlined,
            allocator: allocators.holds(FrameKind::Native, name),
            ..bare(file, offset)
        };
        let inlined = symbol.inlined.iter().rev().take(MAX_INLINED);
        let mut frames: Vec<_> =
            inlined.map(|inner| frame(&inner.name, inner.code_info.as_ref(), true)).collect();
        frames.push(frame(&symbol.name, symbol.code_info.as_deref(), false));
        frames
    }
}

impl Worker for Namer {
    type Job = PlacedStack;
    type Out = StackLabel;

    fn work(&mut self, stack: &PlacedStack) -> StackLabel {
        let mut frames = Vec::with_capacity(stack.places.len());
        let mut identity = Vec::with_capacity(stack.places.len());
        for place in stack.places.iter() {
            let (of_place, id) = self.place(place);
            frames.extend_from_slice(&of_place);
            identity.push(id);
        }
        allocator::mark_interpreter(&mut frames);
        StackLabel { key: stack.key, frames: frames.into(), identity: identity.into() }
    }

    fn idle(&mut self) {
        self.close_unused(Instant::now());
    }
}

/// A label without names, where the second half could not be done.
#[must_use]
pub fn unnamed(stack: &PlacedStack, why: &str) -> StackLabel {
    let (mut frames, mut identity) = (Vec::new(), Vec::new());
    for place in stack.places.iter() {
        let (frame, id) = match place {
            Place::InFile(file, offset) => {
                (bare(file, *offset), format!("{}+{offset:#x}", file.identity()))
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
        offset: Some(offset),
        ..Frame::default()
    }
}

fn unknown(file: &OpenFile, reason: Reason) -> String {
    let module = &file.module;
    match reason {
        Reason::MissingSyms | Reason::UnknownAddr if !file.facts.full_symbols => {
            format!("stripped: no symbols in {module} but those it exports")
        }
        Reason::MissingSyms => format!("stripped: no symbols in {module}"),
        Reason::UnknownAddr => format!("no symbol of {module} covers it"),
        other => format!("{module}: {other}"),
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
            let (frames, _) = namer.place(&Place::InFile(Arc::clone(&file), offset));
            (Arc::downgrade(&file), frames.last().unwrap().symbol.clone().unwrap())
        };
        let ours = row_of as *const () as u64 + 4;
        let (file, symbol) = name(&mut namer, ours);
        assert!(symbol.ends_with("tests::row_of"), "{symbol}");
        namer.close_unused(Instant::now());
        assert!(file.upgrade().is_some());
        namer.close_unused(Instant::now() + 2 * CLOSE_AFTER);
        assert!(file.upgrade().is_none());
        // The next file most likely gets the same descriptor.
        let (_, symbol) = name(&mut namer, libc::getpid as *const () as u64 + 4);
        assert!(symbol.ends_with("getpid"), "{symbol}");
    }
}
