//! bpf-linker, from its source: it must fit the compiler's LLVM, so no package will do.

use anyhow::{Context as _, Result};

use crate::{
    bpf_toolchain::LINKER_VERSION,
    command::{cargo, run, step},
};

/// Compiles and installs the version that is used; replaces another one.
///
/// # Errors
/// One sentence with the command to type.
pub fn install() -> Result<()> {
    step(format_args!("bpf-linker {LINKER_VERSION} (one to two minutes)"));
    let arguments = ["install", "bpf-linker", "--version", LINKER_VERSION, "--locked", "--force"];
    run(cargo().args(arguments)).with_context(|| {
        format!("type `cargo install bpf-linker --version {LINKER_VERSION} --locked` to see why")
    })
}
