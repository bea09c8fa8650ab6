//! The files that unwinding has mapped, and the rules that were looked up in them. Bounded by
//! bytes and by number; what was used longest ago goes first.

use std::fs::File;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::bytes::Bytes;
use super::code::CALL;
use super::image::Image;
use super::look_up::{self, Context, Indexes};
use super::rule::Rule;
use super::{AddressSpace, UnwinderSizes, vdso};
use crate::stacks::files::{FileKey, OpenFile};
use crate::stacks::sigbus;

/// Most memory of our own, bytes.
pub const MAX_BYTES: usize = 8 << 20;
/// Most files mapped at a time.
pub const MAX_FILES: usize = 1_024;
/// Most rules of a file: where its table would grow beyond 2 MiB, it starts over.
pub const MAX_RULES: usize = 57_344;
/// A file that nothing was looked up in for this long is closed: a mapped file keeps its file
/// system from being unmounted.
const CLOSE_AFTER: Duration = Duration::from_secs(60);
/// A rule in its table, bytes, with the table's control byte and what is free at least.
const A_RULE: usize = (size_of::<(u64, Rule)>() + 1) * 8 / 7;

/// Files and rules.
#[derive(Debug)]
pub struct Files {
    held: FxHashMap<Id, Held>,
    bytes: usize,
    now: Instant,
}

/// Which file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Id {
    /// A file.
    File(FileKey),
    /// The vDSO.
    Vdso,
}

#[derive(Debug)]
struct Held {
    /// Or why it is not read.
    loaded: Result<Box<Loaded>, &'static str>,
    /// By offset, doubled, plus one where the offset is exact.
    rules: FxHashMap<u64, Rule>,
    /// Memory of the rules beside their table.
    heap: usize,
    used: Instant,
}

#[derive(Debug)]
struct Loaded {
    image: Image,
    indexes: Indexes,
}

impl Default for Files {
    fn default() -> Self {
        Self { held: FxHashMap::default(), bytes: 0, now: Instant::now() }
    }
}

impl Files {
    /// What is looked up from now on is used now.
    pub fn tick(&mut self) {
        self.now = Instant::now();
    }

    /// The rule of an offset in a file; `exact`: it is no call's.
    pub fn rule(
        &mut self,
        context: &mut Context,
        space: &mut dyn AddressSpace,
        file: Option<&OpenFile>,
        offset: u64,
        exact: bool,
    ) -> Result<Rule, String> {
        let id = id(file);
        let key = offset << 1 | u64::from(exact);
        if let Some(held) = self.held.get_mut(&id) {
            // What cannot be read is tried again after a while.
            if held.loaded.is_ok() {
                held.used = self.now;
            }
            if let Some(rule) = held.rules.get(&key) {
                return Ok(rule.clone());
            }
        }
        space.begin_reading(file)?;
        let rule = self.look_up(context, file, offset, exact);
        space.end_reading();
        match rule {
            Ok(rule) => {
                self.keep(id, key, &rule);
                Ok(rule)
            }
            Err(why) => Err(format!("{} {why}", name(file))),
        }
    }

