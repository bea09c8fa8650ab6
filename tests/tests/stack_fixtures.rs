//! The programs that note their stacks, on their own: that they have the shapes which the suites
//! take for granted, in every flavour. Needs no root.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use memtrace_tests::memtrace::LIMIT;
use memtrace_tests::process;
use memtrace_tests::stacks::build::{self, USUAL};
use memtrace_tests::stacks::names::{Names, same};
use memtrace_tests::stacks::notes::{Note, Notes};

fn notes(program: &Path, arguments: &[&str]) -> Result<Notes> {
    let said = process::run(Command::new(program).args(arguments), LIMIT)?.expect_status(0)?;
    Notes::parse(&said.last_json()?)
}

/// The names of a note's frames in its own program, outermost functions only.
fn functions(notes: &Notes, note: &Note, program: &Path) -> Result<Vec<String>> {
    let names = Names::of(&notes.notes, &std::fs::canonicalize(program)?, Path::to_path_buf)?;
    let last = |index| names.at(note, index).and_then(|all| all.last().cloned());
    Ok((0..note.frames.len()).filter_map(last).collect())
}

fn begins_with(found: &[String], truth: &[&str]) -> bool {
    found.len() >= truth.len() && found.iter().zip(truth).all(|(one, name)| same(one, name))
}

#[test]
fn every_flavour_of_c_notes_every_shape() -> Result<()> {
    for flavour in build::flavours() {
        let program = build::build(flavour)?.file("c");
        let notes = notes(&program, &[])?;
        let check = |name: &str, truth: &[&str]| -> Result<()> {
            let found = functions(&notes, notes.named(name)?, &program)?;
            ensure!(begins_with(&found, truth), "{flavour}, {name}: {found:?}");
            let main = !["second thread", "coroutine"].contains(&name);
            ensure!(!main || found.ends_with(&["_start".into()]), "{found:?}");
            Ok(())
        };
        check("2 frames", &["plain_inner", "plain", "main"])?;
        check("200 frames", &["deep_end", "deep_199", "deep_198"])?;
        check("inlined", &["inlining", "main"])?;
        check("alloca", &["alloca_inner", "with_alloca", "main"])?;
        check("variable-length array", &["vla_inner", "with_vla", "main"])?;
        check("signal handler, raise", &["signal_inner", "on_raise", "signals", "main"])?;
        check("signal handler, fault", &["signal_inner", "on_fault", "faulting", "signals"])?;
        check("signal handler, other stack", &["signal_inner", "on_other_stack", "signals"])?;
        check("second thread", &["thread_inner", "in_thread"])?;
        check("coroutine", &["coroutine_inner", "coroutine"])?;
        check("names of one letter", &["i", "b", "main"])?;
        check("below qsort", &["compare", "sorting", "main"])?;
        ensure!(notes.named("200 frames")?.frames.len() >= 203, "{flavour}: not 200 deep");
        let cpu = std::fs::read_to_string("/proc/cpuinfo")?;
        if cpu.contains(" avx2 ") {
            check("AVX, 32 bytes", &["avx_inner", "avx_32", "avx", "main"])?;
            check("AVX, 64 bytes and alloca", &["avx_64_inner", "avx_64", "avx", "main"])?;
        } else {
            println!("this machine has no AVX2: its shapes are left out");
        }
    }
    Ok(())
}

#[test]
fn realigned_frames_need_expressions() -> Result<()> {
    for flavour in build::flavours() {
        let mut command = Command::new("readelf");
        command.arg("--debug-dump=frames").arg(build::build(flavour)?.file("c"));
        let text = process::run(&mut command, LIMIT)?.expect_status(0)?.stdout;
        let realigned = text.contains("DW_CFA_def_cfa_expression (DW_OP_breg6 (rbp)");
        ensure!(realigned, "{flavour}: no frame whose address is kept in memory");
    }
    Ok(())
}

#[test]
fn every_flavour_of_cpp_and_rust_notes_every_shape() -> Result<()> {
    for flavour in build::flavours() {
        let built = build::build(flavour)?;
        let cc = notes(&built.file("cc"), &[])?;
        ensure!(cc.notes.len() == 8, "{flavour}: {} notes of C++", cc.notes.len());
        let unwinding = cc.named("in a destructor during unwinding")?;
        let found = functions(&cc, unwinding, &built.file("cc"))?;
        ensure!(begins_with(&found, &["Guard::~Guard", "unwound", "unwinding"]), "{found:?}");
        let rust = notes(&built.file("rust"), &[])?;
        ensure!(rust.notes.len() == 11, "{flavour}: {} notes of Rust", rust.notes.len());
        let unwinding = rust.named("in a drop during unwinding")?;
        let found = functions(&rust, unwinding, &built.file("rust"))?;
        ensure!(found.first().is_some_and(|first| same(first, "drop")), "{found:?}");
    }
    Ok(())
}

#[test]
fn recursion_is_as_deep_as_it_is_asked_to_be() -> Result<()> {
    for flavour in build::flavours() {
        let notes = notes(&build::build(flavour)?.file("recursion"), &["5000"])?;
        let depth = notes.named("recursion")?.frames.len();
        ensure!((5_002..5_010).contains(&depth), "{flavour}: {depth}");
    }
    Ok(())
}

#[test]
fn shipped_forms_are_what_they_are_called() -> Result<()> {
    let shipped = build::shipped()?;
    let twin = notes(&shipped.twin(), &[])?;
    for program in [shipped.stripped(), shipped.debuglink(), shipped.fixed(), shipped.static_pie()]
    {
        let own = notes(&program, &[]).with_context(|| program.display().to_string())?;
        ensure!(own.notes.len() == twin.notes.len(), "{}", program.display());
    }
    let file = |program: &Path| -> Result<String> {
        let mut command = Command::new("readelf");
        command.args(["--file-header", "--sections", "--dynamic", "--wide"]).arg(program);
        Ok(process::run(&mut command, LIMIT)?.expect_status(0)?.stdout)
    };
    ensure!(file(&shipped.twin())?.contains(".symtab"));
    ensure!(!file(&shipped.stripped())?.contains(".symtab"));
    ensure!(file(&shipped.debuglink())?.contains(".gnu_debuglink"));
    ensure!(file(&shipped.fixed())?.contains("EXEC (Executable file)"));
    ensure!(!file(&shipped.static_pie())?.contains("NEEDED"));
    ensure!(file(&shipped.debug_frame())?.contains(".debug_frame"));
    // Its twin is the same code: a stack of one names the other's.
    let bare = notes(&shipped.debug_frame(), &[])?;
    ensure!(bare.named("200 frames")?.frames.len() < 5, "it can unwind itself");
    Ok(())
}

#[test]
fn one_path_of_the_tree_is_kept_as_often_as_asked() -> Result<()> {
    let program = build::build(USUAL)?.file("tree");
    let said = process::run(Command::new(program).args(["1000", "613", "10", "2"]), LIMIT)?;
    let line = said.expect_status(0)?.last_json()?;
    ensure!(line["kept"]["count"] == 10 && line["kept"]["bytes"] == 7_770, "{line}");
    Ok(())
}
