//! Which library files a command will load, so that they are probed before it executes.
//!
//! Follows the loader's rules (ld.so(8)) as far as files are concerned. Too many candidates do
//! no harm, since each file is recognised by what it exports; a missed one is found by its
//! mapping, a moment late.

use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::elf::{self, Description};
use super::inspect::recognise;
use super::ld_cache::{LD_SO_CACHE, LdCache};

/// Programs and libraries that are looked into for one command.
const MAX_OBJECTS: usize = 1_024;
/// Directories of one search path, and entries of one directory.
const MAX_DIRECTORIES: usize = 256;
const MAX_ENTRIES: usize = 16_384;
/// Scripts whose interpreter is a script.
const MAX_INTERPRETERS: usize = 4;
/// Longest first line of a script.
const MAX_SHEBANG: u64 = 4_096;

/// Where the loader looks without a cache.
const DEFAULT_DIRECTORIES: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// What of a command's environment decides which files it loads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `PATH`.
    pub path: Option<OsString>,
    /// `LD_LIBRARY_PATH`.
    pub library_path: Option<OsString>,
    /// `LD_PRELOAD`.
    pub preload: Option<OsString>,
}

impl Environment {
    /// That of this process, which a command inherits.
    #[must_use]
    pub fn own() -> Self {
        Self {
            path: std::env::var_os("PATH"),
            library_path: std::env::var_os("LD_LIBRARY_PATH"),
            preload: std::env::var_os("LD_PRELOAD"),
        }
    }

    /// The file that a command's name stands for, as execvp(3) finds it.
    #[must_use]
    pub fn find_program(&self, name: &OsStr) -> Option<PathBuf> {
        if name.as_bytes().contains(&b'/') {
            return Some(PathBuf::from(name)).filter(|path| path.exists());
        }
        let path = self.path.as_deref().unwrap_or(OsStr::new("/bin:/usr/bin"));
        std::env::split_paths(path).map(|directory| directory.join(name)).find(|candidate| {
            fs::metadata(candidate)
                .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        })
    }
}

/// The library files that `command` needs, and those of the catalog's that it would get if it
/// opened them by name later. Paths that exist, each once.
#[must_use]
pub fn preattach_candidates(command: &Path, environment: &Environment) -> Vec<PathBuf> {
    let cache = LdCache::read(Path::new(LD_SO_CACHE));
    let mut search = Search { cache: &cache, environment, seen: HashSet::new(), found: Vec::new() };
    search.follow(command);
    search.openable_by_name();
    search.found
}

struct Search<'a> {
    cache: &'a LdCache,
    environment: &'a Environment,
    seen: HashSet<PathBuf>,
    found: Vec<PathBuf>,
}

/// A program or library to look into.
struct Object {
    path: PathBuf,
    /// Search path handed down by the objects that loaded it (DT_RPATH without DT_RUNPATH).
    inherited: Vec<PathBuf>,
}

