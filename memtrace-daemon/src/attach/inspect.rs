//! Looks at one file: is it a library of the catalog, and where are its functions?
//!
//! Only reads; a file's content decides, never its name. May block for ever on a dead network
//! mount: run it on an expendable thread.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use memtrace_common::Family;

use super::elf::{self, Description, ElfError, Identity};
use super::symbols::{self, Points};
use super::usdt::{self, Places};
use crate::catalog::{Function, Library, library_functions, library_of_soname, static_probes};

/// What was seen of a file. Keeps it open: what was read is what is attached to.
#[derive(Debug)]
pub struct Inspection {
    /// The file.
    pub file: File,
    /// Which file it is.
    pub identity: Identity,
    /// What two views of one file (overlay mounts show one as several devices) have in common.
    pub twin: Twin,
    /// What it says of itself.
    pub description: Description,
    /// The catalog's library that it says it is.
    pub library: Option<Library>,
    /// The functions found in it; none for a file that is no library of the catalog.
    pub points: Points,
    /// The static probes found in it; the same.
    pub places: Places,
    /// Whether its own symbols were looked through for a runtime.
    pub searched: bool,
}

impl Inspection {
    /// Whether it is no library of the catalog, but has a runtime in itself.
    #[must_use]
    pub fn is_within(&self) -> bool {
        self.searched && self.library.is_none() && !self.points.points.is_empty()
    }
}

/// What two views of the same file have in common, whatever device they show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twin {
    /// Owner.
    pub uid: u32,
    /// Bytes.
    pub size: u64,
    /// Last change of its bytes: seconds, nanoseconds.
    pub changed: (i64, i64),
}

/// Looks at a file. `named` says that a person named it: then its symbols alone decide, its
/// own (not exported) ones included.
///
/// # Errors
/// That it cannot be read, is no ELF file, or is broken.
pub fn inspect(file: File, named: bool) -> Result<Inspection, ElfError> {
    let metadata = file.metadata()?;
    let identity = elf::identity(&file)?;
    let description = elf::describe(&file)?;
    let library = description.soname.as_deref().and_then(recognise);
    // Never Go functions: their stacks move.
    let points = if description.go {
        Points::default()
    } else if named {
        symbols::find(&file, library_functions(), true)?
    } else if let Some(library) = library {
        symbols::find(&file, functions_of(library), false)?
    } else {
        Points::default()
    };
    let twin = Twin {
        uid: metadata.uid(),
        size: metadata.size(),
        changed: (metadata.mtime(), metadata.mtime_nsec()),
    };
    let places = if description.go {
        Places::default()
    } else if named {
        usdt::find(&file, static_probes())?
    } else if let Some(library) = library {
        let own = static_probes().iter().filter(|probe| probe.library == library);
        usdt::find(&file, own)?
    } else {
        Places::default()
    };
    Ok(Inspection { file, identity, twin, description, library, points, places, searched: false })
}

/// Looks through a file, executable or library, of a process that runs the driver's library: nvcc
/// links the CUDA runtime into it where nobody says otherwise. Of its own symbols the runtime's
/// count, if most of them are there and not exported: a function or two of these names are somebody
/// else's, and may do what no return probe survives.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_within(file: File) -> Result<Inspection, ElfError> {
    let mut inspection = inspect(file, false)?;
    inspection.searched = true;
    if inspection.library.is_none() && !inspection.description.go {
        // A runtime that is linked in is hidden: NVIDIA's archive has it so. What a file exports
        // stands in for a runtime that is elsewhere (a library that is preloaded, a stub), and what
        // it gives may be parts of a block that is on the books already: the same memory twice.
        // What it calls in turn is seen there. Hidden functions that only pass calls on do no harm:
        // nested calls of the runtime fold into the outermost one (memtrace-ebpf/src/nested.rs).
        let runtime = |function: &&Function| function.library.family == Family::CudaRuntime;
        let functions: Vec<_> = library_functions().iter().filter(runtime).collect();
        let points = symbols::find_unexported(&inspection.file, functions.iter().copied())?;
        if points.missing.len() * 2 < functions.len() {
            inspection.points = points;
        }
    }
    Ok(inspection)
}

