//! Functions, files and lines of addresses in files. blazesym reads symbol tables and debug
//! information; here are the limits around it, because files are hostile and large, and the
//! daemon's memory is small.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blazesym::symbolize::evict::{self, Evict};
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Reason, Sym, Symbolized, Symbolizer};
use rustc_hash::{FxHashMap, FxHashSet};

use super::audit;
use super::demangle::demangled;
use super::files::{FileKey, OpenFile};
use super::meter;
use super::scan;
use crate::host::text::text;
use crate::record::code_at;

/// Files that are kept open for their symbols. Each takes two descriptors at most.
const MAX_FILES: usize = 48;
/// Memory that the symbols of all open files may take, bytes, as measured while they
/// are read; the file asked for least goes first. Half of what the daemon has for its caches.
const BUDGET: u64 = 24 << 20;
/// Symbol tables up to this size, bytes, get an index, which takes a third of it; in larger
/// ones symbols are searched for from one end to the other.
const MAX_INDEXED: u64 = 36 << 20;
/// A file that nothing was named in for this long is closed: an open file keeps its file
/// system from being unmounted.
const CLOSE_AFTER: Duration = Duration::from_secs(60);
/// Most functions inlined at one place that are shown.
const MAX_INLINED: usize = 16;
/// Most names found by search that are remembered.
const MAX_SEARCHED: usize = 8_192;
/// Most files remembered whose debug information does not fit, and that were looked through.
const MAX_HEAVY: usize = 4_096;
const MAX_AUDITED: usize = 4_096;

/// A function at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, as people write it.
    pub name: String,
    /// Source file.
    pub file: Option<String>,
    /// Source line.
    pub line: Option<u32>,
}

/// Reads symbols, and holds what it has read.
pub struct Symbols {
    symbolizer: Symbolizer,
    open: Vec<Held>,
    /// Files whose debug information alone takes more than there is room for.
    heavy: FxHashSet<FileKey>,
    /// Files whose debug information was looked through, and whether it may be read.
    audited: FxHashMap<FileKey, bool>,
    searched: FxHashMap<(FileKey, u64), Option<String>>,
}

/// A file that the symbolizer has open. It must be evicted before the descriptor is closed.
struct Held {
    file: Arc<OpenFile>,
    used: Instant,
    /// Names asked for, of late: each eviction halves it.
    uses: u32,
    /// What it has taken of memory, bytes.
    cost: u64,
}

impl Symbols {
    /// Has read nothing yet.
    #[must_use]
    pub fn new() -> Self {
        // The files are told apart and evicted here, so blazesym need not look again; it must
        // not look for files by names that other files have in them; and names are written
        // with a bound.
        let symbolizer = Symbolizer::builder()
            .enable_auto_reload(false)
            .enable_demangling(false)
            .set_debug_dirs(Some(std::iter::empty::<&Path>()))
            .build();
        let (open, heavy, audited, searched) = Default::default();
        Self { symbolizer, open, heavy, audited, searched }
    }

    /// The functions at an offset in a file, innermost first: all but the last are inlined.
    /// `also` are offsets that will be asked for next; without `lines` only symbols are read.
    ///
    /// # Errors
    /// Why there is none, for a frame's reason.
    pub fn name(
        &mut self,
        file: &Arc<OpenFile>,
        offset: u64,
        also: &[u64],
        lines: bool,
    ) -> Result<Vec<Function>, String> {
        if let Some(why) = file.facts.refused {
            return Err(format!("{}: {why}", file.module));
        }
        // The call is before the return address: so is its line.
        let address = |offset: u64| file.facts.address(code_at(offset));
        let Some(at) = address(offset) else {
            return Err(format!("{} loads nothing from there", file.module));
        };
        self.hold(file);
        let before = meter::held();
        let also: Vec<u64> = also.iter().filter_map(|offset| address(*offset)).collect();
        let result = self.look_up(file, at, &also, lines);
        let cost = u64::try_from(meter::held().saturating_sub(before)).unwrap_or(0);
        self.account(file, cost);
        result
    }

