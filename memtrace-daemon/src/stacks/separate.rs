//! Finding the separate debug file of a stripped one, as debuggers do: by build id, and by the
//! name and checksum that the file has of it. The process' own root comes first, ours second.
//!
//! Both files are hostile. A debug file counts only where it is proved to belong.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use flate2::Crc;

use super::files::{self, OpenFile};
use crate::host::text::text;

/// Where debug files are.
const DEBUG: &str = "usr/lib/debug";
/// Largest file whose checksum is computed, bytes: that takes 0.2 s.
const MAX_SUMMED: u64 = 256 << 20;

/// Opens the debug file of a file that a process has by this path.
///
/// # Errors
/// Why one that is there is not used.
pub fn find(tgid: u32, path: &[u8], of: &OpenFile) -> Result<Option<OpenFile>, String> {
    if of.facts.debug && of.facts.full_symbols && of.facts.link.is_none() {
        return Ok(None);
    }
    let candidates = candidates(path, of);
    let mut note = None;
    let roots = [(format!("/proc/{tgid}/root"), false), ("/".into(), true)];
    let opened = |(root, host): &(String, bool)| Some((files::root_of(root).ok()?, *host));
    for (root, host) in roots.iter().filter_map(opened) {
        for candidate in &candidates {
            match open(&root, host, candidate, of) {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(why) => note = note.or(Some(why)),
            }
        }
    }
    note.map_or(Ok(None), Err)
}

/// Where it may be, most likely first.
fn candidates(path: &[u8], of: &OpenFile) -> Vec<Vec<u8>> {
    let mut candidates = Vec::new();
    if let Some((first, rest)) = of.facts.build_id.as_deref().and_then(|id| id.split_at_checked(2))
        && !rest.is_empty()
    {
        candidates.push(format!("{DEBUG}/.build-id/{first}/{rest}.debug").into_bytes());
    }
    let path = Path::new(OsStr::from_bytes(path));
    if let (Some((name, _)), Some(folder)) = (&of.facts.link, path.parent())
        && !name.is_empty()
        && name.len() <= 255
        && !name.contains(&b'/')
        && !matches!(&**name, b"." | b"..")
    {
        let folder = folder.strip_prefix("/").unwrap_or(folder);
        let name = OsStr::from_bytes(name);
        let debug = Path::new(DEBUG);
        // Where /lib is a link to /usr/lib, debug files may be under either.
        let other = match folder.strip_prefix("usr") {
            Ok(short) => debug.join(short),
            Err(_) => debug.join("usr").join(folder),
        };
        let folders = [folder.to_owned(), folder.join(".debug"), debug.join(folder), other];
        let paths = folders.iter().map(|folder| folder.join(name));
        candidates.extend(paths.map(|path| path.into_os_string().into_encoded_bytes()));
    }
    candidates
}

/// Opens one, if it is there and belongs to the file.
fn open(
    root: &OwnedFd,
    host: bool,
    path: &[u8],
    of: &OpenFile,
) -> Result<Option<OpenFile>, String> {
    let Ok(handle) = files::open_in(root, path) else { return Ok(None) };
    let name = format!("/{}", text(path));
    let (file, stat) = files::regular(&handle, &name)?;
    let mut found = files::described(file, &stat, name)?;
    // Beside a program that is trusted lies what is.
    found.trusted = files::only_root_writes(&stat) && (host || of.trusted);
    if found.key == of.key {
        return Ok(None);
    }
    let name = &found.module;
    if let Some(why) = found.facts.refused {
        return Err(format!("{name}: {why}"));
    }
    match (&found.facts.build_id, &of.facts.build_id) {
        (Some(its), Some(ours)) if its == ours => {}
        (Some(_), Some(_)) => return Err(format!("{name} has another build id")),
        // Without a build id in both there is only the checksum to go by.
        _ => {
            let Some((_, sum)) = of.facts.link else { return Ok(None) };
            if found.key.size() > MAX_SUMMED {
                return Err(format!(
                    "{name} has no build id and is too large for its checksum to be computed"
                ));
            }
            match checksum(found.file()) {
                Ok(its) if its == sum => {}
                Ok(_) => return Err(format!("{name} has another checksum")),
                Err(error) => return Err(format!("{name} cannot be read: {error}")),
            }
        }
    }
    Ok((found.facts.debug || found.facts.full_symbols).then_some(found))
}

/// The checksum of a whole file, as debug links have it.
fn checksum(mut file: &File) -> io::Result<u32> {
    file.rewind()?;
    let mut sum = Crc::new();
    let mut buffer = vec![0_u8; 256 << 10];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 || u64::from(sum.amount()) > MAX_SUMMED {
            return Ok(sum.sum());
        }
        sum.update(buffer.get(..read).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> OpenFile {
        let file = File::open("/proc/self/exe").unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let mut open = files::described(file, &stat, "/opt/it/bin/memtrace".into()).unwrap();
        open.facts.build_id = Some("abcdef0123".into());
        open
    }

    fn paths(path: &str, of: &OpenFile) -> Vec<String> {
        candidates(path.as_bytes(), of).iter().map(|path| text(path)).collect()
    }

    #[test]
    fn debug_files_are_where_debuggers_look() {
        let mut of = ours();
        of.facts.link = Some((b"it.debug".to_vec(), 7));
        assert_eq!(
            paths("/usr/lib/x/it.so", &of),
            [
                "usr/lib/debug/.build-id/ab/cdef0123.debug",
                "usr/lib/x/it.debug",
                "usr/lib/x/.debug/it.debug",
                "usr/lib/debug/usr/lib/x/it.debug",
                "usr/lib/debug/lib/x/it.debug",
            ]
        );
        assert_eq!(paths("/lib/it.so", &of)[4], "usr/lib/debug/usr/lib/it.debug");
        // A name that leads elsewhere is no name.
        for name in [&b"../../etc/passwd"[..], b"/dev/zero", b"..", b""] {
            of.facts.link = Some((name.to_vec(), 7));
            assert_eq!(paths("/usr/lib/x/it.so", &of).len(), 1, "{name:?}");
        }
    }

    #[test]
    fn only_a_file_that_is_proved_to_belong_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("a.debug");
        std::fs::copy("/proc/self/exe", &name).unwrap();
        let root = files::root_of(folder.path().to_str().unwrap()).unwrap();
        let look = |of: &OpenFile, name: &str| open(&root, true, name.as_bytes(), of);
        let mut of = ours();
        let real = super::super::elf::facts(&File::open(&name).unwrap()).unwrap().build_id;
        assert!(look(&of, "a.debug").unwrap_err().contains("another build id"));
        of.facts.build_id = real;
        assert_eq!(&*look(&of, "a.debug").unwrap().unwrap().module, "/a.debug");
        of.facts.build_id = None;
        assert!(look(&of, "a.debug").unwrap().is_none(), "nothing proves it");
        of.facts.link = Some((b"a.debug".to_vec(), 7));
        assert!(look(&of, "a.debug").unwrap_err().contains("another checksum"));
        let sum = checksum(&File::open(&name).unwrap()).unwrap();
        of.facts.link = Some((b"a.debug".to_vec(), sum));
        assert!(look(&of, "a.debug").unwrap().is_some());
        // What is no file is not opened.
        let mode = rustix::fs::Mode::RUSR;
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(look(&of, "fifo").unwrap_err().contains("not a regular file"));
        std::os::unix::fs::symlink("/proc/self/exe", folder.path().join("out")).unwrap();
        assert!(look(&of, "out").unwrap().is_none());
    }
}
