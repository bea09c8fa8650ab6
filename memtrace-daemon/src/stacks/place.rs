//! The first half of naming a user stack: each address to a file and an offset in it, while
//! the process is still there to be asked. Also names kernel stacks, which takes microseconds.
//!
//! Runs on a thread that can be given up.

use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::allocator::Allocators;
use super::doing::Thing;
use super::files::{self, OpenFile};
use super::jit::JitName;
use super::kernel::KernelSymbols;
use super::mapped::Mapped;
use super::maps::Row;
use super::perfmap::PerfMaps;
use crate::expendable::{Worker, lock};
use crate::host::process;
use crate::record::{EXACT, RawStack, StackKey, StackLabel, StackOrigin, code_at};
use crate::snapshot::{Frame, FrameKind};

/// Why a stack ends at an address that is in no executable mapping.
const ASTRAY: &str = "the walk by frame pointers ended here";

/// Where an address is.
#[derive(Clone, Debug)]
pub enum Place {
    /// In a file, at this offset in it, with [`EXACT`] where the address has it.
    InFile(Arc<OpenFile>, u64),
    /// In code made at run time that a perf map names.
    Jit(Arc<JitName>),
    /// Nowhere that has names.
    Unnamed {
        /// What stands for it in a site's identity.
        identity: String,
        /// The file or the special mapping, where known.
        module: Option<Arc<str>>,
        /// Offset in it.
        offset: Option<u64>,
        /// Why it has no name.
        reason: Arc<str>,
    },
}

/// A stack that is asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The stack.
    pub stack: RawStack,
    /// When: mappings read later show what was mapped then, or it is gone.
    pub at: Instant,
}

/// What comes of the first half.
#[derive(Debug)]
pub enum Placed {
    /// A kernel stack: done.
    Named(StackLabel),
    /// A user stack: to be named.
    Places(PlacedStack),
}

/// A user stack whose addresses have places.
#[derive(Clone, Debug)]
pub struct PlacedStack {
    /// Which stack.
    pub key: StackKey,
    /// Where its addresses are, innermost first.
    pub places: Arc<[Place]>,
}

/// Does the first half.
pub struct Placer {
    mapped: Mapped,
    allocators: Arc<Allocators>,
    kernel: KernelSymbols,
    perf_maps: PerfMaps,
}

impl Placer {
    /// Makes one.
    #[must_use]
    pub fn new(mapped: Mapped, allocators: Arc<Allocators>) -> Self {
        let (kernel, perf_maps) = (KernelSymbols::default(), PerfMaps::default());
        Self { mapped, allocators, kernel, perf_maps }
    }

    fn kernel_stack(&mut self, stack: &RawStack) -> StackLabel {
        let mut identity = Vec::with_capacity(stack.addresses.len());
        let mut frames = Vec::with_capacity(stack.addresses.len());
        for address in stack.addresses.iter() {
            let mut frame = Frame { kind: FrameKind::Kernel, ..Frame::default() };
            match self.kernel.name(*address) {
                Ok(named) => {
                    frame.symbol = Some(named.symbol.into());
                    frame.module = named.module.map(Into::into);
                    frame.offset = Some(named.offset);
                    frame.allocator = self.allocators.holds(FrameKind::Kernel, named.symbol);
                    let module = named.module.map(|module| format!("{module}:"));
                    let module = module.as_deref().unwrap_or("");
                    identity.push(format!("{module}{}+{:#x}", named.symbol, named.offset));
                }
                Err(reason) => {
                    frame.reason = Some(reason.into());
                    identity.push("unnamed".into());
                }
            }
            frames.push(frame);
        }
        StackLabel { key: stack.key, frames: frames.into(), identity: identity.into() }
    }

    fn user_stack(&mut self, asked: &Asked, tgid: u32, space: u32) -> PlacedStack {
        let stack = &asked.stack;
        let mut rows = self.find(stack, tgid, space);
        let mut unread = None;
        let outdated = lock(&self.mapped.spaces).outdated(space);
        if outdated || rows.iter().any(Option::is_none) {
            unread = self.mapped.look_again(tgid, space, asked.at);
            rows = self.find(stack, tgid, space);
        }
        let known = lock(&self.mapped.spaces).knows(tgid, space);
        // A file is looked at once a stack, not once an address.
        let mut files = FxHashMap::default();
        let mut places = Vec::with_capacity(rows.len());
        let mut jit = JitSearch::default();
        for (address, row) in stack.addresses.iter().zip(rows) {
            let Some(row) = row else {
                // What a walk by frame pointers finds beyond an address that is no code is no
                // stack, and differs from call to call.
                places.push(nowhere(match &unread {
                    Some(why) if !known => why.clone(),
                    _ => ASTRAY.into(),
                }));
                break;
            };
            let file = files
                .entry((row.device, row.inode))
                .or_insert_with(|| self.mapped.file(tgid, &row));
            let mut place = place(file, &row, *address);
            if made_at_run_time(file, &row) {
                self.jit(tgid, space, *address, &mut jit, &mut place);
            }
            places.push(place);
        }
        PlacedStack { key: stack.key, places: places.into() }
    }