    fn look_up(
        &mut self,
        file: &OpenFile,
        address: u64,
        also: &[u64],
        lines: bool,
    ) -> Result<Vec<Function>, String> {
        let mut why = None;
        for part in file.separate.as_deref().into_iter().chain([file]) {
            if lines && self.may_debug(part) {
                match self.ask(part, address, true) {
                    Ok(Symbolized::Sym(symbol)) => {
                        return Ok(self.with_lines(part, address, &symbol));
                    }
                    Ok(Symbolized::Unknown(reason)) => why = Some(unknown(file, reason)),
                    // Damaged or unknown debug information; the symbols may be whole.
                    Err(_) => {}
                }
            }
            match self.symbol(part, address, also) {
                Ok(Some(name)) => return Ok(vec![Function { name, file: None, line: None }]),
                Ok(None) => {}
                Err(reason) => why = Some(reason),
            }
        }
        let why = why.unwrap_or_else(|| unknown(file, Reason::UnknownAddr));
        Err(match &file.note {
            Some(note) => format!("{why} ({note})"),
            None => why,
        })
    }

    /// Whether debug information is read in a file: where that is bounded, and opens nothing
    /// by a name that the file has in it.
    fn may_debug(&mut self, file: &OpenFile) -> bool {
        file.facts.debug
            && !self.heavy.contains(&file.key)
            && file.facts.link.is_none()
            && !searches(file)
            // What is compressed may be more than it says.
            && (file.trusted || !file.facts.compressed)
            && file.facts.alternate.as_deref().is_none_or(|path| harmless(file, path))
            && self.passes(file)
    }

    fn passes(&mut self, file: &OpenFile) -> bool {
        if self.audited.len() >= MAX_AUDITED {
            self.audited.clear();
        }
        let passes = || audit::passes(file.file(), &file.facts, file.trusted);
        *self.audited.entry(file.key).or_insert_with(passes)
    }

