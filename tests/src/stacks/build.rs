//! Builds the programs that note their stacks: at every level of optimisation, with and without
//! frame pointers, and in the ways that programs are shipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::fixture::{self, Variant, finish};

/// How a program is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flavour {
    /// Level of optimisation, 0 to 3.
    pub level: u8,
    /// Whether functions keep a frame pointer.
    pub frame_pointers: bool,
}

/// What most programs are: optimised, and without frame pointers.
pub const USUAL: Flavour = Flavour { level: 2, frame_pointers: false };

/// All levels, with and without frame pointers.
pub fn flavours() -> impl Iterator<Item = Flavour> {
    let both = |level| [true, false].map(|frame_pointers| Flavour { level, frame_pointers });
    (0..=3).flat_map(both)
}

impl std::fmt::Display for Flavour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pointers = if self.frame_pointers { "fp" } else { "no fp" };
        write!(f, "-O{}, {pointers}", self.level)
    }
}

/// The programs of one flavour.
#[derive(Clone, Debug)]
pub struct Built {
    directory: PathBuf,
}

impl Built {
    /// A program or library of [`build`].
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// Programs from one C file each.
const C_PROGRAMS: [&str; 5] = ["recursion", "tree", "callers", "through", "jit"];

/// All programs in a flavour: `c`, `cc`, `rust`, and one for each of `recursion.c`, `tree.c`,
/// `callers.c`, `through.c`, `jit.c`; libraries `libsecond.so`, `libnoted.so`, `leak.node`,
/// `libmiddle-NAME.so` whose function is `NAME` (`in_first`, `in_second`).
///
/// # Errors
///
/// When a compiler is missing or refuses a source.
pub fn build(flavour: Flavour) -> anyhow::Result<Built> {
    let stubs = stub_options()?;
    let pointers = if flavour.frame_pointers { "fp" } else { "no-fp" };
    let name = format!("stacks-O{}-{pointers}", flavour.level);
    let directory = fixture::once(&name, |directory| {
        let options = c_options(flavour);
        compile(&options, directory, &stubs)?;
        rust(flavour, &directory.join("note.o"), &stubs, &directory.join("rust"))
    })?;
    Ok(Built { directory })
}

fn compile(options: &[String], directory: &Path, stubs: &[String]) -> anyhow::Result<()> {
    let note = directory.join("note.o");
    // The notes themselves are always taken in the same way.
    finish(c(&["-O2".into(), "-fPIC".into(), "-c".into()]).arg(source("note.c")), &note)?;
    let library = |source_name: &str, name: &str, more: &[&str]| {
        let mut command = c(options);
        command.args(["-fPIC", "-shared"]).arg(format!("-Wl,-soname,{name}")).args(more);
        command.arg(source(source_name));
        finish(command.args(stubs), &directory.join(name))
    };
    library("second.c", "libsecond.so", &[])?;
    library("addon.c", "leak.node", &[])?;
    let note_path = note.display().to_string();
    library("noted.c", "libnoted.so", &[&note_path])?;
    for name in ["in_first", "in_second"] {
        library("middle.c", &format!("libmiddle-{name}.so"), &[&format!("-DNAME={name}")])?;
    }
    stacks_c(options, directory, stubs, &directory.join("c"))?;
    for name in C_PROGRAMS {
        let mut command = c(options);
        command.arg(source(&format!("{name}.c"))).arg(&note);
        finish(command.args(stubs), &directory.join(name))?;
    }
    let mut command = Command::new("g++");
    command.args(["-Wall", "-Wextra", "-Werror", "-std=gnu++17"]).args(options);
    command.arg(source("stacks.cc")).arg(&note);
    finish(command.args(stubs), &directory.join("cc"))
}

fn stacks_c(
    options: &[String],
    directory: &Path,
    stubs: &[String],
    output: &Path,
) -> anyhow::Result<()> {
    let mut command = c(options);
    command.arg(source("stacks.c")).arg(directory.join("note.o"));
    command.arg(format!("-L{}", directory.display())).args(["-lsecond", "-pthread"]);
    finish(command.args(stubs), output)
}

fn rust(flavour: Flavour, note: &Path, stubs: &[String], output: &Path) -> anyhow::Result<()> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    let pointers = if flavour.frame_pointers { "yes" } else { "no" };
    command.args(["--edition", "2024", "-g", "--crate-name", "stacks", "-C"]);
    command.arg(format!("opt-level={}", flavour.level));
    command.arg("-C").arg(format!("force-frame-pointers={pointers}"));
    command.arg(source("stacks.rs")).arg("-C").arg(format!("link-arg={}", note.display()));
    for option in stubs {
        command.arg("-C").arg(format!("link-arg={option}"));
    }
    finish(&mut command, output)
}

