//! Builds the C fixtures into `target/fixtures`, a directory a variant, when they are older than
//! their sources.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, bail};

use crate::paths;

mod plugins;

/// How the stub libraries are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Functions begin with `push`, as the real ones do.
    Plain,
    /// Functions begin with `endbr64`.
    Endbr,
    /// `cudaFree` is a jump to `cuMemFree_v2`.
    TailCall,
    /// As `Plain`, to be recorded: debug information says that the sources are in
    /// [`RECORDED`], and nothing of where they really are.
    Recorded,
}

/// Where a program that is recorded for `tests/recordings` finds itself.
pub const RECORDED: &str = "/srv/recorded";

/// What was built.
#[derive(Clone, Debug)]
pub struct Fixtures {
    directory: PathBuf,
}

impl Fixtures {
    /// Copies of them in another directory.
    #[must_use]
    pub fn at(directory: &Path) -> Self {
        Self { directory: directory.to_path_buf() }
    }

    /// The directory they are in.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The stub runtime, `libcudart.so.12`.
    #[must_use]
    pub fn cudart(&self) -> PathBuf {
        self.directory.join("libcudart.so.12")
    }

    /// The stub driver, `libcuda.so.1`.
    #[must_use]
    pub fn cuda(&self) -> PathBuf {
        self.directory.join("libcuda.so.1")
    }

    /// The program that runs scenarios, linked against both.
    #[must_use]
    pub fn client(&self) -> PathBuf {
        self.directory.join("client")
    }

    /// The same program with the runtime in itself, as nvcc links it.
    #[must_use]
    pub fn client_static(&self) -> PathBuf {
        self.directory.join("client_static")
    }

    /// The same without symbols.
    #[must_use]
    pub fn client_stripped(&self) -> PathBuf {
        self.directory.join("client_stripped")
    }

    /// The stub of HIP's runtime, `libamdhip64.so.6`.
    #[must_use]
    pub fn hip(&self) -> PathBuf {
        self.directory.join("libamdhip64.so.6")
    }

    /// The program that calls it.
    #[must_use]
    pub fn hip_client(&self) -> PathBuf {
        self.directory.join("hip_client")
    }

    /// The program that keeps its own books, linked with the stub of the driver library.
    #[must_use]
    pub fn gpu_client(&self) -> PathBuf {
        self.directory.join("gpu_client")
    }

    /// The same, which takes the driver library that the system has.
    #[must_use]
    pub fn driver_client(&self) -> PathBuf {
        self.directory.join("driver_client")
    }

    /// The stub of NVML, `libnvidia-ml.so.1`.
    #[must_use]
    pub fn nvml(&self) -> PathBuf {
        self.directory.join("libnvidia-ml.so.1")
    }

    /// The program that calls stubs of libraries above CUDA and HIP.
    #[must_use]
    pub fn library_client(&self) -> PathBuf {
        self.directory.join("library_client")
    }

    /// A library of allocators that no catalog knows, `libpool.so.3`.
    #[must_use]
    pub fn pool(&self) -> PathBuf {
        self.directory.join("libpool.so.3")
    }

    /// The program that calls it.
    #[must_use]
    pub fn pool_client(&self) -> PathBuf {
        self.directory.join("pool_client")
    }

    /// The stub of PyTorch's allocator, `libc10_cuda.so`, with its static probes.
    #[must_use]
    pub fn torch(&self) -> PathBuf {
        self.directory.join("libc10_cuda.so")
    }

    /// The program that calls it as tensors do.
    #[must_use]
    pub fn torch_client(&self) -> PathBuf {
        self.directory.join("torch_client")
    }

    /// The stub of a library above the runtime, `libcudnn.so.9`.
    #[must_use]
    pub fn cudnn(&self) -> PathBuf {
        self.directory.join("libcudnn.so.9")
    }