fn functions_of(library: Library) -> impl Iterator<Item = &'static Function> {
    library_functions().iter().filter(move |function| function.library == library)
}

/// The catalog's library that a DT_SONAME names. Python wheels carry libraries with a hash in
/// the name (`libcudart-d0da41ae.so.11.0`, by auditwheel), which says nothing.
#[must_use]
pub fn recognise(soname: &str) -> Option<Library> {
    library_of_soname(soname).or_else(|| {
        let (stem, version) = soname.split_once(".so")?;
        let (stem, hash) = stem.rsplit_once('-')?;
        let hashed = hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        library_of_soname(&format!("{stem}.so{version}")).filter(|_| hashed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::elf::open;
    use crate::attach::test_files::Library as TestLibrary;

    #[test]
    fn a_soname_with_a_wheels_hash_is_recognised() {
        assert_eq!(recognise("libcudart-d0da41ae.so.11.0").map(|l| l.name), Some("libcudart"));
        assert_eq!(recognise("libcudart.so.12").map(|l| l.name), Some("libcudart"));
        assert_eq!(recognise("libcudart-static.so.12"), None);
        assert_eq!(recognise("libc.so.6"), None);
    }

    #[test]
    fn the_soname_decides_and_the_name_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let real = TestLibrary { soname: Some("libcudart.so.12"), ..TestLibrary::default() }
            .build(directory.path(), "plain-name");
        let inspection = inspect(open(&real).unwrap(), false).unwrap();
        assert_eq!(inspection.library.map(|l| l.name), Some("libcudart"));
        // Functions of the driver are there too, but this library is not the driver.
        let runtime = functions_of(inspection.library.unwrap()).count();
        assert_eq!(inspection.points.points.len(), runtime);

        let fake = TestLibrary::default().build(directory.path(), "libcudart.so.12");
        let inspection = inspect(open(&fake).unwrap(), false).unwrap();
        assert_eq!(inspection.library, None);
        assert_eq!(inspection.points, Points::default());
        let named = inspect(open(&fake).unwrap(), true).unwrap();
        assert_eq!(named.points.points.len(), library_functions().len());
    }

    #[test]
    fn go_is_never_probed() {
        let directory = tempfile::tempdir().unwrap();
        let library =
            TestLibrary { soname: Some("libcudart.so.12"), go: true, ..TestLibrary::default() }
                .build(directory.path(), "lib.so");
        for named in [false, true] {
            let inspection = inspect(open(&library).unwrap(), named).unwrap();
            assert!(inspection.description.go);
            assert_eq!(inspection.points, Points::default());
        }
    }

    #[test]
    fn a_runtime_within_a_file_counts_where_it_is_hidden_and_whole() {
        let directory = tempfile::tempdir().unwrap();
        let points = |name, library: TestLibrary<'_>| {
            let path = library.build(directory.path(), name);
            let inspection = inspect_within(open(&path).unwrap()).unwrap();
            assert!(inspection.searched && inspection.library.is_none());
            inspection.points.points.len()
        };
        let arguments: &[&str] = &["-fvisibility=hidden"];
        let hidden = TestLibrary { arguments, ..TestLibrary::default() };
        let runtime = functions_of(recognise("libcudart.so.12").unwrap()).count();
        assert_eq!(points("hidden", hidden), runtime, "functions of the driver are there too");
        assert_eq!(points("exported", TestLibrary::default()), 0);
        assert_eq!(points("go", TestLibrary { go: true, ..hidden }), 0);
        let half = TestLibrary { source: Some("int cudaMalloc(void) { return 0; }"), ..hidden };
        assert_eq!(points("half", half), 0);
    }
}
