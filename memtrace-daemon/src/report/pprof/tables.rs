//! The tables of a profile: strings, functions, locations, mappings, each entry once.
//!
//! Frames are (file, offset), not addresses. A reader looks symbols up by address, so each file
//! gets a range of addresses of its own in which its offsets lie in order: what the reader
//! computes for a mapping is then right for the file, and it can name by build id what has no
//! name here.

use rustc_hash::FxHashMap;

use super::proto::{Function, Line, Location, Mapping, Profile};
use crate::report::escape::escape;
use crate::report::frames::{UNKNOWN, nameless, stack};
use crate::snapshot::{Frame, FrameKind, Site};

/// log2 of the addresses that a file has. A larger offset is no file's.
const SPAN_BITS: u32 = 40;
/// log2 of the addresses that a kernel function has: kernel frames are symbols and offsets.
const SYMBOL_BITS: u32 = 20;
/// Ends of a mapping are whole pages, as those of real ones.
const PAGE: u64 = 4_096;
/// The name that readers know the kernel's own code by.
const KERNEL: &str = "[kernel.kallsyms]";

/// All tables.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) strings: Strings,
    functions: Vec<Function>,
    /// By name and file.
    function_ids: FxHashMap<(i64, i64), u64>,
    mappings: Vec<Module>,
    /// By file name and build id.
    mapping_ids: FxHashMap<(i64, i64), usize>,
    locations: Vec<Location>,
    location_ids: FxHashMap<Key, u64>,
    /// Of frames that are a location by themselves, by where they lie in memory.
    known: FxHashMap<*const Frame, u64>,
}

/// Strings, each once; index 0 is the empty one.
pub(super) struct Strings {
    list: Vec<String>,
    ids: FxHashMap<String, i64>,
}

/// What makes two locations the same.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    mapping: Option<usize>,
    address: u64,
    lines: Vec<Line>,
}

/// A mapping under construction.
struct Module {
    filename: i64,
    build_id: i64,
    /// Lowest and highest address that a location has, from the start of its range.
    used: Option<(u64, u64)>,
    /// Kernel functions by name, in the order of their addresses.
    symbols: FxHashMap<i64, u64>,
    /// Whether the locations so far all have these.
    functions: bool,
    filenames: bool,
    lines: bool,
    /// Whether one of them has inlined functions.
    inlined: bool,
}

impl Default for Strings {
    fn default() -> Self {
        Self { list: vec![String::new()], ids: [(String::new(), 0)].into_iter().collect() }
    }
}

impl Strings {
    /// The index of a string, with what could move a cursor made visible.
    pub(super) fn id(&mut self, text: &str) -> i64 {
        let text = escape(text);
        if let Some(id) = self.ids.get(&*text) {
            return *id;
        }
        let id = count(self.list.len());
        self.list.push(text.clone().into_owned());
        self.ids.insert(text.into_owned(), id);
        id
    }
}

impl Tables {
    /// The locations of a site's stack, innermost first.
    pub(super) fn stack(&mut self, site: &Site) -> Vec<u64> {
        let mut locations = Vec::with_capacity(site.frames.len());
        // Inlined functions, and the function that they are in, are one location.
        let mut group: Vec<&Frame> = Vec::new();
        for frame in stack(site) {
            if group.is_empty() && !frame.inlined {
                let known = self.known.get(&std::ptr::from_ref(frame)).copied();
                let id = known.unwrap_or_else(|| self.location(&[frame]));
                self.known.insert(frame, id);
                locations.push(id);
                continue;
            }
            group.push(frame);
            if !frame.inlined {
                locations.push(self.location(&group));
                group.clear();
            }
        }
        if !group.is_empty() {
            locations.push(self.location(&group));
        }
        if locations.is_empty() {
            let line = Line { function_id: self.function(&nameless(site), ""), line: 0 };
            locations.push(self.location_of(Key { mapping: None, address: 0, lines: vec![line] }));
        }
        locations
    }

    /// The location of frames of which each but the last is inlined into the next.
    fn location(&mut self, frames: &[&Frame]) -> u64 {
        let mut lines: Vec<Line> = frames.iter().filter_map(|frame| self.line(frame)).collect();
        let place = frames.last().and_then(|frame| self.place(frame));
        let (mapping, address) = place.map_or((None, 0), |(module, at)| (Some(module), at));
        if mapping.is_none() && lines.is_empty() {
            lines.push(Line { function_id: self.function(UNKNOWN, ""), line: 0 });
        }
        if let Some(module) = mapping.and_then(|index| self.mappings.get_mut(index)) {
            module.functions &= lines.len() == frames.len();
            // Start-up code in assembler has no lines in a program that has them.
            module.filenames |= frames.iter().any(|frame| frame.file.is_some());
            module.lines |= frames.iter().any(|frame| frame.line.is_some());
            module.inlined |= frames.len() > 1;
        }
        self.location_of(Key { mapping, address, lines })
    }

