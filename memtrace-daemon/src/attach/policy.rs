//! What may be attached: domains, limits and exclusions.
//!
//! Decides on what was read of a file, and never attaches anything itself.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use memtrace_common::{Domain, FunctionId};

use super::inspect::Inspection;
use super::usdt::Place;
use crate::catalog::{Function, booked, library_function};

/// What may be attached.
#[derive(Clone, Debug)]
pub struct FilePolicy {
    /// Domains that are on.
    pub domains: Vec<Domain>,
    /// Static probes whose domains are off are attached to single processes when that is asked for.
    pub on_demand: bool,
    /// Files attached at a time.
    pub max_files: usize,
    /// Files of one owner attached at a time, so that one user's copies cannot take all places.
    pub max_files_per_uid: usize,
    /// Build ids (hex) that are left alone.
    pub exclude_build_ids: Vec<String>,
    /// Paths that are left alone: files, or directories with all that is below.
    pub exclude_paths: Vec<PathBuf>,
    /// Names with versions that are left alone, such as `libcudart.so.12`: what continues one
    /// behind a dot, such as `libcudart.so.12.4`, is the same.
    pub exclude_versions: Vec<String>,
}

impl Default for FilePolicy {
    fn default() -> Self {
        Self {
            domains: vec![Domain::Kernel, Domain::Cuda, Domain::Managed, Domain::Pinned],
            on_demand: false,
            max_files: 256,
            max_files_per_uid: 16,
            exclude_build_ids: Vec::new(),
            exclude_paths: Vec::new(),
            exclude_versions: Vec::new(),
        }
    }
}

impl FilePolicy {
    /// Whether a function is probed. One that frees is, when any domain is on whose pointers
    /// it could free: `cudaFree` also frees managed memory. So is one that gives references to
    /// such memory, or borrows what is freed like it: else what it gave would be taken back in
    /// another's place, or as nobody's. So is one that says which context or device a thread is in,
    /// or that ends one, when anything is on that goes with them.
    #[must_use]
    pub fn wants(&self, function: &Function) -> bool {
        if function.is_about_contexts() {
            return booked()
                .any(|other| other.spec.bound != 0 && self.domains.contains(&other.domain));
        }
        if function.allocates() {
            return self.domains.contains(&function.domain)
                || gives_the_like(function, &self.domains);
        }
        is_given(function.spec.class, &self.domains)
    }

    /// The functions of a file that are probed, and where.
    pub(super) fn wanted(&self, inspection: &Inspection) -> Vec<(FunctionId, u64)> {
        let wants = |id| library_function(id).is_some_and(|function| self.wants(function));
        inspection.points.points.iter().copied().filter(|(id, _)| wants(*id)).collect()
    }

    /// The static probes of a file that are attached. All of them or none: half would be no books.
    pub(super) fn wanted_static(&self, inspection: &Inspection) -> Vec<Place> {
        let wants = |id| library_function(id).is_some_and(|function| self.wants(function));
        let places = &inspection.places;
        let whole = places.missing.is_empty() && places.refused.is_empty();
        let places = places.places.iter().filter(|_| whole);
        places.copied().filter(|place| wants(place.function)).collect()
    }

    /// The static probes of a file that are attached when that is asked for, and not before.
    pub(super) fn on_demand(&self, inspection: &Inspection) -> Vec<Place> {
        let places = &inspection.places;
        let whole = places.missing.is_empty() && places.refused.is_empty();
        let waits = self.on_demand && whole && self.wanted_static(inspection).is_empty();
        places.places.iter().filter(|_| waits).copied().collect()
    }

    /// Why a library of the catalog, found at `path`, is left alone; `None` if it is not.
    pub(super) fn refusal(&self, path: &[u8], inspection: &Inspection) -> Option<String> {
        let build_id = inspection.description.build_id.as_ref();
        let path = Path::new(OsStr::from_bytes(path));
        let soname = inspection.description.soname.as_deref();
        let name = path.file_name().and_then(OsStr::to_str);
        let is = |name: &str, version: &String| {
            let rest = name.strip_prefix(version.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let names = || soname.into_iter().chain(name);
        let versions = &self.exclude_versions;
        let (points, places) = (&inspection.points, &inspection.places);
        let has = !points.points.is_empty() || !places.places.is_empty();
        let wanted = !self.wanted(inspection).is_empty()
            || !self.wanted_static(inspection).is_empty()
            || !self.on_demand(inspection).is_empty();
        let why = if build_id.is_some_and(|id| self.exclude_build_ids.contains(id)) {
            "excluded by its build id (configuration)"
        } else if self.exclude_paths.iter().any(|excluded| path.starts_with(excluded)) {
            "excluded by its path (configuration)"
        } else if versions.iter().any(|version| names().any(|name| is(name, version))) {
            "excluded by its version (configuration)"
        } else if inspection.description.go {
            "made by the Go linker, whose functions must not be probed"
        } else if let Some((probe, why)) = places.refused.first() {
            return Some(format!("its static probe {probe} cannot be used: {why}"));
        } else if !places.missing.is_empty() && points.points.is_empty() {
            let names = places.missing.join(" and ");
            return Some(format!("built without its static probes: {names} are not in its notes"));
        } else if !has {
            "exports none of the functions that memtrace knows"
        } else if !wanted {
            "its domains are off"
        } else {
            return None;
        };
        Some(why.to_owned())
    }
}

/// Whether any function gives pointers of a class whose own domain is among these.
fn is_given(class: u8, domains: &[Domain]) -> bool {
    booked().any(|other| {
        other.allocates() && other.spec.class == class && domains.contains(&other.domain)
    })
}

/// Whether what a function gives is taken back like memory that is booked in one of these domains:
/// references, such as those of `cuMemRetainAllocationHandle` to what `cuMemCreate` gave, and what
/// is borrowed, such as a mapped buffer, which `cudaFree` frees.
fn gives_the_like(function: &Function, domains: &[Domain]) -> bool {
    function.allocates()
        && (function.spec.counted != 0 || function.domain == Domain::CudaIpc)
        && is_given(function.spec.class, domains)
}

/// Whether nothing of a function is counted although it is probed, because its own domain is not
/// among these: contexts are followed for what is bound to them, references for what they hold,
/// and what is borrowed for its end.
pub(super) fn is_uncounted(function: &Function, domains: &[Domain]) -> bool {
    !domains.contains(&function.domain)
        && (function.makes_context() || gives_the_like(function, domains))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::library_functions;

    /// The functions that are followed and not counted, but for those of contexts.
    fn uncounted(domains: &[Domain]) -> Vec<&'static str> {
        library_functions()
            .iter()
            .filter(|function| !function.makes_context() && is_uncounted(function, domains))
            .map(|function| function.symbol)
            .collect()
    }

    fn wanted(domains: &[Domain]) -> Vec<&'static str> {
        let policy = FilePolicy { domains: domains.to_vec(), ..FilePolicy::default() };
        library_functions()
            .iter()
            .filter(|function| policy.wants(function))
            .map(|function| function.symbol)
            .collect()
    }

