//! The first half of naming a user stack: each address to a file and an offset in it, while
//! the process is still there to be asked. Also names kernel stacks, which takes microseconds.
//!
//! Runs on a thread that can be given up.

use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::allocator::Allocators;
use super::files::{self, OpenFile};
use super::kernel::KernelSymbols;
use super::mapped::Mapped;
use super::maps::Row;
use crate::expendable::{Worker, lock};
use crate::record::{RawStack, StackKey, StackLabel, StackOrigin};
use crate::snapshot::{Frame, FrameKind};

/// Why a stack ends at an address that is in no executable mapping.
const ASTRAY: &str = "the walk by frame pointers ended here";

/// Where an address is.
#[derive(Clone, Debug)]
pub enum Place {
    /// In a file, at this offset in it.
    InFile(Arc<OpenFile>, u64),
    /// Nowhere that has names.
    Unnamed {
        /// What stands for it in a site's identity.
        identity: String,
        /// The file or the special mapping, where known.
        module: Option<String>,
        /// Offset in it.
        offset: Option<u64>,
        /// Why it has no name.
        reason: String,
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
}

impl Placer {
    /// Makes one.
    #[must_use]
    pub fn new(mapped: Mapped, allocators: Arc<Allocators>) -> Self {
        Self { mapped, allocators, kernel: KernelSymbols::default() }
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
                    frame.reason = Some(reason);
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
        if rows.iter().any(Option::is_none) {
            unread = self.mapped.look_again(tgid, space, asked.at);
            rows = self.find(stack, tgid, space);
        }
        let known = lock(&self.mapped.spaces).knows(tgid, space);
        // A file is looked at once a stack, not once an address.
        let mut files = FxHashMap::default();
        let mut places = Vec::with_capacity(rows.len());
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
            places.push(place(file, &row, *address));
        }
        PlacedStack { key: stack.key, places: places.into() }
    }

    fn find(&self, stack: &RawStack, tgid: u32, space: u32) -> Vec<Option<Row>> {
        let mut spaces = lock(&self.mapped.spaces);
        // The call is before the return address, and may be the last of its mapping.
        let find = |address: &u64| spaces.find(tgid, space, address.saturating_sub(1));
        stack.addresses.iter().map(find).collect()
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
    let offset = row.file_offset(address);
    match file {
        _ if row.inode == 0 => special(row, offset),
        Ok(file) => Place::InFile(Arc::clone(file), offset),
        Err(reason) => {
            let (module, reason) = (files::shown(row), reason.clone());
            let identity = format!("{module}+{offset:#x}");
            Place::Unnamed { identity, module: Some(module), offset: Some(offset), reason }
        }
    }
}

/// An address in memory that is no file.
fn special(row: &Row, offset: u64) -> Place {
    let path = files::shown(row);
    let (identity, module, reason) = match path.as_str() {
        "" => ("anonymous".into(), None, "not in a file: code made at run time"),
        "[uprobes]" => (
            path.clone(),
            Some(path),
            "the probe's own return address; the function that was called from here is probed",
        ),
        "[vdso]" | "[vsyscall]" => {
            (format!("{path}+{offset:#x}"), Some(path), "code that the kernel maps, not a file's")
        }
        _ => (path.clone(), Some(path), "not in a file"),
    };
    let offset = module.as_ref().map(|_| offset);
    Place::Unnamed { identity, module, offset, reason: reason.into() }
}

/// An address that is in nothing known.
fn nowhere(reason: String) -> Place {
    Place::Unnamed { identity: "unmapped".into(), module: None, offset: None, reason }
}