impl Search<'_> {
    /// Follows a command's interpreters, and what each program needs.
    fn follow(&mut self, command: &Path) {
        let mut program = command.to_owned();
        let mut waiting = VecDeque::new();
        for _ in 0..=MAX_INTERPRETERS {
            match interpreter(&program, self.environment) {
                Some(next) => program = next,
                None => break,
            }
        }
        waiting.push_back(Object { path: program, inherited: Vec::new() });
        let preload = self.environment.preload.clone().unwrap_or_default();
        for name in preload.as_bytes().split(|byte| b": ".contains(byte)) {
            self.load(name, &[], &[], &mut waiting);
        }
        while let Some(object) = waiting.pop_front() {
            if self.seen.len() > MAX_OBJECTS {
                return;
            }
            let Ok(description) = elf::open(&object.path).and_then(|file| elf::describe(&file))
            else {
                continue;
            };
            self.follow_needed(&object, &description, &mut waiting);
        }
    }

    fn follow_needed(
        &mut self,
        object: &Object,
        description: &Description,
        waiting: &mut VecDeque<Object>,
    ) {
        let origin = fs::canonicalize(&object.path).ok();
        let origin = origin.as_deref().unwrap_or(&object.path).parent();
        let directories =
            |list: &Option<String>| list.iter().flat_map(|list| expand(list, origin)).collect();
        let mut rpath: Vec<PathBuf> = directories(&description.rpath);
        rpath.extend_from_slice(&object.inherited);
        rpath.truncate(MAX_DIRECTORIES);
        let runpath: Vec<PathBuf> = directories(&description.runpath);
        for name in &description.needed {
            self.load(name.as_bytes(), &rpath, &runpath, waiting);
        }
    }

    /// Finds a needed library and lets it be looked into.
    fn load(
        &mut self,
        name: &[u8],
        rpath: &[PathBuf],
        runpath: &[PathBuf],
        waiting: &mut VecDeque<Object>,
    ) {
        let Some(path) = self.resolve(name, rpath, runpath) else { return };
        if self.seen.insert(path.clone()) {
            self.found.push(path.clone());
            waiting.push_back(Object { path, inherited: rpath.to_vec() });
        }
    }

    fn resolve(&self, name: &[u8], rpath: &[PathBuf], runpath: &[PathBuf]) -> Option<PathBuf> {
        let file = Path::new(OsStr::from_bytes(name));
        if name.is_empty() {
            return None;
        }
        if name.contains(&b'/') {
            return file.exists().then(|| file.to_owned());
        }
        let library_path = self.library_path();
        rpath
            .iter()
            .filter(|_| runpath.is_empty())
            .chain(&library_path)
            .chain(runpath)
            .map(|directory| directory.join(file))
            .chain(self.cache.find(name).cloned())
            .chain(DEFAULT_DIRECTORIES.iter().map(|directory| Path::new(directory).join(file)))
            .find(|candidate| candidate.exists())
    }

    fn library_path(&self) -> Vec<PathBuf> {
        let list = self.environment.library_path.as_deref().unwrap_or_default();
        list.as_bytes()
            .split(|byte| b":;".contains(byte))
            .filter(|directory| !directory.is_empty())
            .map(|directory| PathBuf::from(OsStr::from_bytes(directory)))
            .take(MAX_DIRECTORIES)
            .collect()
    }

    /// Adds the catalog's libraries that dlopen(3) would find by name. The name only makes a
    /// file a candidate: what it exports decides.
    fn openable_by_name(&mut self) {
        let named =
            |name: &[u8]| std::str::from_utf8(name).is_ok_and(|name| recognise(name).is_some());
        let mut candidates: Vec<PathBuf> = self
            .cache
            .iter()
            .filter(|(name, _)| named(name))
            .map(|(_, path)| path.clone())
            .collect();
        for directory in self.library_path() {
            let Ok(entries) = fs::read_dir(&directory) else { continue };
            let entries = entries.take(MAX_ENTRIES).filter_map(Result::ok);
            candidates.extend(
                entries
                    .filter(|entry| named(entry.file_name().as_bytes()))
                    .map(|entry| entry.path()),
            );
        }
        for path in candidates {
            if path.exists() && self.seen.insert(path.clone()) {
                self.found.push(path);
            }
        }
    }
}

/// The directories of an RPATH or RUNPATH, with `$ORIGIN`, `$LIB` and `$PLATFORM` replaced.
fn expand(list: &str, origin: Option<&Path>) -> Vec<PathBuf> {
    let origin = origin.and_then(Path::to_str).unwrap_or_default();
    let replace = |text: &str, name: &str, value: &str| {
        text.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value)
    };
    list.split(':')
        .filter(|directory| !directory.is_empty())
        .flat_map(|directory| {
            let directory = replace(&replace(directory, "ORIGIN", origin), "PLATFORM", "x86_64");
            let lib = replace(&directory, "LIB", "lib/x86_64-linux-gnu");
            // Debian's loader has the first, others have the second.
            let lib64 = replace(&directory, "LIB", "lib64");
            let twice = lib != lib64;
            std::iter::once(lib).chain(twice.then_some(lib64))
        })
        .map(PathBuf::from)
        .take(MAX_DIRECTORIES)
        .collect()
}