    fn look_up(
        &mut self,
        context: &mut Context,
        file: Option<&OpenFile>,
        offset: u64,
        exact: bool,
    ) -> Result<Rule, &'static str> {
        let id = id(file);
        let before = sigbus::replaced();
        if !self.held.contains_key(&id) {
            self.open(id, file);
        }
        let Some(held) = self.held.get_mut(&id) else { return Err("is not open") };
        let loaded = held.loaded.as_mut().map_err(|why| *why)?;
        let bytes = loaded.heap();
        let rule = look_up::rule(&mut loaded.image, &mut loaded.indexes, context, offset, exact);
        self.bytes = self.bytes + loaded.heap() - bytes;
        self.uncut(id, before)?;
        Ok(rule)
    }

    /// Fails a file of which pages were missing while it was read.
    fn uncut(&mut self, id: Id, before: u64) -> Result<(), &'static str> {
        if sigbus::replaced() == before {
            return Ok(());
        }
        let why = "was cut short while it was read";
        if let Some(held) = self.held.get_mut(&id) {
            let was = held.bytes();
            (held.loaded, held.rules, held.heap) = (Err(why), FxHashMap::default(), 0);
            self.bytes = self.bytes + held.bytes() - was;
        }
        Err(why)
    }

    fn keep(&mut self, id: Id, key: u64, rule: &Rule) {
        let Some(held) = self.held.get_mut(&id) else { return };
        let was = held.bytes();
        if held.rules.len() >= MAX_RULES {
            (held.rules, held.heap) = (FxHashMap::default(), 0);
        }
        held.heap += rule.heap();
        held.rules.insert(key, rule.clone());
        self.bytes = self.bytes + held.bytes() - was;
        while self.bytes > MAX_BYTES {
            // Mapped files cost nothing: only what was made of them is dropped.
            let others = self.held.iter().filter(|(other, held)| **other != id && held.made() > 0);
            let oldest = others.min_by_key(|(_, held)| held.used).map(|(other, _)| *other);
            self.empty(oldest.unwrap_or(id));
            if oldest.is_none() {
                break;
            }
        }
    }

    /// Drops what was made of a file.
    fn empty(&mut self, id: Id) {
        let Some(held) = self.held.get_mut(&id) else { return };
        let was = held.bytes();
        (held.rules, held.heap) = (FxHashMap::default(), 0);
        if let Ok(loaded) = &mut held.loaded {
            loaded.indexes = Indexes::default();
            loaded.image.unpacked = None;
        }
        self.bytes = self.bytes + held.bytes() - was;
    }

    fn open(&mut self, id: Id, file: Option<&OpenFile>) {
        while self.held.len() >= MAX_FILES {
            let oldest = self.held.iter().min_by_key(|(_, held)| held.used);
            let Some(oldest) = oldest.map(|(id, _)| *id) else { break };
            self.close(oldest);
        }
        let held = Held::load(file, self.now);
        self.bytes += held.bytes();
        self.held.insert(id, held);
    }

    /// The code bytes before an offset in a file.
    pub fn before(
        &mut self,
        space: &mut dyn AddressSpace,
        file: &OpenFile,
        offset: u64,
    ) -> Option<[u8; CALL]> {
        let id = Id::File(file.key);
        let before = sigbus::replaced();
        space.begin_reading(Some(file)).ok()?;
        if !self.held.contains_key(&id) {
            self.open(id, Some(file));
        }
        let loaded = self.held.get(&id).and_then(|held| held.loaded.as_ref().ok());
        let code = loaded.and_then(|loaded| {
            let range = offset.checked_sub(CALL as u64)?..offset;
            loaded.image.bytes.part(&range)?.first_chunk::<CALL>().copied()
        });
        space.end_reading();
        self.uncut(id, before).ok()?;
        code
    }

    /// Closes what nothing was looked up in for a while.
    pub fn close_unused(&mut self, now: Instant) {
        let unused = |held: &Held| now.duration_since(held.used) > CLOSE_AFTER;
        let ids = self.held.iter().filter(|(_, held)| unused(held)).map(|(id, _)| *id);
        let ids: Vec<Id> = ids.collect();
        for id in &ids {
            self.close(*id);
        }
        if !ids.is_empty() {
            self.held.shrink_to_fit();
            crate::heap::give_back();
        }
    }

    /// What is kept.
    pub fn sizes(&self) -> UnwinderSizes {
        let rules = self.held.values().map(|held| held.rules.len()).sum();
        UnwinderSizes { files: self.held.len(), rules, bytes: self.bytes }
    }

    fn close(&mut self, id: Id) {
        if let Some(held) = self.held.remove(&id) {
            self.bytes -= held.bytes();
        }
    }
}

impl Held {
    fn load(file: Option<&OpenFile>, now: Instant) -> Self {
        let loaded =
            load(file).map(|image| Box::new(Loaded { image, indexes: Indexes::default() }));
        Self { loaded, rules: FxHashMap::default(), heap: 0, used: now }
    }

    /// Memory of our own, bytes.
    fn bytes(&self) -> usize {
        let loaded = self.loaded.as_ref().map_or(0, |loaded| loaded.heap());
        size_of::<(Id, Self)>() + loaded + self.rules()
    }

    /// What of it can be made again.
    fn made(&self) -> usize {
        self.rules() + self.loaded.as_ref().map_or(0, |loaded| loaded.made())
    }

    fn rules(&self) -> usize {
        self.heap + self.rules.capacity() * A_RULE
    }
}

impl Loaded {
    fn heap(&self) -> usize {
        size_of::<Self>() + self.image.heap() + self.made()
    }

    fn made(&self) -> usize {
        self.indexes.heap() + self.image.unpacked()
    }
}

fn load(file: Option<&OpenFile>) -> Result<Image, &'static str> {
    let bytes = match file {
        Some(file) => {
            let file = File::open(file.path()).map_err(|_| "cannot be opened again")?;
            Bytes::map(&file).map_err(|_| "cannot be mapped")?
        }
        None => Bytes::Static(vdso::image().ok_or("is not mapped in the tracer")?),
    };
    Image::new(bytes)
}

fn id(file: Option<&OpenFile>) -> Id {
    file.map_or(Id::Vdso, |file| Id::File(file.key))
}

/// What a sentence calls it.
pub fn name(file: Option<&OpenFile>) -> &str {
    file.map_or("[vdso]", |file| &file.module)
}
