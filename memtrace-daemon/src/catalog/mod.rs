//! The catalog: which functions of which libraries give and take memory, as data.
//!
//! A new function of a known form is one new row of a document. The catalog knows neither aya nor
//! how a row is attached.

mod check;
mod declared;
mod document;

use std::sync::{LazyLock, OnceLock};

pub use document::{AllocatorRow, FreeRow};
use memtrace_common::{
    Domain, Family, FunctionId, FunctionKind, FunctionSpec, KMALLOC, KMEM_CACHE_ALLOC, PointerClass,
};

/// A library that the catalog has functions of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Library {
    /// Name in reports and metrics, such as `libcudart`.
    pub name: &'static str,
    /// What its DT_SONAME begins with, such as `libcudart.so`.
    pub soname_prefix: &'static str,
    /// Which calls, nested in which, are one allocation.
    pub family: Family,
}

/// One function of the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its id in maps and records.
    pub id: FunctionId,
    /// Its library.
    pub library: Library,
    /// Its exported symbol, without version; of a static probe `provider:name`.
    pub symbol: &'static str,
    /// The domain that it is booked in.
    pub domain: Domain,
    /// How its calls are read.
    pub spec: FunctionSpec,
}

impl Function {
    /// Whether it gives memory (else it takes it back).
    #[must_use]
    pub const fn allocates(&self) -> bool {
        self.spec.kind == FunctionKind::Allocate as u8
    }

    /// Whether it makes, retains or ends a context, which is followed whatever is booked.
    #[must_use]
    pub const fn makes_context(&self) -> bool {
        self.spec.class == PointerClass::Context as u8
            || self.spec.class == PointerClass::Primary as u8
    }

    /// Whether it says which device or context a thread is in, or that what is bound to one is
    /// gone.
    #[must_use]
    pub const fn is_about_contexts(&self) -> bool {
        self.makes_context()
            || self.spec.kind == FunctionKind::Select as u8
            || self.spec.kind == FunctionKind::Reset as u8
    }
}

/// Libraries and their functions.
#[derive(Clone, Debug, Default)]
struct Catalog {
    libraries: Vec<Library>,
    /// By ascending id.
    functions: Vec<Function>,
    /// Static probes, the same.
    probes: Vec<Function>,
    /// By id: the place among the functions, or among the static probes behind them. Each record is
    /// asked for its function.
    places: Vec<Option<u16>>,
}

impl Catalog {
    /// Puts everything in order, once all is there.
    fn seal(mut self) -> Self {
        self.functions.sort_by_key(|function| function.id);
        self.probes.sort_by_key(|probe| probe.id);
        self.places.clear();
        for (place, function) in self.functions.iter().chain(&self.probes).enumerate() {
            let id = usize::from(function.id);
            if id >= self.places.len() {
                self.places.resize(id + 1, None);
            }
            if let Some(known) = self.places.get_mut(id) {
                *known = u16::try_from(place).ok();
            }
        }
        self
    }
}

/// memtrace's own documents.
const DOCUMENTS: [&str; 5] = [
    include_str!("cuda.toml"),
    include_str!("libraries.toml"),
    include_str!("hip.toml"),
    include_str!("rocm.toml"),
    include_str!("torch.toml"),
];

/// memtrace's own catalog. A test reads it, so that a version that cannot is never built.
static CATALOG: LazyLock<Catalog> = LazyLock::new(|| Catalog::read(&DOCUMENTS).unwrap_or_default());

/// The catalog with what the configuration declares, once that is known.
static DECLARED: OnceLock<Catalog> = OnceLock::new();

fn catalog() -> &'static Catalog {
    DECLARED.get().unwrap_or(&CATALOG)
}

/// Adds functions to the catalog, for good: at start, before anything is attached.
///
/// # Errors
/// What makes no sense, in one line; or that it was done before.
pub fn declare(allocators: &[AllocatorRow], frees: &[FreeRow]) -> Result<(), String> {
    if allocators.is_empty() && frees.is_empty() {
        return Ok(());
    }
    let declared = CATALOG.with(allocators, frees)?;
    DECLARED.set(declared).map_err(|_| "functions are declared once, at start".to_owned())
}

