//! Makes small ELF files with the C compiler that Rust's own linking needs, for tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::catalog::library_functions;

/// The catalog's symbols, as a stub library exports them.
pub fn symbols() -> impl Iterator<Item = &'static str> {
    library_functions().iter().map(|function| function.symbol)
}

/// A shared library to be made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Library<'a> {
    /// Its DT_SONAME.
    pub soname: Option<&'a str>,
    /// Its C source; without one it exports all [`symbols`].
    pub source: Option<&'a str>,
    /// More arguments for the compiler.
    pub arguments: &'a [&'a str],
    /// Whether it carries the note of the Go linker.
    pub go: bool,
}

impl Library<'_> {
    /// Compiles it to `directory/name`.
    pub fn build(&self, directory: &Path, name: &str) -> PathBuf {
        let stub: String = symbols()
            .enumerate()
            .map(|(n, symbol)| format!("int {symbol}(void) {{ return {n}; }}\n"))
            .collect();
        let mut source = self.source.map_or(stub, str::to_owned);
        if self.go {
            source += r#"
                __asm__(".pushsection .note.go.buildid,\"a\",@note\n"
                        ".long 4, 4, 4\n.ascii \"Go\\0\\0\"\n.ascii \"abcd\"\n.popsection\n");
            "#;
        }
        let input = directory.join(format!("{name}.c"));
        std::fs::write(&input, source).unwrap();
        let output = directory.join(name);
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&output).arg(&input);
        if let Some(soname) = self.soname {
            compiler.arg(format!("-Wl,-soname,{soname}"));
        }
        let result = compiler.args(self.arguments).output().unwrap();
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        output
    }
}

/// The address of a symbol, as `nm` sees it.
pub fn nm(path: &Path, symbol: &str) -> u64 {
    let output = Command::new("nm").arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text
        .lines()
        .find(|line| {
            line.rsplit(' ').next().is_some_and(|name| name.split('@').next() == Some(symbol))
        })
        .unwrap();
    u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
}
