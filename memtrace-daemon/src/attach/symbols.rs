//! Finds the catalog's functions in an ELF file, as offsets that can be probed.
//!
//! Must never give an offset that is not the beginning of a function in executable bytes: a
//! probe elsewhere changes the target's instructions. So: `STT_FUNC` only, never an IFUNC
//! resolver (it runs once, elsewhere), never a Go function (its stacks move, and a return
//! probe would crash it).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;

use memtrace_common::FunctionId;
use object::LittleEndian;
use object::elf::{self, SectionHeader64, Sym64, Versym};
use object::read::ReadRef;
use object::read::elf::{FileHeader, SectionHeader, Sym};

use super::elf::{Bounded, ENDBR64, ElfError, Image, Source};
use crate::catalog::Function;

/// Bytes read of a file to find symbols: tables of the largest debug builds are near.
const SYMBOL_BUDGET: u64 = 512 << 20;
/// The same to find a runtime within a file: whatever a process that runs the driver maps is looked
/// through, and where it is not the driver's own calls are seen.
const WITHIN_BUDGET: u64 = 64 << 20;
/// Section headers of a file; real ones have some 40.
const MAX_SECTIONS: usize = 65_536;

/// Where the catalog's functions are in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Points {
    /// Functions and the file offsets to probe, one a place.
    pub points: Vec<(FunctionId, u64)>,
    /// Functions that are another name of a place in `points`.
    pub aliases: Vec<FunctionId>,
    /// Symbols that the file does not have.
    pub missing: Vec<&'static str>,
}

/// Finds functions among the symbols that a file exports, and with `own` also among its own.
///
/// # Errors
/// That it cannot be read, is no ELF file, or is broken.
pub fn find<'f>(
    file: &File,
    functions: impl IntoIterator<Item = &'f Function>,
    own: bool,
) -> Result<Points, ElfError> {
    let functions: Vec<&Function> = functions.into_iter().collect();
    let source = Source::new(file, SYMBOL_BUDGET)?;
    let image = Image::read(&source)?;
    let sections = sections(&image)?;
    let mut found = Found::default();
    let tables: &[u32] = if own { &[elf::SHT_DYNSYM, elf::SHT_SYMTAB] } else { &[elf::SHT_DYNSYM] };
    for kind in tables {
        // What is exported wins over what has the same name inside.
        let wanted = functions
            .iter()
            .filter(|function| !found.places.contains_key(function.symbol.as_bytes()))
            .map(|function| function.symbol.as_bytes())
            .collect::<Vec<_>>();
        if let Some(table) = Table::read(&image, sections, *kind)? {
            table.search(&image, &wanted, &mut found);
        }
    }
    Ok(found.points(&image, &functions))
}

/// Finds functions among the symbols that a file has for itself alone: none that it exports. Cheap
/// where it is stripped, as most files are: then only its section headers are read.
///
/// # Errors
/// As [`find`].
pub fn find_unexported<'f>(
    file: &File,
    functions: impl IntoIterator<Item = &'f Function>,
) -> Result<Points, ElfError> {
    let functions: Vec<&Function> = functions.into_iter().collect();
    let wanted: Vec<&[u8]> = functions.iter().map(|function| function.symbol.as_bytes()).collect();
    let source = Source::new(file, WITHIN_BUDGET)?;
    let image = Image::read(&source)?;
    let sections = sections(&image)?;
    let mut found = Found::default();
    if let Some(table) = Table::read(&image, sections, elf::SHT_SYMTAB)? {
        table.search(&image, &wanted, &mut found);
    }
    if !found.places.is_empty()
        && let Some(table) = Table::read(&image, sections, elf::SHT_DYNSYM)?
    {
        let mut exported = Found::default();
        table.search(&image, &wanted, &mut exported);
        found.places.retain(|name, _| !exported.places.contains_key(name));
    }
    Ok(found.points(&image, &functions))
}

fn sections<'a>(image: &Image<'a>) -> Result<&'a [SectionHeader64<LittleEndian>], ElfError> {
    let sections = image
        .header
        .section_headers(image.endian, image.data)
        .map_err(|_| ElfError::Broken("its section headers lie outside of it"))?;
    if sections.len() > MAX_SECTIONS {
        return Err(ElfError::Broken("it has too many sections"));
    }
    Ok(sections)
}

/// Addresses of symbols found, and whether their version is the default one.
#[derive(Default)]
struct Found<'f> {
    places: HashMap<&'f [u8], (u64, bool)>,
}

