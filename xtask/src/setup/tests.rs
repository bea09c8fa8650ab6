//! Which toolchain is taken, and what is said where one is incomplete.

use std::path::PathBuf;

use super::toolchain_packages;
use crate::bpf_toolchain::{
    BpfToolchain, Compiler, DEBIAN_PACKAGES, Found, LINKER_LLVM, LINKER_VERSION, Lack, Missing,
    Rustc,
};

fn rustc(program: &str, llvm_major: u32, has_core: bool) -> Option<Rustc> {
    Some(Rustc { program: PathBuf::from(program), llvm_major, has_core, llvm: None })
}

fn linker() -> Option<(PathBuf, String)> {
    Some((PathBuf::from("/bin/bpf-linker"), LINKER_VERSION.to_owned()))
}

#[test]
fn debian_is_taken_before_nightly() {
    let found = Found {
        debian: rustc("/usr/bin/rustc", LINKER_LLVM, true),
        nightly: rustc("rustup", LINKER_LLVM, true),
        linker: linker(),
    };
    let toolchain = BpfToolchain::choose(found);
    let debian = Compiler::Debian { rustc: PathBuf::from("/usr/bin/rustc") };
    assert_eq!(toolchain.map(|toolchain| toolchain.compiler), Ok(debian));
}

#[test]
fn nightly_with_source_will_do_where_debian_has_no_core() {
    let found = Found {
        debian: rustc("/usr/bin/rustc", 14, false),
        nightly: rustc("rustup", LINKER_LLVM, true),
        linker: linker(),
    };
    let nightly = Compiler::Nightly { rustup: PathBuf::from("rustup") };
    assert_eq!(BpfToolchain::choose(found).map(|toolchain| toolchain.compiler), Ok(nightly));
}

#[test]
fn everything_missing_is_one_sentence() {
    let sentence = BpfToolchain::choose(Found::default()).unwrap_err().to_string();
    for word in ["rustc-web", "libstd-rust-web-dev-bpf", "bpf-linker 0.10.1"] {
        assert!(sentence.contains(word), "{word} is not in: {sentence}");
    }
    assert!(!sentence.contains('\n'));
}

#[test]
fn only_the_missing_package_is_named() {
    let found =
        Found { debian: rustc("/usr/bin/rustc", 22, false), nightly: None, linker: linker() };
    let lacks = vec![Lack::Packages(vec!["libstd-rust-web-dev-bpf"])];
    assert_eq!(BpfToolchain::choose(found), Err(Missing(lacks)));
}

#[test]
fn a_compiler_of_another_llvm_is_refused_and_asked_for_again() {
    let found = Found {
        debian: rustc("/usr/bin/rustc", LINKER_LLVM + 1, true),
        nightly: rustc("rustup", LINKER_LLVM + 1, false),
        linker: linker(),
    };
    let Missing(lacks) = BpfToolchain::choose(found).unwrap_err();
    assert_eq!(lacks, [Lack::Llvm { compiler: "rustc-web", major: LINKER_LLVM + 1 }]);
    assert_eq!(toolchain_packages(&lacks), DEBIAN_PACKAGES);
}

#[test]
fn another_linker_is_named_with_its_version_and_needs_no_package() {
    let found = Found {
        debian: rustc("/usr/bin/rustc", LINKER_LLVM, true),
        nightly: None,
        linker: Some((PathBuf::from("/bin/bpf-linker"), "0.9.13".to_owned())),
    };
    let missing = BpfToolchain::choose(found).unwrap_err();
    assert!(missing.to_string().contains("0.9.13"));
    assert!(toolchain_packages(&missing.0).is_empty());
}