    /// The program whose scenarios are memory patterns from production, linked against both.
    #[must_use]
    pub fn cases(&self) -> PathBuf {
        self.directory.join("cases")
    }

    /// The library without symbols that one of them leaks in.
    #[must_use]
    pub fn stripped(&self) -> PathBuf {
        self.directory.join("libstripped.so")
    }

    /// The program that opens a runtime library late.
    #[must_use]
    pub fn loader(&self) -> PathBuf {
        self.directory.join("loader")
    }

    /// The program that calls a real runtime where there is no driver.
    #[must_use]
    pub fn real_cudart(&self) -> PathBuf {
        self.directory.join("real_cudart")
    }

    /// The same with a real runtime in itself, also what of it the program does not call.
    ///
    /// # Errors
    ///
    /// When that runtime is not there, or does not link.
    pub fn link_real_cudart(&self, major: u32, program: &Path) -> anyhow::Result<()> {
        link_real(gcc(Variant::Plain, PROGRAM, &["real_cudart.c"]), major, program)
    }

    /// The program that runs another behind the unit's filters.
    #[must_use]
    pub fn sandbox(&self) -> PathBuf {
        self.directory.join("sandbox")
    }

    /// A shared library without a function of the catalog.
    #[must_use]
    pub fn no_allocator(&self) -> PathBuf {
        self.directory.join("libnoallocator.so")
    }
}

/// The fixtures in this variant, built if need be.
///
/// # Errors
///
/// When gcc is missing or refuses the sources.
pub fn build(variant: Variant) -> anyhow::Result<Fixtures> {
    let name = match variant {
        Variant::Plain => "plain",
        Variant::Endbr => "endbr",
        Variant::TailCall => "tail-call",
        Variant::Recorded => "recorded",
    };
    let directory = once(name, |directory| compile_all(&Fixtures::at(directory), variant))?;
    Ok(Fixtures { directory })
}

/// A directory below `target/fixtures`, compiled into where it is older than a source.
pub(crate) fn once(
    name: &str,
    compile: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let directory = paths::target().join("fixtures").join(name);
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("making {}", directory.display()))?;
    // Test programs run side by side: one of them builds, the others wait.
    let lock = File::create(directory.join("lock"))?;
    lock.lock().context("locking target/fixtures")?;
    let stamp = directory.join("built");
    if modified(&stamp).is_none_or(|built| built < newest_source()) {
        compile(&directory)?;
        File::create(stamp)?;
    }
    Ok(directory)
}

const LIBRARY: &[&str] = &[
    "-O2",
    "-fno-omit-frame-pointer",
    // Functions of a real CUDA library begin with `push`; so do these.
    "-fno-shrink-wrap",
    "-fno-schedule-insns2",
    "-fno-ipa-icf",
    "-fPIC",
    "-shared",
];
const DRIVER: &[&str] =
    &["cuda.c", "cuda_contexts.c", "cuda_handles.c", "stub_books.c", "stub_switches.c"];
const PROGRAM: &[&str] = &[
    "-O1",
    "-fno-omit-frame-pointer",
    // Each site stays a frame of its own.
    "-fno-inline",
    "-fno-ipa-icf",
    "-fno-optimize-sibling-calls",
];

/// A runtime in a program: its functions begin with `push`, and each site stays a frame.
const LIBRARY_AND_PROGRAM: &[&str] = &[
    "-O1",
    "-fno-omit-frame-pointer",
    "-fno-shrink-wrap",
    "-fno-schedule-insns2",
    "-fno-inline",
    "-fno-ipa-icf",
    "-fno-optimize-sibling-calls",
];
/// The sources of the program that runs scenarios.
const CLIENT: &[&str] = &[
    "client.c",
    "client_sites.c",
    "client_calls.c",
    "client_threads.c",
    "client_processes.c",
    "client_jumps.c",
    "client_load.c",
    "client_every.c",
    "client_contexts.c",
];