impl Found<'_> {
    fn points(&self, image: &Image<'_>, functions: &[&Function]) -> Points {
        let mut points = Points::default();
        for function in functions {
            let offset = self
                .places
                .get(function.symbol.as_bytes())
                .and_then(|(address, _)| image.code_offset(*address));
            let Some(offset) = offset else {
                points.missing.push(function.symbol);
                continue;
            };
            let offset = behind_endbr64(image.data, offset);
            if points.points.iter().any(|(_, taken)| *taken == offset) {
                points.aliases.push(function.id);
            } else {
                points.points.push((function.id, offset));
            }
        }
        points
    }
}

/// Skips a leading `endbr64`: arguments and return address are the same behind it.
fn behind_endbr64(data: Bounded<'_>, offset: u64) -> u64 {
    match data.read_bytes_at(offset, ENDBR64.len() as u64) {
        Ok(bytes) if bytes == ENDBR64 => offset + ENDBR64.len() as u64,
        _ => offset,
    }
}

/// A symbol table with its names and versions.
struct Table<'a> {
    symbols: &'a [Sym64<LittleEndian>],
    names: &'a [u8],
    versions: &'a [Versym<LittleEndian>],
}

impl<'a> Table<'a> {
    fn read(
        image: &Image<'a>,
        sections: &'a [SectionHeader64<LittleEndian>],
        kind: u32,
    ) -> Result<Option<Self>, ElfError> {
        let (endian, data) = (image.endian, image.data);
        let of_kind =
            |kind: u32| sections.iter().find(move |section| section.sh_type(endian) == kind);
        let Some(section) = of_kind(kind) else { return Ok(None) };
        let broken = |_| ElfError::Broken("its symbol table lies outside of it or is too large");
        let symbols = section.data_as_array(endian, data).map_err(broken)?;
        let names = sections
            .get(section.sh_link(endian) as usize)
            .ok_or(ElfError::Broken("its symbol table has no names"))?
            .data(endian, data)
            .map_err(broken)?;
        let versions = match of_kind(elf::SHT_GNU_VERSYM) {
            Some(section) if kind == elf::SHT_DYNSYM => {
                section.data_as_array(endian, data).map_err(broken)?
            }
            _ => &[],
        };
        Ok(Some(Self { symbols, names, versions }))
    }

    fn search<'f>(&self, image: &Image<'_>, wanted: &[&'f [u8]], found: &mut Found<'f>) {
        let endian = image.endian;
        let wanted: HashMap<&[u8], &'f [u8]> = wanted.iter().map(|name| (*name, *name)).collect();
        for (index, symbol) in self.symbols.iter().enumerate() {
            if symbol.st_type() != elf::STT_FUNC || symbol.st_shndx(endian) == elf::SHN_UNDEF {
                continue;
            }
            let (name, tagged_default) = self.name(symbol.st_name(endian) as usize);
            let Some(name) = wanted.get(name) else { continue };
            let address = symbol.st_value(endian);
            if image.code_offset(address).is_none() {
                continue;
            }
            let hidden = self
                .versions
                .get(index)
                .is_some_and(|version| version.0.get(endian) & elf::VERSYM_HIDDEN != 0);
            let default = tagged_default && !hidden;
            match found.places.entry(name) {
                Entry::Vacant(entry) => _ = entry.insert((address, default)),
                // Several versions of one symbol: callers that are linked today get the
                // default one.
                Entry::Occupied(mut entry) if default && !entry.get().1 => {
                    entry.insert((address, true));
                }
                Entry::Occupied(_) => {}
            }
        }
    }

    /// A symbol's name without its version, and whether that version is no older one: linkers
    /// write `name@@version` for the default and `name@version` for others into `.symtab`.
    fn name(&self, offset: usize) -> (&'a [u8], bool) {
        let rest = self.names.get(offset..).unwrap_or_default();
        let name = rest.split(|byte| *byte == 0).next().unwrap_or_default();
        match name.iter().position(|byte| *byte == b'@') {
            Some(at) => (
                name.get(..at).unwrap_or_default(),
                name.get(at..).is_some_and(|version| version.starts_with(b"@@")),
            ),
            None => (name, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::elf::open;
    use crate::attach::test_files::{Library, nm, symbols};
    use crate::catalog::{library_function, library_functions};

    fn runtime() -> impl Iterator<Item = &'static Function> {
        library_functions().iter().filter(|function| function.library.name == "libcudart")
    }

    fn offset_of(points: &Points, symbol: &str) -> u64 {
        points
            .points
            .iter()
            .find(|(id, _)| library_function(*id).unwrap().symbol == symbol)
            .unwrap()
            .1
    }

    #[test]
    fn every_exported_symbol_is_found_where_nm_sees_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = Library { arguments: &["-fcf-protection=none"], ..Library::default() }
            .build(directory.path(), "lib.so");
        let points = find(&open(&path).unwrap(), library_functions(), false).unwrap();
        assert_eq!(points.missing, Vec::<&str>::new());
        assert_eq!(points.points.len(), symbols().count());
        // The linker puts code at the same offset as its address, or a page or more behind;
        // a library this small has them equal.
        for symbol in symbols() {
            assert_eq!(offset_of(&points, symbol), nm(&path, symbol), "{symbol}");
        }
    }

    #[test]
    fn a_leading_endbr64_is_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let path = Library { arguments: &["-fcf-protection=full"], ..Library::default() }
            .build(directory.path(), "lib.so");
        let points = find(&open(&path).unwrap(), runtime(), false).unwrap();
        assert_eq!(offset_of(&points, "cudaMalloc"), nm(&path, "cudaMalloc") + 4);
    }