    fn location_of(&mut self, key: Key) -> u64 {
        if let Some(id) = self.location_ids.get(&key) {
            return *id;
        }
        let id = self.locations.len() as u64 + 1;
        self.locations.push(Location {
            id,
            mapping_id: key.mapping.map_or(0, |index| index as u64 + 1),
            address: key.address,
            line: key.lines.clone(),
        });
        self.location_ids.insert(key, id);
        id
    }

    /// The function and line of a frame that has a name. One without stays an address, as the
    /// format wants it: readers show the file, and may find the name.
    fn line(&mut self, frame: &Frame) -> Option<Line> {
        let symbol = frame.symbol.as_deref()?;
        let function_id = self.function(symbol, frame.file.as_deref().unwrap_or(""));
        Some(Line { function_id, line: frame.line.map_or(0, i64::from) })
    }

    fn function(&mut self, name: &str, file: &str) -> u64 {
        let (name, filename) = (self.strings.id(name), self.strings.id(file));
        let next = self.functions.len() as u64 + 1;
        let id = *self.function_ids.entry((name, filename)).or_insert(next);
        if id == next {
            self.functions.push(Function { id, name, system_name: name, filename });
        }
        id
    }

    /// The mapping of a frame, and its address in the mapping's range.
    fn place(&mut self, frame: &Frame) -> Option<(usize, u64)> {
        let within = match frame.kind {
            // The address after a call; the call is before it.
            FrameKind::Native | FrameKind::Python => frame.offset?.saturating_sub(1),
            FrameKind::Kernel => frame.offset?.min((1 << SYMBOL_BITS) - 1),
        };
        let index = match (frame.kind, &frame.module) {
            (FrameKind::Kernel, None) => self.mapping(KERNEL, ""),
            (FrameKind::Kernel, Some(module)) => self.mapping(&format!("[{module}]"), ""),
            (_, None) => return None,
            (_, Some(module)) => self.mapping(module, frame.build_id.as_deref().unwrap_or("")),
        };
        let symbol = match frame.kind {
            FrameKind::Kernel => Some(self.strings.id(frame.symbol.as_deref()?)),
            FrameKind::Native | FrameKind::Python => None,
        };
        let module = self.mappings.get_mut(index)?;
        let within = match symbol {
            Some(symbol) => {
                let next = module.symbols.len() as u64;
                (*module.symbols.entry(symbol).or_insert(next) << SYMBOL_BITS) + within
            }
            None => within,
        };
        if within >= (1 << SPAN_BITS) - PAGE {
            return None;
        }
        let (low, high) = module.used.unwrap_or((within, within));
        module.used = Some((low.min(within), high.max(within)));
        Some((index, base(index)? + within))
    }

    fn mapping(&mut self, filename: &str, build_id: &str) -> usize {
        let (filename, build_id) = (self.strings.id(filename), self.strings.id(build_id));
        let next = self.mappings.len();
        let index = *self.mapping_ids.entry((filename, build_id)).or_insert(next);
        if index == next {
            self.mappings.push(Module {
                filename,
                build_id,
                used: None,
                symbols: FxHashMap::default(),
                functions: true,
                filenames: false,
                lines: false,
                inlined: false,
            });
        }
        index
    }

    /// The tables, in an otherwise empty profile.
    pub(super) fn finish(self) -> Profile {
        let mapping = self.mappings.iter().enumerate().map(|(index, module)| module.mapping(index));
        Profile {
            mapping: mapping.collect(),
            location: self.locations,
            function: self.functions,
            string_table: self.strings.list,
            ..Profile::default()
        }
    }
}

impl Module {
    /// It covers the part of the file in which there are locations: a reader takes the segment
    /// that the mapping begins in.
    fn mapping(&self, index: usize) -> Mapping {
        let base = base(index).unwrap_or(0);
        let (low, high) = self.used.unwrap_or((0, 0));
        let low = low - low % PAGE;
        Mapping {
            id: index as u64 + 1,
            memory_start: base + low,
            memory_limit: base + high - high % PAGE + PAGE,
            file_offset: if self.symbols.is_empty() { low } else { 0 },
            filename: self.filename,
            build_id: self.build_id,
            has_functions: self.functions,
            has_filenames: self.filenames,
            has_line_numbers: self.lines,
            has_inline_frames: self.inlined,
        }
    }
}

/// Where the range of a mapping begins; `None` once they would reach addresses that readers
/// take for the kernel's.
fn base(index: usize) -> Option<u64> {
    let number = index as u64 + 1;
    (number < 1 << (63 - SPAN_BITS)).then_some(number << SPAN_BITS)
}

fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}