/// `stacks.c` in the ways that programs are shipped, each in a directory of its own with its
/// library, and `twin`, the same code with all its names.
#[derive(Clone, Debug)]
pub struct Shipped {
    directory: PathBuf,
}

impl Shipped {
    /// The program as it was before anything was taken from it.
    #[must_use]
    pub fn twin(&self) -> PathBuf {
        self.directory.join("twin")
    }

    /// Without symbols and debug information.
    #[must_use]
    pub fn stripped(&self) -> PathBuf {
        self.directory.join("stripped")
    }

    /// Stripped, with the name of its debug file, which lies beside it.
    #[must_use]
    pub fn debuglink(&self) -> PathBuf {
        self.directory.join("debuglink")
    }

    /// The debug file alone.
    #[must_use]
    pub fn debug_file(&self) -> PathBuf {
        self.directory.join("twin.debug")
    }

    /// Unwind information in `.debug_frame` alone: nobody at run time can read that.
    #[must_use]
    pub fn debug_frame(&self) -> PathBuf {
        self.directory.join("debug-frame")
    }

    /// Everything in one file that is loaded at any address, the CUDA stubs too.
    #[must_use]
    pub fn static_pie(&self) -> PathBuf {
        self.directory.join("static-pie")
    }

    /// At one fixed address.
    #[must_use]
    pub fn fixed(&self) -> PathBuf {
        self.directory.join("no-pie")
    }
}

/// Builds them.
///
/// # Errors
///
/// When a compiler or objcopy is missing or fails.
pub fn shipped() -> anyhow::Result<Shipped> {
    let stubs = stub_options()?;
    let directory = fixture::once("stacks-shipped", |directory| {
        let shipped = Shipped { directory: directory.to_path_buf() };
        let options = c_options(USUAL);
        compile(&options, directory, &stubs)?;
        let with = |more: &[&str]| {
            options
                .iter()
                .cloned()
                .chain(more.iter().map(|&one| one.to_owned()))
                .collect::<Vec<_>>()
        };
        stacks_c(&options, directory, &stubs, &shipped.twin())?;
        stacks_c(&with(&["-fno-pie", "-no-pie"]), directory, &stubs, &shipped.fixed())?;
        let bare = with(&["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]);
        stacks_c(&bare, directory, &stubs, &shipped.debug_frame())?;
        let twin = shipped.twin();
        objcopy(&["--strip-all"], &twin, &shipped.stripped())?;
        objcopy(&["--only-keep-debug"], &twin, &shipped.debug_file())?;
        let link = format!("--add-gnu-debuglink={}", shipped.debug_file().display());
        objcopy(&["--strip-all", &link], &twin, &shipped.debuglink())?;
        static_pie(&with(&["-static-pie"]), &shipped.static_pie())
    })?;
    Ok(Shipped { directory })
}

fn static_pie(options: &[String], output: &Path) -> anyhow::Result<()> {
    let mut command = c(options);
    let stubs = [
        "cudart.c",
        "cuda.c",
        "cuda_contexts.c",
        "cuda_handles.c",
        "stub_books.c",
        "stub_switches.c",
    ];
    command.args(stubs.map(|file| fixture::sources().join(file)));
    command.args(["stacks.c", "second.c", "note.c"].map(source)).arg("-pthread");
    finish(&mut command, output)
}

fn objcopy(options: &[&str], from: &Path, to: &Path) -> anyhow::Result<()> {
    let done = Command::new("objcopy")
        .args(options)
        .arg(from)
        .arg(to)
        .output()
        .context("running objcopy: run `cargo xtask setup`")?;
    ensure!(done.status.success(), "objcopy: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

fn c(options: &[String]) -> Command {
    let mut command = Command::new("gcc");
    command.args(["-Wall", "-Wextra", "-Werror", "-std=gnu11"]).args(options);
    command
}

fn c_options(flavour: Flavour) -> Vec<String> {
    let pointers =
        if flavour.frame_pointers { "-fno-omit-frame-pointer" } else { "-fomit-frame-pointer" };
    vec!["-g".into(), format!("-O{}", flavour.level), pointers.into()]
}

/// Links with the stub libraries, found beside the program or else where they were built.
fn stub_options() -> anyhow::Result<Vec<String>> {
    let cudart = fixture::build(Variant::Plain)?.cudart();
    let directory = cudart.parent().context("a library in no directory")?.display().to_string();
    Ok(vec![
        format!("-L{directory}"),
        "-l:libcudart.so.12".into(),
        "-l:libcuda.so.1".into(),
        format!("-Wl,-rpath,$ORIGIN:{directory}"),
    ])
}

fn source(name: &str) -> PathBuf {
    fixture::sources().join("stacks").join(name)
}