    fn find(&self, stack: &RawStack, tgid: u32, space: u32) -> Vec<Option<Row>> {
        let mut spaces = lock(&self.mapped.spaces);
        let find = |address: &u64| spaces.find(tgid, space, code_at(*address));
        stack.addresses.iter().map(find).collect()
    }

    /// Names an address in code made at run time, or says why its perf map does not.
    fn jit(
        &mut self,
        tgid: u32,
        space: u32,
        address: u64,
        search: &mut JitSearch,
        place: &mut Place,
    ) {
        let inside = code_at(address);
        let mut found = self.perf_maps.find(space, inside);
        if !search.read {
            // Once a stack, whether or not it has a name: code is made anew at old addresses. What its
            // process has compiled by now was written before.
            search.read = true;
            search.parent = lock(&self.mapped.spaces).parent(tgid, space);
            search.refused = self.read_perf_map(tgid, space).err().flatten();
            if let Some((tgid, space)) = search.parent {
                // What was compiled before the fork is named in the parent's file.
                let _ = self.read_perf_map(tgid, space);
            }
            found = self.perf_maps.find(space, inside);
        }
        if found.is_none() && search.parent.is_none() {
            search.parent = lock(&self.mapped.spaces).parent(tgid, space);
        }
        let inherited = |maps: &mut PerfMaps| maps.find(search.parent?.1, inside);
        match (found.or_else(|| inherited(&mut self.perf_maps)), place) {
            (Some(name), place) => *place = Place::Jit(Arc::new(name)),
            (None, Place::Unnamed { reason, .. }) => {
                if let Some(why) = &search.refused {
                    *reason = format!("{reason}; {why}").into();
                }
            }
            (None, _) => {}
        }
    }

    /// Reads the perf map of a process that is still there.
    fn read_perf_map(&mut self, tgid: u32, space: u32) -> Result<(), Option<String>> {
        let (alive, start_ns) = lock(&self.mapped.spaces).alive(tgid, space);
        if !alive || start_ns.is_some_and(|start_ns| !process::started_at(tgid, start_ns)) {
            return Err(None);
        }
        let Self { mapped, perf_maps, .. } = self;
        mapped.at.during(Thing::PerfMap(space), || perf_maps.read(tgid, space)).map_err(Some)?
    }
}

impl Worker for Placer {
    type Job = Asked;
    type Out = Placed;

    fn work(&mut self, asked: &Asked) -> Placed {
        match asked.stack.origin {
            StackOrigin::Kernel => Placed::Named(self.kernel_stack(&asked.stack)),
            StackOrigin::User { tgid, serial: _, space } => {
                Placed::Places(self.user_stack(asked, tgid, space))
            }
        }
    }
}

/// The place of an address in a mapping, whose file could be opened or not.
fn place(file: &Result<Arc<OpenFile>, String>, row: &Row, address: u64) -> Place {
    let offset = row.file_offset(address & !EXACT);
    match file {
        _ if row.inode == 0 => special(row, offset),
        Ok(file) => Place::InFile(Arc::clone(file), offset | address & EXACT),
        Err(reason) => {
            let module = files::shown(row);
            let identity = format!("{module}+{offset:#x}");
            Place::Unnamed {
                identity,
                module: Some(module.into()),
                offset: Some(offset),
                reason: reason.as_str().into(),
            }
        }
    }
}

/// What is found out about the perf map once a stack.
#[derive(Debug, Default)]
struct JitSearch {
    read: bool,
    refused: Option<String>,
    parent: Option<(u32, u32)>,
}

/// Whether a perf map may name what is in a mapping: memory that is no file, or a file that is
/// no program (compilers map their code twice, by a file without a name).
fn made_at_run_time(file: &Result<Arc<OpenFile>, String>, row: &Row) -> bool {
    match &*row.path {
        b"[vdso]" | b"[vsyscall]" | b"[uprobes]" => false,
        _ => file.is_err(),
    }
}

/// An address in memory that is no file.
fn special(row: &Row, offset: u64) -> Place {
    let path = files::shown(row);
    let (identity, module, reason) = match path.as_str() {
        "" => ("anonymous".into(), None, "not in a file: code made at run time"),
        "[uprobes]" => (
            path.clone(),
            Some(path.into()),
            "the probe's own return address; the function that was called from here is probed",
        ),
        "[vdso]" | "[vsyscall]" => (
            format!("{path}+{offset:#x}"),
            Some(path.into()),
            "code that the kernel maps, not a file's",
        ),
        _ => (path.clone(), Some(path.into()), "not in a file"),
    };
    let offset = module.as_ref().map(|_| offset);
    Place::Unnamed { identity, module, offset, reason: reason.into() }
}

/// An address that is in nothing known.
fn nowhere(reason: String) -> Place {
    Place::Unnamed {
        identity: "unmapped".into(),
        module: None,
        offset: None,
        reason: reason.into(),
    }
}