/// The interpreter of a script, `env NAME` looked up as `env` would.
fn interpreter(path: &Path, environment: &Environment) -> Option<PathBuf> {
    let mut start = Vec::new();
    elf::open(path).ok()?.take(MAX_SHEBANG).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words =
        line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(OsStr::from_bytes);
    let program = Path::new(words.next()?);
    if program.file_name() != Some(OsStr::new("env")) {
        return Some(program.to_owned());
    }
    // Options (`-S`) and assignments stand before the command.
    let command = words
        .find(|word| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'='))?;
    environment.find_program(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::test_files::Library;

    /// A program's directory: `program` needs `libmiddle.so` (by $ORIGIN), which needs
    /// `libcudart.so.12` (in LD_LIBRARY_PATH).
    fn build(directory: &Path) -> (PathBuf, Environment) {
        let late = directory.join("late");
        fs::create_dir(&late).unwrap();
        let runtime = Library { soname: Some("libcudart.so.12"), ..Library::default() }
            .build(&late, "libcudart.so.12");
        let runtime = runtime.to_str().unwrap();
        let middle = Library {
            soname: Some("libmiddle.so"),
            source: Some("int cudaMalloc(void); int middle(void) { return cudaMalloc(); }"),
            arguments: &[runtime, "-Wl,--no-as-needed"],
            ..Library::default()
        }
        .build(directory, "libmiddle.so");
        let program = Library {
            source: Some("int middle(void); int main(void) { return middle(); }"),
            arguments: &[
                "-Wl,--disable-new-dtags",
                "-Wl,--allow-shlib-undefined",
                "-Wl,-rpath,$ORIGIN",
                middle.to_str().unwrap(),
            ],
            ..Library::default()
        }
        .build(directory, "program");
        let environment =
            Environment { library_path: Some(late.into_os_string()), ..Environment::own() };
        (program, environment)
    }

    fn names(candidates: &[PathBuf]) -> Vec<&str> {
        candidates.iter().filter_map(|path| path.file_name()?.to_str()).collect()
    }

    #[test]
    fn needed_libraries_are_found_through_rpath_and_library_path() {
        let directory = tempfile::tempdir().unwrap();
        let (program, environment) = build(directory.path());
        let candidates = preattach_candidates(&program, &environment);
        let names = names(&candidates);
        assert!(names.contains(&"libmiddle.so"), "{names:?}");
        assert!(names.contains(&"libcudart.so.12"), "{names:?}");
        assert!(names.contains(&"libc.so.6"), "{names:?}");
        let unique: HashSet<_> = candidates.iter().collect();
        assert_eq!(unique.len(), candidates.len());
    }

    #[test]
    fn a_scripts_interpreter_is_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (program, mut environment) = build(directory.path());
        let script = directory.path().join("script");
        fs::write(&script, format!("#! {} -x\n", program.display())).unwrap();
        assert!(names(&preattach_candidates(&script, &environment)).contains(&"libmiddle.so"));
        let outer = directory.path().join("outer");
        fs::write(&outer, "#!/usr/bin/env -S A=b program --option\n").unwrap();
        environment.path = Some(directory.path().as_os_str().to_owned());
        assert!(names(&preattach_candidates(&outer, &environment)).contains(&"libmiddle.so"));
    }

    #[test]
    fn libraries_that_can_be_opened_by_name_are_candidates() {
        let directory = tempfile::tempdir().unwrap();
        let (_, environment) = build(directory.path());
        let candidates = preattach_candidates(Path::new("/bin/true"), &environment);
        assert!(names(&candidates).contains(&"libcudart.so.12"));
        assert!(!names(&candidates).contains(&"libmiddle.so"));
    }

    #[test]
    fn a_command_that_is_not_there_has_no_candidates_of_its_own() {
        let environment = Environment::default();
        let candidates = preattach_candidates(Path::new("/nowhere"), &environment);
        assert!(!names(&candidates).contains(&"libc.so.6"));
        assert_eq!(environment.find_program(OsStr::new("no-such-command-here")), None);
        assert!(Environment::own().find_program(OsStr::new("sh")).is_some());
    }

    #[test]
    fn placeholders_are_replaced() {
        let expanded =
            expand("$ORIGIN/../lib:${ORIGIN}/$LIB:/opt/$PLATFORM", Some(Path::new("/a")));
        let expanded: Vec<_> = expanded.iter().filter_map(|path| path.to_str()).collect();
        assert_eq!(expanded, ["/a/../lib", "/a/lib/x86_64-linux-gnu", "/a/lib64", "/opt/x86_64"]);
    }
}