/// The domains that functions are declared in, with one function of each; nothing is added.
///
/// # Errors
/// What makes no sense, in one line.
pub fn declared_domains(
    allocators: &[AllocatorRow],
    frees: &[FreeRow],
) -> Result<Vec<(Domain, &'static str)>, String> {
    let catalog = CATALOG.with(allocators, frees)?;
    let gives = catalog.declared().filter(|function| function.allocates());
    Ok(gives.map(|function| (function.domain, function.symbol)).collect())
}

/// All functions that are found by their symbols, in the order of their ids.
#[must_use]
pub fn library_functions() -> &'static [Function] {
    &catalog().functions
}

/// All static probes, in the order of their ids.
#[must_use]
pub fn static_probes() -> &'static [Function] {
    &catalog().probes
}

/// All that is booked by calls: library functions and static probes.
pub fn booked() -> impl Iterator<Item = &'static Function> {
    library_functions().iter().chain(static_probes())
}

/// The library function or static probe with this id.
#[must_use]
pub fn library_function(id: FunctionId) -> Option<&'static Function> {
    let Catalog { functions, probes, places, .. } = catalog();
    let place = usize::from((*places.get(usize::from(id))?)?);
    functions.get(place).or_else(|| probes.get(place.checked_sub(functions.len())?))
}

/// The library that a DT_SONAME names, if the catalog has functions of it.
#[must_use]
pub fn library_of_soname(soname: &str) -> Option<Library> {
    catalog().libraries.iter().find(|library| soname.starts_with(library.soname_prefix)).copied()
}

/// Whether anything is probed for a domain.
#[must_use]
pub fn has_probes(domain: &Domain) -> bool {
    *domain == Domain::Kernel
        || booked().any(|function| function.domain == *domain && function.allocates())
}

/// The name and domain of any function on the books, the kernel's included.
#[must_use]
pub fn name_and_domain(id: FunctionId) -> Option<(&'static str, Domain)> {
    match id {
        KMALLOC => Some(("kmalloc", Domain::Kernel)),
        KMEM_CACHE_ALLOC => Some(("kmem_cache_alloc", Domain::Kernel)),
        _ => library_function(id).map(|function| (function.symbol, function.domain)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_are_right() {
        let catalog = Catalog::read(&DOCUMENTS).unwrap();
        assert_eq!(catalog.functions, library_functions());
        assert_eq!(catalog.probes, static_probes());
        assert!(!catalog.functions.is_empty() && !catalog.probes.is_empty());
    }

    #[test]
    fn ids_in_recordings_are_what_they_were() {
        let names = [
            "cudaMalloc",
            "cudaMallocManaged",
            "cudaMallocPitch",
            "cudaFree",
            "cudaMallocHost",
            "cudaHostAlloc",
            "cudaFreeHost",
            "cuMemAlloc_v2",
            "cuMemAllocManaged",
            "cuMemFree_v2",
            "cuMemAllocHost_v2",
            "cuMemHostAlloc",
            "cuMemFreeHost",
        ];
        for (id, name) in (memtrace_common::FIRST_LIBRARY_FUNCTION..).zip(names) {
            assert_eq!(library_function(id).map(|function| function.symbol), Some(name));
        }
    }

    #[test]
    fn ids_find_their_rows() {
        for function in booked() {
            assert_eq!(library_function(function.id), Some(function));
            assert_eq!(function.spec.domain(), Some(function.domain));
        }
        assert_eq!(library_function(0), None);
    }

    #[test]
    fn a_soname_names_its_library_and_a_lookalike_does_not() {
        assert_eq!(library_of_soname("libcudart.so.12").map(|l| l.name), Some("libcudart"));
        assert_eq!(library_of_soname("libcuda.so.1").map(|l| l.name), Some("libcuda"));
        assert_eq!(library_of_soname("libcudadebugger.so.1"), None);
    }
}
