//! Attachment by `uprobe_multi` (kernel 6.6 and later): all points of a file by one link.
//!
//! aya 0.14 cannot load a program for it, so the object is parsed a second time, wired to the
//! maps that aya has made, and loaded here. Must never make a map of its own: books in two
//! places would both be wrong.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya_obj::relocation::EbpfRelocationError;
use aya_obj::{Object, ParseError};
use thiserror::Error;

use super::sys;
use super::usdt::Place;

/// Why a program could not be loaded for `uprobe_multi`.
#[derive(Debug, Error)]
pub enum MultiError {
    /// The object is broken.
    #[error("the BPF object cannot be parsed: {0}")]
    Parse(#[from] ParseError),
    /// The object has no such program.
    #[error("the BPF object has no program {0}")]
    NoProgram(String),
    /// The object has a map that the caller did not hand over.
    #[error("the map {0} of the BPF object was not made")]
    NoMap(String),
    /// The object's types are broken.
    #[error("the BTF of the BPF object cannot be used: {0}")]
    Btf(#[from] aya_obj::btf::BtfError),
    /// The kernel refused the object's types.
    #[error("the kernel refused the BTF of the BPF object: {0}")]
    BtfRefused(io::Error),
    /// The object refers to what is not there.
    #[error("the BPF object cannot be linked: {0}")]
    Relocate(#[from] EbpfRelocationError),
    /// The kernel refused the program.
    #[error(transparent)]
    Load(#[from] sys::LoadError),
}

/// A program loaded for `uprobe_multi`.
#[derive(Debug)]
pub struct MultiProgram {
    program: OwnedFd,
}

impl MultiProgram {
    /// Loads the program `name` of `object`, with the maps that aya has made of the same
    /// object: every one of them, global data (`.rodata`, `.data`, `.bss`) included, by name.
    ///
    /// # Errors
    /// What is wrong with the object, or what the kernel said.
    pub fn load(
        object: &[u8],
        name: &str,
        maps: &[(&str, BorrowedFd<'_>)],
    ) -> Result<Self, MultiError> {
        let mut object = Object::parse(object)?;
        let btf = load_btf(&mut object)?;
        relocate(&mut object, maps)?;
        object.sanitize_functions(aya::features());

        let no_program = || MultiError::NoProgram(name.to_owned());
        let program = object.programs.get(name).ok_or_else(no_program)?;
        let function = object.functions.get(&program.function_key()).ok_or_else(no_program)?;
        let functions = function.func_info.func_info_bytes();
        let lines = function.line_info.line_info_bytes();
        let record = |bytes: &[u8], count: usize| {
            u32::try_from(bytes.len().checked_div(count).unwrap_or(0)).unwrap_or(0)
        };
        let program = sys::load_program(&sys::ProgramImage {
            name,
            instructions: &function.instructions,
            license: &program.license,
            uprobe_multi: true,
            btf: btf.as_ref().map(|btf| sys::ProgramBtf {
                fd: btf.as_fd(),
                functions: (&functions, record(&functions, function.func_info.len())),
                lines: (&lines, record(&lines, function.line_info.len())),
            }),
        })?;
        Ok(Self { program })
    }

    /// A program that is loaded already, with `BPF_TRACE_UPROBE_MULTI` as its attach type.
    #[must_use]
    pub const fn from_fd(program: OwnedFd) -> Self {
        Self { program }
    }

    /// The loaded program.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Attaches to points (file offset, cookie) of an open file, in every process that runs
    /// it, now and later. Dropping the link detaches.
    ///
    /// # Errors
    /// What the kernel said; nothing is attached then.
    pub fn attach(
        &self,
        file: BorrowedFd<'_>,
        points: &[(u64, u64)],
        return_probe: bool,
    ) -> io::Result<OwnedFd> {
        let (offsets, cookies): (Vec<u64>, Vec<u64>) = points.iter().copied().unzip();
        let path = descriptor_path(file)?;
        sys::link_uprobe_multi(self.fd(), &path, &offsets, &cookies, return_probe)
    }
}

impl MultiProgram {
    /// Attaches to static probes (place, cookie) of an open file: in every process that runs it,
    /// now and later, or in one alone. Their semaphores are raised while the link is there.
    ///
    /// # Errors
    /// What the kernel said; nothing is attached then.
    pub fn attach_static(
        &self,
        file: BorrowedFd<'_>,
        places: &[(Place, u64)],
        process: Option<u32>,
    ) -> io::Result<OwnedFd> {
        let offsets: Vec<u64> = places.iter().map(|(place, _)| place.offset).collect();
        let cookies: Vec<u64> = places.iter().map(|(_, cookie)| *cookie).collect();
        let counters: Vec<u64> =
            places.iter().map(|(place, _)| place.semaphore.unwrap_or(0)).collect();
        let path = descriptor_path(file)?;
        sys::link_static_probes(self.fd(), &path, &offsets, &cookies, &counters, process)
    }
}

/// The path by which the kernel finds an open file again, whatever has become of its name.
pub(super) fn descriptor_path(file: BorrowedFd<'_>) -> io::Result<CString> {
    Ok(CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?)
}

/// The object's types, which the kernel wants for callbacks and shows in its logs.
fn load_btf(object: &mut Object) -> Result<Option<OwnedFd>, MultiError> {
    let Some(features) = aya::features().btf() else { return Ok(None) };
    let Some(btf) = object.fixup_and_sanitize_btf(features)? else { return Ok(None) };
    sys::load_btf(&btf.to_bytes()).map(Some).map_err(MultiError::BtfRefused)
}

fn relocate(object: &mut Object, maps: &[(&str, BorrowedFd<'_>)]) -> Result<(), MultiError> {
    let given: HashMap<&str, BorrowedFd<'_>> = maps.iter().copied().collect();
    let described = std::mem::take(&mut object.maps);
    let mut wired = Vec::with_capacity(described.len());
    for (name, map) in &described {
        let fd = given.get(name.as_str()).ok_or_else(|| MultiError::NoMap(name.clone()))?;
        wired.push((name.as_str(), fd.as_raw_fd(), map));
    }
    let text = object.functions.keys().map(|(section, _)| *section).collect();
    object.relocate_maps(wired.into_iter(), &text)?;
    object.relocate_calls(&text)?;
    Ok(())
}