    #[test]
    fn the_default_version_wins() {
        let directory = tempfile::tempdir().unwrap();
        let source = r#"
            int old_malloc(void) { return 1; }
            int new_malloc(void) { return 2; }
            __asm__(".symver old_malloc,cudaMalloc@V1");
            __asm__(".symver new_malloc,cudaMalloc@@V2");
        "#;
        let script = directory.path().join("versions");
        std::fs::write(&script, "V1 { global: cudaMalloc; local: *; }; V2 { } V1;").unwrap();
        let script = format!("-Wl,--version-script={}", script.display());
        let path = Library {
            source: Some(source),
            arguments: &[&script, "-fcf-protection=none"],
            ..Library::default()
        }
        .build(directory.path(), "lib.so");
        let points = find(&open(&path).unwrap(), runtime(), false).unwrap();
        assert_eq!(offset_of(&points, "cudaMalloc"), nm(&path, "new_malloc"));
    }

    #[test]
    fn resolvers_imports_and_data_are_not_functions() {
        let directory = tempfile::tempdir().unwrap();
        let source = r#"
            static int real(void) { return 0; }
            static void *resolve(void) { return real; }
            int cudaMalloc(void) __attribute__((ifunc("resolve")));
            int cudaFree = 7;
            extern int cudaHostAlloc(void);
            int call(void) { return cudaHostAlloc(); }
        "#;
        let path = Library { source: Some(source), ..Library::default() }
            .build(directory.path(), "lib.so");
        let points = find(&open(&path).unwrap(), runtime(), true).unwrap();
        assert_eq!(points.points, []);
        assert!(points.missing.contains(&"cudaMalloc"));
        assert!(points.missing.contains(&"cudaFree"));
        assert!(points.missing.contains(&"cudaHostAlloc"));
    }

    #[test]
    fn a_functions_other_name_is_an_alias() {
        let directory = tempfile::tempdir().unwrap();
        let source = r#"
            int cudaMallocHost(void) { return 0; }
            int cudaHostAlloc(void) __attribute__((alias("cudaMallocHost")));
        "#;
        let path = Library { source: Some(source), ..Library::default() }
            .build(directory.path(), "lib.so");
        let points = find(&open(&path).unwrap(), runtime(), false).unwrap();
        assert_eq!(points.points.len(), 1);
        assert_eq!(points.aliases.len(), 1);
    }

    #[test]
    fn a_programs_own_functions_are_found_only_when_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let source = "static __attribute__((noinline, used)) int cudaMalloc(void) { return 0; }\n\
                      int other(void) { return cudaMalloc(); }";
        let path = Library { source: Some(source), ..Library::default() }
            .build(directory.path(), "lib.so");
        assert_eq!(find(&open(&path).unwrap(), runtime(), false).unwrap().points, []);
        assert_eq!(find(&open(&path).unwrap(), runtime(), true).unwrap().points.len(), 1);
    }

    #[test]
    fn what_a_file_exports_is_not_among_what_it_has_for_itself() {
        let directory = tempfile::tempdir().unwrap();
        let source = "__attribute__((visibility(\"hidden\"))) int cudaMalloc(void) { return 0; }\n\
                      int cudaFree(void) { return 1; }";
        let whole = Library { source: Some(source), ..Library::default() };
        let path = whole.build(directory.path(), "lib.so");
        let points = find_unexported(&open(&path).unwrap(), runtime()).unwrap();
        assert_eq!(points.points.len(), 1);
        assert!(!points.missing.contains(&"cudaMalloc") && points.missing.contains(&"cudaFree"));
        let path = Library { arguments: &["-s"], ..whole }.build(directory.path(), "stripped.so");
        assert_eq!(find_unexported(&open(&path).unwrap(), runtime()).unwrap().points, []);
    }
}