fn compile_all(fixtures: &Fixtures, variant: Variant) -> anyhow::Result<()> {
    let protection = match variant {
        Variant::Endbr => "-fcf-protection=full",
        Variant::Plain | Variant::TailCall | Variant::Recorded => "-fcf-protection=none",
    };
    let calls = match variant {
        Variant::TailCall => "-DTAIL_CALL",
        Variant::Plain | Variant::Endbr | Variant::Recorded => "-fno-optimize-sibling-calls",
    };
    let sources = sources();
    let map = |name: &str| format!("-Wl,--version-script={}", sources.join(name).display());
    let origin = "-Wl,-rpath,$ORIGIN";
    let search = format!("-L{}", fixtures.directory.display());

    let mut driver = gcc(variant, LIBRARY, DRIVER);
    driver.args([protection, "-fno-optimize-sibling-calls", "-Wl,-soname,libcuda.so.1"]);
    finish(driver.arg(map("cuda.map")).arg("-pthread"), &fixtures.cuda())?;

    let mut runtime = gcc(variant, LIBRARY, &["cudart.c"]);
    runtime.args([protection, calls, "-Wl,-soname,libcudart.so.12"]).arg(map("cudart.map"));
    finish(runtime.args([&search, "-l:libcuda.so.1", origin]), &fixtures.cudart())?;

    let mut client = gcc(variant, PROGRAM, CLIENT);
    client.args([&search, "-l:libcudart.so.12", "-l:libcuda.so.1", origin, "-pthread"]);
    finish(&mut client, &fixtures.client())?;
    for (strip, program) in
        [(None, fixtures.client_static()), (Some("-s"), fixtures.client_stripped())]
    {
        let files = [CLIENT, &["cudart.c"]].concat();
        let mut client = gcc(variant, LIBRARY_AND_PROGRAM, &files);
        client.args([protection, &search, "-l:libcuda.so.1", origin, "-pthread"]).args(strip);
        finish(&mut client, &program)?;
    }
    plugins::compile(fixtures, variant, protection)?;
    let mut client = gcc(variant, PROGRAM, &["gpu_client.c"]);
    finish(client.args([&search, "-l:libcuda.so.1", origin]), &fixtures.gpu_client())?;
    let mut client = gcc(variant, PROGRAM, &["gpu_client.c"]);
    finish(client.args([&search, "-l:libcuda.so.1"]), &fixtures.driver_client())?;
    let mut hip = gcc(variant, LIBRARY, &["hip.c"]);
    hip.args([protection, "-fno-optimize-sibling-calls", "-Wl,-soname,libamdhip64.so.6"]);
    finish(hip.args([&search, "-l:libcuda.so.1", origin]), &fixtures.hip())?;
    let mut client = gcc(variant, PROGRAM, &["hip_client.c"]);
    client.args([&search, "-l:libamdhip64.so.6", "-l:libcuda.so.1", origin, "-pthread"]);
    finish(&mut client, &fixtures.hip_client())?;
    compile_libraries(fixtures, variant, protection)?;
    let mut pool = gcc(variant, LIBRARY, &["pool.c"]);
    pool.args([protection, "-fno-optimize-sibling-calls", "-Wl,-soname,libpool.so.3"]);
    finish(pool.args([&search, "-l:libcudart.so.12", origin]), &fixtures.pool())?;
    let mut client = gcc(variant, PROGRAM, &["pool_client.c"]);
    let libraries = ["-l:libpool.so.3", "-l:libcudart.so.12", "-l:libcuda.so.1"];
    finish(client.arg(&search).args(libraries).arg(origin), &fixtures.pool_client())?;
    let mut nvml = gcc(variant, LIBRARY, &["nvml.c"]);
    finish(nvml.arg("-Wl,-soname,libnvidia-ml.so.1"), &fixtures.nvml())?;
    compile_cases(fixtures, variant)?;
    compile_torch(fixtures, variant)?;
    compile_faults(fixtures, variant, protection)?;
    finish(gcc(variant, PROGRAM, &["loader.c"]).arg("-ldl"), &fixtures.loader())?;
    finish(&mut gcc(variant, PROGRAM, &["sandbox.c"]), &fixtures.sandbox())?;
    finish(gcc(variant, PROGRAM, &["real_cudart.c"]).arg("-ldl"), &fixtures.real_cudart())?;
    finish(&mut gcc(variant, LIBRARY, &["no_allocator.c"]), &fixtures.no_allocator())
}

