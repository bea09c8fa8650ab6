//! The catalog: which functions of which libraries give and take memory, as data.
//!
//! A new function of a known form is one new row. The catalog knows neither aya nor how a
//! row is attached.

mod cuda;
mod row;

use std::sync::LazyLock;

use memtrace_common::{
    Domain, FIRST_LIBRARY_FUNCTION, FunctionId, FunctionKind, FunctionSpec, KMALLOC,
    KMEM_CACHE_ALLOC,
};

/// A library that the catalog has functions of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Library {
    /// Name in reports and metrics, such as `libcudart`.
    pub name: &'static str,
    /// What its DT_SONAME begins with, such as `libcudart.so`.
    pub soname_prefix: &'static str,
}

/// One function of the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its id in maps and records.
    pub id: FunctionId,
    /// Its library.
    pub library: Library,
    /// Its exported symbol, without version.
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
}

static LIBRARY_FUNCTIONS: LazyLock<Vec<Function>> = LazyLock::new(|| {
    (FIRST_LIBRARY_FUNCTION..).zip(cuda::rows()).map(|(id, row)| row.function(id)).collect()
});

/// All library functions, in the order of their ids.
#[must_use]
pub fn library_functions() -> &'static [Function] {
    &LIBRARY_FUNCTIONS
}

/// The library function with this id.
#[must_use]
pub fn library_function(id: FunctionId) -> Option<&'static Function> {
    LIBRARY_FUNCTIONS.get(usize::from(id.checked_sub(FIRST_LIBRARY_FUNCTION)?))
}

/// The library that a DT_SONAME names, if the catalog has functions of it.
#[must_use]
pub fn library_of_soname(soname: &str) -> Option<Library> {
    cuda::LIBRARIES.into_iter().find(|library| soname.starts_with(library.soname_prefix))
}

/// Whether anything is probed for a domain.
#[must_use]
pub fn has_probes(domain: &Domain) -> bool {
    *domain == Domain::Kernel
        || LIBRARY_FUNCTIONS
            .iter()
            .any(|function| function.domain == *domain && function.allocates())
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
    fn ids_find_their_rows() {
        for function in library_functions() {
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
