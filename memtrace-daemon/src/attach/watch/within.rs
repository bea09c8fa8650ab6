//! Runtimes that are part of other files: whose files are looked through for one, and when.
//!
//! Must never look through files of processes that do not run the driver's library: hosts map
//! thousands of files, and a table of symbols can be large. Nor through a file twice.

use std::io;
use std::os::unix::fs::MetadataExt as _;

use super::{
    CodeMapping, FILE_DEADLINE, FileKey, Found, Noted, Prober, Watcher, deadline, discover, elf,
};
use crate::attach::discover::Scan;
use crate::attach::elf::Identity;
use crate::attach::users;

impl<P: Prober> Watcher<P> {
    /// Looks through the files of processes that have come to run the driver's library: what they
    /// had mapped before. Whether coverage has changed.
    pub(super) fn examine(&mut self) -> bool {
        let mut changed = false;
        for pid in self.users.unexamined(|key| self.libraries.known(key)) {
            changed |= self.look_within_executable(pid);
            let mut scan = Scan::default();
            discover::scan_process(pid, &mut scan);
            changed |= self.look_within(scan.files.into_values());
        }
        changed
    }

    /// Looks through mapped files of processes that run the driver's library. Whether coverage has
    /// changed.
    pub(super) fn look_within(&mut self, files: impl IntoIterator<Item = CodeMapping>) -> bool {
        let mut changed = false;
        for mapping in files {
            let (pid, key) = (mapping.pid, mapping.key);
            if self.libraries.may_hide(key) {
                changed |= self.look_at(mapping, true);
            }
            if self.libraries.known(key).is_some() {
                changed |= self.users.maps(pid, key, Noted::Scanned);
            }
        }
        changed
    }

    /// The same for what they have mapped since without anybody being told.
    pub(super) fn look_within_untold(&mut self, scan: &Scan) {
        let examined = |key: &FileKey| {
            let mut pids = scan.users.get(key).into_iter().flatten();
            pids.any(|pid| self.users.is_examined(*pid))
        };
        let untold = |file: &&CodeMapping| self.libraries.may_hide(file.key) && examined(&file.key);
        let files: Vec<CodeMapping> = scan.files.values().filter(untold).cloned().collect();
        self.look_within(files);
    }

    /// Looks through a process' executable, which may be deleted. Whether coverage has changed.
    fn look_within_executable(&mut self, pid: u32) -> bool {
        let path = users::executable(pid);
        let link = path.clone();
        // Without opening it: the identity of what the link leads to, and its path.
        let follow = move || {
            let metadata = std::fs::metadata(&link)?;
            let identity = Identity { device: metadata.dev(), inode: metadata.ino() };
            Ok::<_, io::Error>((identity, std::fs::read_link(&link).unwrap_or_default()))
        };
        let Ok(Ok((identity, target))) = deadline::run(FILE_DEADLINE, follow) else { return false };
        if self.libraries.is_searched(identity) {
            return false;
        }
        let target = target.as_os_str().as_encoded_bytes().to_vec();
        let found = Found { key: None, path: target, pid: Some(pid) };
        self.look(&found, move || elf::open(&path), true)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::time::Instant;

    use super::*;
    use crate::attach::test_files::Library;
    use crate::attach::watch::tests::{row, run_with, watcher};

    /// A library with a runtime in itself, and the driver's.
    fn build(directory: &Path) -> (PathBuf, PathBuf) {
        let hidden = Library { arguments: &["-fvisibility=hidden"], ..Library::default() };
        let driver = Library { soname: Some("libcuda.so.1"), ..Library::default() };
        (hidden.build(directory, "hidden.so"), driver.build(directory, "driver.so"))
    }

    #[test]
    fn a_runtime_within_a_library_is_found_once_its_process_runs_the_driver() {
        let directory = tempfile::tempdir().unwrap();
        let (hidden, driver) = build(directory.path());
        let mut watcher = watcher();
        let mut without = run_with(&hidden);
        watcher.rescan(Instant::now()).unwrap();
        assert!(row(&watcher.coverage(), &hidden).is_none(), "nobody who maps it runs a driver");
        let both = format!("{}:{}", hidden.display(), driver.display());
        let mut with = run_with(Path::new(&both));
        assert!(watcher.rescan(Instant::now()).unwrap());
        let rows = watcher.coverage();
        let found = row(&rows, &hidden).unwrap();
        assert!(found.attached);
        assert_eq!(found.layers, ["static"]);
        assert_eq!(found.library.as_deref(), Some("libcudart"));
        let process = rows.iter().find(|row| row.kind == "process" && row.pid == Some(with.id()));
        let mut layers = process.unwrap().layers.clone();
        layers.sort();
        assert_eq!(layers, ["driver", "static"]);
        for child in [&mut without, &mut with] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_library_that_is_mapped_behind_the_driver_is_looked_through_too() {
        let directory = tempfile::tempdir().unwrap();
        let (hidden, driver) = build(directory.path());
        let mut watcher = watcher();
        let mut child = run_with(&driver);
        watcher.rescan(Instant::now()).unwrap();
        assert!(watcher.users.is_examined(child.id()));
        // As a look at all processes would show it: it runs the driver, and maps this as well.
        let mut scan = Scan::default();
        let mut other = run_with(&hidden);
        discover::scan_process(other.id(), &mut scan);
        watcher.rescan(Instant::now()).unwrap();
        assert!(row(&watcher.coverage(), &hidden).is_none());
        for users in scan.users.values_mut() {
            users.push(child.id());
        }
        watcher.look_within_untold(&scan);
        assert!(row(&watcher.coverage(), &hidden).is_some_and(|row| row.attached));
        for child in [&mut child, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