/// Links a real runtime, also what of it is not called.
fn link_real(mut gcc: Command, major: u32, output: &Path) -> anyhow::Result<()> {
    gcc.args(["-DLINKED", "-Wl,--whole-archive"]).arg(paths::real_cudart_static(major)?);
    gcc.args(["-Wl,--no-whole-archive", "-ldl", "-lrt", "-pthread"]);
    finish(&mut gcc, output)
}

/// Stubs of libraries above CUDA and HIP: what the source calls them, their names, and what they
/// call.
const ABOVE: [(&str, &str, &[&str]); 6] = [
    ("CUBLASLT", "libcublasLt.so.12", &[]),
    ("CUBLAS", "libcublas.so.12", &["-l:libcublasLt.so.12", "-l:libcudart.so.12"]),
    ("CUDNN", "libcudnn.so.9", &[]),
    ("NCCL", "libnccl.so.2", &[]),
    ("ROCBLAS", "librocblas.so.4", &[]),
    ("MIOPEN", "libMIOpen.so.1", &[]),
];

fn compile_libraries(
    fixtures: &Fixtures,
    variant: Variant,
    protection: &str,
) -> anyhow::Result<()> {
    let search = format!("-L{}", fixtures.directory.display());
    let link = [&search, "-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN"];
    for (define, name, calls) in ABOVE {
        let mut library = gcc(variant, LIBRARY, &["libraries.c"]);
        library.arg(format!("-D{define}")).arg(format!("-Wl,-soname,{name}"));
        library.args([protection, "-fno-optimize-sibling-calls"]).args(link).args(calls);
        finish(&mut library, &fixtures.directory.join(name))?;
    }
    let mut client = gcc(variant, PROGRAM, &["library_client.c"]);
    client.args(link).args(ABOVE.map(|(_, name, _)| format!("-l:{name}"))).arg("-pthread");
    finish(&mut client, &fixtures.library_client())
}

fn compile_cases(fixtures: &Fixtures, variant: Variant) -> anyhow::Result<()> {
    let link = [
        &format!("-L{}", fixtures.directory.display()),
        "-l:libcudart.so.12",
        "-l:libcuda.so.1",
        "-l:libcudnn.so.9",
        "-Wl,-rpath,$ORIGIN",
    ];
    let mut stripped = gcc(variant, LIBRARY, &["cases/stripped.c"]);
    stripped.args(["-fno-optimize-sibling-calls", "-s", "-Wl,-soname,libstripped.so"]);
    finish(stripped.args(link), &fixtures.stripped())?;
    let files = [
        "main.c",
        "lost.c",
        "caches.c",
        "pools.c",
        "load.c",
        "families.c",
        "handles.c",
        "kernel.c",
    ]
    .map(|file| format!("cases/{file}"));
    let mut cases = gcc(variant, PROGRAM, &files.each_ref().map(String::as_str));
    finish(cases.args(link).args(["-l:libstripped.so", "-lm"]), &fixtures.cases())
}

fn compile_torch(fixtures: &Fixtures, variant: Variant) -> anyhow::Result<()> {
    let search = format!("-L{}", fixtures.directory.display());
    let stubs = ["-l:libcudart.so.12", "-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN", "-pthread"];
    let mut torch = gcc(variant, LIBRARY, &["torch/torch.c"]);
    torch.args(["-fno-optimize-sibling-calls", "-Wl,-soname,libc10_cuda.so"]);
    finish(torch.arg(&search).args(stubs), &fixtures.torch())?;
    let mut client = gcc(variant, PROGRAM, &["torch/torch_client.c"]);
    let library = [&search, "-l:libc10_cuda.so"];
    finish(client.args(library).args(stubs), &fixtures.torch_client())
}