    #[test]
    fn a_free_is_wanted_by_every_domain_whose_pointers_it_frees() {
        assert_eq!(wanted(&[]), Vec::<&str>::new());
        assert_eq!(wanted(&[Domain::Kernel]), Vec::<&str>::new());
        let managed = wanted(&[Domain::Managed]);
        assert!(managed.contains(&"cudaMallocManaged") && managed.contains(&"cudaFree"));
        assert!(!managed.contains(&"cudaMalloc") && !managed.contains(&"cudaFreeHost"));
        let pinned = wanted(&[Domain::Pinned]);
        assert!(pinned.contains(&"cudaHostAlloc") && pinned.contains(&"cuMemFreeHost"));
        assert!(!pinned.contains(&"cudaFree"));
        assert_eq!(
            wanted(&[
                Domain::Cuda,
                Domain::Managed,
                Domain::Pinned,
                Domain::CudaIpc,
                Domain::Handles
            ])
            .len(),
            library_functions().len()
        );
    }

    #[test]
    fn what_is_taken_back_like_what_is_booked_is_followed_whatever_domain_it_is_of() {
        let alike = [
            "cudaExternalMemoryGetMappedBuffer",
            "cudaExternalMemoryGetMappedMipmappedArray",
            "cuExternalMemoryGetMappedBuffer",
            "cuExternalMemoryGetMappedMipmappedArray",
            "cuMemImportFromShareableHandle",
            "cuMemRetainAllocationHandle",
            "cudaMemPoolImportPointer",
            "cuMemPoolImportPointer",
            "cuMulticastCreate",
            "hipExternalMemoryGetMappedBuffer",
            "hipMemPoolImportPointer",
            "hipMemImportFromShareableHandle",
            "hipMemRetainAllocationHandle",
        ];
        let domains = FilePolicy::default().domains;
        let all = wanted(&domains);
        assert!(alike.iter().all(|symbol| all.contains(symbol)), "{all:?}");
        assert_eq!(uncounted(&domains), alike);
        // Memory that was opened by IPC is in a name space of its own, of which nothing is on.
        assert!(!all.contains(&"cudaIpcOpenMemHandle") && !all.contains(&"cudaIpcCloseMemHandle"));
        // The other way round: a handle of the program's own that is released is no unknown one.
        let borrowed = wanted(&[Domain::CudaIpc]);
        assert!(borrowed.contains(&"cuMemRelease") && borrowed.contains(&"cuMemCreate"));
        assert!(!borrowed.contains(&"cudaMalloc"), "given once, taken back once");
        let physical = ["cuMemCreate", "cuMulticastCreate", "hipMemCreate"];
        assert_eq!(uncounted(&[Domain::CudaIpc]), physical);
        assert_eq!(uncounted(&[Domain::Cuda, Domain::CudaIpc]), ["cuMulticastCreate"]);
        assert_eq!(uncounted(&[Domain::Kernel, Domain::Pinned]), Vec::<&str>::new());
    }

    #[test]
    fn contexts_are_followed_and_counted_only_where_handles_are_booked() {
        let of = |symbol| library_functions().iter().find(|one| one.symbol == symbol).unwrap();
        for symbol in ["cuCtxCreate_v2", "cuDevicePrimaryCtxRetain", "cuCtxDestroy_v2"] {
            assert!(is_uncounted(of(symbol), &[Domain::Cuda]), "{symbol}");
            assert!(!is_uncounted(of(symbol), &[Domain::Cuda, Domain::Handles]), "{symbol}");
        }
        assert!(!is_uncounted(of("cudaMalloc"), &[Domain::Managed]), "it is not followed");
    }
}
