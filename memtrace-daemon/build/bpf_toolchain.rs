//! Finds what makes the BPF object: a compiler with a `core` for BPF, and a linker of the
//! same LLVM. There are two ways to have them, Debian's packages and rustup's nightly.
//!
//! Shared by the build script and by `cargo xtask setup`, so that both mean the same by
//! "missing". It must never install anything, and never settle for less than the whole.

use std::{
    env,
    ffi::OsStr,
    fmt, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The version of bpf-linker that is used.
pub const LINKER_VERSION: &str = "0.10.1";

/// The major version of the LLVM that this bpf-linker is made for. `bpf-linker --version`
/// does not say it; it is the default feature `llvm-22` of its Cargo.toml.
pub const LINKER_LLVM: u32 = 22;

/// Debian's compiler with a `core` for BPF, the packages of the first way.
pub const DEBIAN_PACKAGES: [&str; 2] = ["rustc-web", "libstd-rust-web-dev-bpf"];

const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_CORE: &str = "/usr/lib/rustlib/bpfel-unknown-none/lib";
const DEBIAN_LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// A complete toolchain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfToolchain {
    /// The compiler.
    pub compiler: Compiler,
    /// Path of bpf-linker.
    pub linker: PathBuf,
    /// The compiler's own libLLVM, which the linker shall load, where it was found.
    pub llvm: Option<PathBuf>,
}

/// A compiler that can make BPF code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compiler {
    /// Debian's, with its ready `core`.
    Debian {
        /// Path of rustc.
        rustc: PathBuf,
    },
    /// rustup's nightly, which builds `core` from `rust-src`.
    Nightly {
        /// Path of rustup.
        rustup: PathBuf,
    },
}

/// One thing that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// No compiler is complete; these packages of Debian's are missing.
    Packages(Vec<&'static str>),
    /// A compiler has another LLVM than the linker.
    Llvm {
        /// Which compiler.
        compiler: &'static str,
        /// Major version of its LLVM.
        major: u32,
    },
    /// bpf-linker is missing, or has this version.
    Linker {
        /// What was found.
        found: Option<String>,
    },
}

/// Everything that is missing, as one sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub Vec<Lack>);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the BPF programs cannot be built: ")?;
        for (index, lack) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", and " };
            write!(f, "{separator}{lack}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packages(names) => {
                let (verb, names) =
                    (if names.len() == 1 { "is" } else { "are" }, names.join(" and "));
                write!(
                    f,
                    "{names} {verb} not installed (nor is rustup's nightly with rust-src, which would do too)"
                )
            }
            Self::Llvm { compiler, major } => write!(
                f,
                "{compiler} has LLVM {major} but bpf-linker {LINKER_VERSION} needs {LINKER_LLVM}"
            ),
            Self::Linker { found: None } => {
                write!(f, "bpf-linker {LINKER_VERSION} is not installed")
            }
            Self::Linker { found: Some(version) } => {
                write!(f, "bpf-linker is {version}, not {LINKER_VERSION}")
            }
        }
    }
}

/// What a machine has: the input of the decision, apart from it so that it can be tested.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Debian's compiler.
    pub debian: Option<Rustc>,
    /// rustup's nightly.
    pub nightly: Option<Rustc>,
    /// bpf-linker and its version.
    pub linker: Option<(PathBuf, String)>,
}

/// A compiler as found.
#[derive(Clone, Debug)]
pub struct Rustc {
    /// Path of rustc, or of the rustup that runs it.
    pub program: PathBuf,
    /// Major version of its LLVM.
    pub llvm_major: u32,
    /// Whether it has `core` for BPF, or the source of it.
    pub has_core: bool,
    /// Its libLLVM.
    pub llvm: Option<PathBuf>,
}

impl BpfToolchain {
    /// Looks for a complete toolchain; Debian's packages are taken before nightly.
    ///
    /// # Errors
    /// Says everything that is missing.
    pub fn detect() -> Result<Self, Missing> {
        Self::choose(Found::look())
    }

    /// Decides what to take of what there is.
    ///
    /// # Errors
    /// Says everything that is missing.
    pub fn choose(found: Found) -> Result<Self, Missing> {
        let mut lacks = Vec::new();
        let compiler = choose_compiler(found.debian, found.nightly, &mut lacks);
        let linker = match found.linker {
            Some((path, version)) if version == LINKER_VERSION => Some(path),
            other => {
                lacks.push(Lack::Linker { found: other.map(|(_, version)| version) });
                None
            }
        };
        match (compiler, linker) {
            (Some((compiler, llvm)), Some(linker)) => Ok(Self { compiler, linker, llvm }),
            _ => Err(Missing(lacks)),
        }
    }
}