/// What other tracers got wrong: runtimes whose `cudaMalloc` is an IFUNC or has two versions, the
/// program that calls them, and a program and a library with the note of the Go linker.
fn compile_faults(fixtures: &Fixtures, variant: Variant, protection: &str) -> anyhow::Result<()> {
    let search = format!("-L{}", fixtures.directory.display());
    let link = [&search, "-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN"];
    let named = |name: &str| fixtures.directory.join(name);
    for (define, map, name) in [
        ("-DRESOLVED", "cudart.map", "libcudart-resolved.so"),
        ("-DVERSIONED", "cudart_versions.map", "libcudart-versioned.so"),
    ] {
        let mut runtime = gcc(variant, LIBRARY, &["cudart_symbols.c"]);
        runtime.args([define, protection, "-fno-optimize-sibling-calls"]).args(link);
        runtime.arg(format!("-Wl,--version-script={}", sources().join(map).display()));
        finish(runtime.arg("-Wl,-soname,libcudart.so.12"), &named(name))?;
    }
    let mut faults = gcc(variant, PROGRAM, &["faults.c"]);
    finish(faults.args(link).args(["-l:libcudart.so.12", "-ldl"]), &named("faults"))?;
    let mut go = gcc(variant, LIBRARY_AND_PROGRAM, &["faults.c", "cudart.c", "go_note.c"]);
    finish(go.arg(protection).args(link).arg("-ldl"), &named("faults-go"))?;
    let mut go = gcc(variant, LIBRARY, &["pool.c", "go_note.c"]);
    go.args(["-fno-optimize-sibling-calls", "-Wl,-soname,libpool.so.3"]).args(link);
    finish(go.arg("-l:libcudart.so.12"), &named("libpool-go.so"))
}

fn gcc(variant: Variant, options: &[&str], files: &[&str]) -> Command {
    let mut command = Command::new("gcc");
    if variant == Variant::Recorded {
        // The compiler's own directory is in debug information as well.
        command.current_dir(sources());
        command.arg(format!("-ffile-prefix-map={}={RECORDED}", sources().display()));
    }
    command.args(["-Wall", "-Wextra", "-Werror", "-std=gnu11", "-g"]).args(options);
    command.args(files.iter().map(|file| sources().join(file)));
    command
}

/// Runs a compiler, with its output at this path.
pub(crate) fn finish(command: &mut Command, output: &Path) -> anyhow::Result<()> {
    // Linked aside and renamed: a probed or running file is never written into.
    let aside = output.with_extension("new");
    let compiler = command.get_program().to_string_lossy().into_owned();
    let done = command.arg("-o").arg(&aside).output().with_context(|| {
        format!("running {compiler}, which builds the fixtures: run `cargo xtask setup`")
    })?;
    if !done.status.success() {
        bail!("building {}: {}", output.display(), String::from_utf8_lossy(&done.stderr));
    }
    std::fs::rename(&aside, output).with_context(|| format!("renaming to {}", output.display()))
}

/// Where the sources are.
pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}

fn newest_source() -> SystemTime {
    let harness = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let options =
        ["fixture.rs", "fixture/plugins.rs", "stacks/build.rs"].map(|file| harness.join(file));
    let below = ["stacks", "cases", "torch"].map(|directory| sources().join(directory));
    let directories = below.into_iter().chain([sources()]).collect::<Vec<_>>();
    let entries = directories.iter().filter_map(|one| std::fs::read_dir(one).ok());
    entries
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
        .chain(options)
        .filter_map(|path| modified(&path))
        .max()
        .unwrap_or_else(SystemTime::now)
}
