//! Tests of files that have a runtime in themselves: the rules of libraries hold for them too.

use super::*;
use crate::attach::inspect::inspect_within;

impl World {
    /// A library with a runtime in itself.
    fn hidden(&self, name: &str) -> PathBuf {
        TestLibrary { arguments: &["-fvisibility=hidden"], ..TestLibrary::default() }
            .build(self.directory.path(), name)
    }

    /// Looks through a file that was found.
    fn look_within(&mut self, path: &Path) -> Option<u32> {
        let found = found(path, 1);
        assert!(self.libraries.may_hide(found.key.unwrap()));
        let inspection = inspect_within(elf::open(path).unwrap()).unwrap();
        let id = self.libraries.admit(&found, inspection);
        assert!(!self.libraries.may_hide(found.key.unwrap()), "once is enough");
        id
    }
}

#[test]
fn a_runtime_within_a_library_is_attached_and_called_static() {
    let mut world = World::new(FilePolicy::default());
    let path = world.hidden("hidden");
    assert_eq!(world.find(&path), None, "it is no library of the catalog");
    assert_eq!(world.libraries.coverage(), []);
    assert_eq!(world.look_within(&path), Some(1));
    assert_eq!(world.notes.borrow().log, ["+1r", "+1e"]);
    let row = world.libraries.coverage().remove(0);
    assert_eq!(row.library.as_deref(), Some("libcudart"));
    assert_eq!(row.layers, ["static"]);
    assert_eq!(row.functions.len(), wanted("libcudart"));
    assert_eq!(row.missing, Vec::<String>::new());
}

#[test]
fn a_library_that_exports_the_functions_of_a_runtime_is_no_second_one() {
    let mut world = World::new(FilePolicy::default());
    let path = TestLibrary::default().build(world.directory.path(), "preloaded");
    assert_eq!(world.find(&path), None);
    assert_eq!(world.look_within(&path), None);
    assert_eq!(world.libraries.coverage(), []);
    assert_eq!(world.libraries.attached(), 0);
}

#[test]
fn what_is_excluded_is_not_probed_whatever_it_has_in_itself() {
    let mut world = World::new(FilePolicy::default());
    let path = world.hidden("hidden");
    world.libraries.policy.exclude_paths = vec![path.clone()];
    assert_eq!((world.find(&path), world.look_within(&path)), (None, None));
    assert!(world.reason(&path).contains("path"));
}

#[test]
fn runtimes_within_libraries_leave_half_of_the_places_to_others() {
    let policy = FilePolicy { max_files_per_uid: 2, ..FilePolicy::default() };
    let mut world = World::new(policy);
    let (first, second) = (world.hidden("a"), world.hidden("b"));
    assert_eq!(world.find(&first), None);
    world.look_within(&first).unwrap();
    assert_eq!((world.find(&second), world.look_within(&second)), (None, None));
    assert!(world.reason(&second).contains("1 files of user id"));
    let key = found(&second, 1).key.unwrap();
    world.sweep(|mapped| mapped == key);
    assert!(!world.libraries.is_new(key), "it is not looked through over and over");
    let other = world.runtime("c");
    assert!(world.find(&other).is_some(), "there is room for a library");
    world.sweep(|_| false);
    assert_eq!(world.find(&second), None, "nobody mapped it any more: it is looked at anew");
    assert!(world.look_within(&second).is_some(), "nobody runs the others");
}