    fn ask(&self, file: &OpenFile, address: u64, debug: bool) -> blazesym::Result<Symbolized<'_>> {
        let mut source = Elf::new(file.path());
        source.debug_syms = debug;
        self.symbolizer.symbolize_single(&Source::Elf(source), Input::VirtOffset(address))
    }

    /// The function's name by symbols alone.
    fn symbol(
        &mut self,
        file: &OpenFile,
        address: u64,
        also: &[u64],
    ) -> Result<Option<String>, String> {
        if searches(file) {
            return Ok(self.search(file, address, also));
        }
        match self.ask(file, address, false) {
            Ok(Symbolized::Sym(symbol)) => Ok(Some(demangled(&symbol.name))),
            Ok(Symbolized::Unknown(reason)) => Err(unknown(file, reason)),
            Err(error) => Err(format!("symbols of {} cannot be read: {error}", file.module)),
        }
    }

    fn search(&mut self, file: &OpenFile, address: u64, also: &[u64]) -> Option<String> {
        if let Some(known) = self.searched.get(&(file.key, address)) {
            return known.clone();
        }
        let mut addresses: Vec<u64> = also.to_vec();
        addresses.push(address);
        addresses.retain(|address| !self.searched.contains_key(&(file.key, *address)));
        if self.searched.len() + addresses.len() > MAX_SEARCHED {
            self.searched = FxHashMap::default();
        }
        for table in &file.facts.tables {
            let found = scan::names(file.file(), table, &addresses);
            for (address, name) in addresses.iter().zip(found) {
                let known = self.searched.entry((file.key, *address)).or_default();
                *known = known.take().or_else(|| name.as_deref().map(demangled));
            }
        }
        self.searched.get(&(file.key, address)).cloned().flatten()
    }

    /// The inlined functions, innermost first, and the function that they are in.
    fn with_lines(&self, file: &OpenFile, address: u64, symbol: &Sym<'_>) -> Vec<Function> {
        let function = |name: String, code: Option<&CodeInfo<'_>>| Function {
            name,
            file: code.map(|code| text(code.to_path().as_os_str().as_bytes())),
            line: code.and_then(|code| code.line),
        };
        let mut name = demangled(&symbol.name);
        // Debug information cut to lines has bare names; symbols have whole paths.
        if !name.contains("::")
            && let Ok(Symbolized::Sym(whole)) = self.ask(file, address, false)
        {
            let whole = demangled(&whole.name);
            if name.is_empty() || whole.contains("::") {
                name = whole;
            }
        }
        let inlined = symbol.inlined.iter().rev().take(MAX_INLINED);
        let inlined =
            inlined.map(|inner| function(demangled(&inner.name), inner.code_info.as_ref()));
        let mut functions: Vec<_> = inlined.collect();
        functions.push(function(name, symbol.code_info.as_deref()));
        functions
    }

    fn hold(&mut self, file: &Arc<OpenFile>) {
        let now = Instant::now();
        if let Some(held) = self.open.iter_mut().find(|held| held.file.key == file.key) {
            held.used = now;
            held.uses = held.uses.saturating_add(1);
            return;
        }
        if self.open.len() >= MAX_FILES {
            self.evict(|_| true);
        }
        self.open.push(Held { file: Arc::clone(file), used: now, uses: 1, cost: 0 });
    }

    /// Books what reading a file took, and makes room where it was too much.
    fn account(&mut self, file: &OpenFile, cost: u64) {
        let Some(held) = self.open.iter_mut().find(|held| held.file.key == file.key) else {
            return;
        };
        held.cost = held.cost.saturating_add(cost);
        let mut evicted = false;
        if held.cost > BUDGET {
            if self.heavy.len() >= MAX_HEAVY {
                self.heavy.clear();
            }
            let separate = file.separate.as_deref().map(|file| file.key);
            self.heavy.extend(separate.into_iter().chain([file.key]));
            self.close(|held| held.file.key == file.key);
            evicted = true;
        }
        while self.open.iter().map(|held| held.cost).sum::<u64>() > BUDGET {
            if !self.evict(|held| held.cost > 0 && held.file.key != file.key) {
                break;
            }
            evicted = true;
        }
        if evicted {
            crate::heap::give_back();
        }
    }

    /// Closes the files that nothing was named in for long.
    pub fn close_unused(&mut self, now: Instant) {
        let before = self.open.len();
        self.close(|held| now.duration_since(held.used) > CLOSE_AFTER);
        if self.open.len() < before {
            crate::heap::give_back();
        }
    }

    /// Forgets a file.
    pub fn forget(&mut self, key: FileKey) {
        self.close(|held| held.file.key == key);
    }

    /// Closes the file, of these, that is asked for least: not simply the oldest, because a
    /// stack goes through many files, and the one that all stacks have is the dearest to read
    /// again. False where there is none of these.
    fn evict(&mut self, which: impl Fn(&Held) -> bool) -> bool {
        let least = self.open.iter().filter(|held| which(held));
        let least = least.min_by_key(|held| (held.uses, held.used)).map(|held| held.file.key);
        let Some(least) = least else { return false };
        self.close(|held| held.file.key == least);
        self.open.iter_mut().for_each(|held| held.uses /= 2);
        true
    }

    fn close(&mut self, which: impl Fn(&Held) -> bool) {
        for held in self.open.extract_if(.., |held| which(held)) {
            for part in held.file.separate.as_deref().into_iter().chain([&*held.file]) {
                let evict = Evict::Elf(evict::Elf::new(part.path()));
                // Cannot fail for a file: it only forgets.
                let _ = self.symbolizer.evict(&evict);
            }
        }
    }
}

/// Whether symbols are searched for, because an index would be too large, or because blazesym
/// stumbles over symbols in a compressed file of their own.
fn searches(file: &OpenFile) -> bool {
    file.facts.symbol_bytes() > MAX_INDEXED || file.facts.mini && !file.facts.full_symbols
}

/// Whether what blazesym would open by a name in the file is a file that it may open, or not
/// there.
fn harmless(file: &OpenFile, path: &[u8]) -> bool {
    let Ok(linker) = std::fs::canonicalize(file.path()) else { return true };
    let target = linker.with_file_name(std::ffi::OsStr::from_bytes(path));
    match std::fs::metadata(target) {
        Ok(target) => target.is_file() && target.uid() == 0 && target.mode() & 0o022 == 0,
        Err(_) => true,
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