fn choose_compiler(
    debian: Option<Rustc>,
    nightly: Option<Rustc>,
    lacks: &mut Vec<Lack>,
) -> Option<(Compiler, Option<PathBuf>)> {
    let [compiler, core] = DEBIAN_PACKAGES;
    let mut mismatch = None;
    let packages = match debian {
        None => vec![compiler, core],
        Some(rustc) if !rustc.has_core => vec![core],
        Some(rustc) if rustc.llvm_major == LINKER_LLVM => {
            return Some((Compiler::Debian { rustc: rustc.program }, rustc.llvm));
        }
        Some(rustc) => {
            mismatch = Some(Lack::Llvm { compiler, major: rustc.llvm_major });
            Vec::new()
        }
    };
    match nightly {
        Some(rustc) if rustc.has_core && rustc.llvm_major == LINKER_LLVM => {
            return Some((Compiler::Nightly { rustup: rustc.program }, rustc.llvm));
        }
        Some(rustc) if rustc.has_core => {
            lacks.push(Lack::Llvm { compiler: "rustup's nightly", major: rustc.llvm_major });
        }
        _ => {}
    }
    lacks.extend(mismatch);
    if !packages.is_empty() {
        lacks.push(Lack::Packages(packages));
    }
    None
}

impl Found {
    /// Looks at this machine. Nightly is asked only where Debian's compiler will not do.
    #[must_use]
    pub fn look() -> Self {
        let debian = debian_rustc();
        let usable = debian.as_ref().is_some_and(|r| r.has_core && r.llvm_major == LINKER_LLVM);
        Self { debian, nightly: if usable { None } else { nightly_rustc() }, linker: linker() }
    }
}

fn debian_rustc() -> Option<Rustc> {
    let program = PathBuf::from(DEBIAN_RUSTC);
    let llvm_major = llvm_major(&output(Command::new(&program).arg("-vV"))?)?;
    let has_core = file_in(Path::new(DEBIAN_CORE), |name| name.starts_with("libcore-")).is_some();
    let llvm = llvm_library(Path::new(DEBIAN_LIBRARIES), llvm_major);
    Some(Rustc { program, llvm_major, has_core, llvm })
}

fn nightly_rustc() -> Option<Rustc> {
    let program = find_program("rustup")?;
    let rustc = |argument: &[&str]| {
        output(Command::new(&program).args(["run", "nightly", "rustc"]).args(argument))
    };
    let llvm_major = llvm_major(&rustc(&["-vV"])?)?;
    let sysroot = PathBuf::from(rustc(&["--print", "sysroot"])?.trim());
    let has_core = sysroot.join("lib/rustlib/src/rust/library/core/Cargo.toml").exists();
    let llvm = llvm_library(&sysroot.join("lib"), llvm_major);
    Some(Rustc { program, llvm_major, has_core, llvm })
}

fn linker() -> Option<(PathBuf, String)> {
    let path = find_program("bpf-linker")?;
    // "bpf-linker 0.10.1"
    let version = output(Command::new(&path).arg("--version"))?;
    let version = version.split_whitespace().nth(1)?.to_owned();
    Some((path, version))
}

/// The major version in the line `LLVM version: 22.1.8` of `rustc -vV`.
fn llvm_major(version: &str) -> Option<u32> {
    let line = version.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    line.split('.').next()?.trim().parse().ok()
}

/// A libLLVM of this major version in a directory, named in Debian's or in rustup's way.
fn llvm_library(directory: &Path, major: u32) -> Option<PathBuf> {
    let prefixes = [format!("libLLVM.so.{major}."), format!("libLLVM-{major}")];
    file_in(directory, |name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
}

fn file_in(directory: &Path, wanted: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).ok()?;
    let mut names: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    names.sort();
    names.into_iter().find(|path| path.file_name().and_then(OsStr::to_str).is_some_and(&wanted))
}

/// A program on PATH or, where sudo has taken that out of PATH, where cargo installs.
fn find_program(name: &str) -> Option<PathBuf> {
    let cargo_home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cargo")));
    env::var_os("PATH")
        .iter()
        .flat_map(env::split_paths)
        .chain(cargo_home.map(|home| home.join("bin")))
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

fn output(command: &mut Command) -> Option<String> {
    // An outer cargo's wrappers and toolchain choice are not for these compilers.
    let command = command.env_remove("RUSTUP_TOOLCHAIN").stdin(Stdio::null());
    let output = command.stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
