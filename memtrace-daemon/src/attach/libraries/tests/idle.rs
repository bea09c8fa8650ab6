//! Tests of `idle.rs`: what is let go of, and what stays.

use std::time::Duration;

use super::*;

fn key(path: &Path) -> FileKey {
    found(path, 1).key.unwrap()
}

#[test]
fn the_limits_hold_and_a_place_that_nobody_uses_is_given_away() {
    let policy = FilePolicy { max_files: 3, max_files_per_uid: 2, ..FilePolicy::default() };
    let mut world = World::new(policy);
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| world.runtime(name));
    assert!(world.find(&a).is_some() && world.find(&b).is_some());
    assert_eq!(world.find(&c), None);
    assert!(world.reason(&c).contains("2 files of user id"));
    // A person's word counts beyond the limit of a user.
    let named = world.libraries.add_named(&d).unwrap();
    world.libraries.policy.max_files_per_uid = 9;
    // All files are mapped: nothing to give away. What was refused is tried again after.
    world.sweep(|_| true);
    assert!(world.libraries.is_new(key(&c)));
    assert_eq!(world.find(&c), None);
    assert!(world.reason(&c).contains("3 files are probed already"));
    // `a` is not mapped any more.
    let a_key = key(&a);
    world.sweep(|key| key != a_key);
    assert!(world.find(&c).is_some());
    assert!(world.libraries.is_new(a_key));
    assert!(world.libraries.attached.contains_key(&named));
    assert_eq!(world.libraries.attached(), 3);
}

#[test]
fn copies_that_nobody_runs_give_way_to_the_next_one_of_their_owner() {
    let policy = FilePolicy { max_files_per_uid: 2, ..FilePolicy::default() };
    let mut world = World::new(policy);
    let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(|name| world.runtime(name));
    let named = world.libraries.add_named(&e).unwrap();
    assert!(world.find(&a).is_some() && world.find(&b).is_some());
    let b_key = key(&b);
    world.sweep(|key| key == b_key);
    assert!(world.find(&c).is_some(), "nobody runs `a`");
    assert!(world.libraries.is_new(key(&a)) && !world.libraries.is_new(b_key));
    assert_eq!(world.find(&d), None);
    assert!(world.reason(&d).contains("2 files of user id"), "`b` and `c` are run");
    assert!(world.libraries.attached.contains_key(&named));
}

#[test]
fn what_is_mapped_again_keeps_its_place() {
    let policy = FilePolicy { max_files_per_uid: 2, ..FilePolicy::default() };
    let mut world = World::new(policy);
    let [a, b, c] = ["a", "b", "c"].map(|name| world.runtime(name));
    assert!(world.find(&a).is_some() && world.find(&b).is_some());
    world.sweep(|_| false);
    world.libraries.mapped_again(key(&a));
    assert!(world.find(&c).is_some());
    assert!(!world.libraries.is_new(key(&a)) && world.libraries.is_new(key(&b)));
}

#[test]
fn what_is_attached_before_it_is_run_takes_nobodys_place() {
    let policy = FilePolicy { max_files_per_uid: 1, ..FilePolicy::default() };
    let mut world = World::new(policy);
    let [a, b] = ["a", "b"].map(|name| world.runtime(name));
    let expected = |path: &Path| {
        let found = Found { key: None, pid: None, ..found(path, 1) };
        (found, inspect(elf::open(path).unwrap(), false).unwrap())
    };
    let (found, inspection) = expected(&a);
    assert!(world.libraries.admit(&found, inspection).is_some());
    let (found, inspection) = expected(&b);
    assert_eq!(world.libraries.admit(&found, inspection), None, "`a` was not looked at yet");
    world.sweep(|_| false);
    assert!(world.find(&b).is_some());
}

#[test]
fn a_deleted_file_is_let_go_when_nobody_runs_it_and_no_sooner() {
    let mut world = World::new(FilePolicy::default());
    let path = world.runtime("a");
    world.find(&path).unwrap();
    world.sweep(|_| false);
    assert_eq!(world.libraries.attached(), 1, "it is still there, somebody may start it");
    std::fs::remove_file(&path).unwrap();
    world.sweep(|_| true);
    assert_eq!(world.libraries.attached(), 1);
    world.sweep(|_| false);
    assert_eq!(world.libraries.attached(), 0);
    assert_eq!(world.libraries.coverage(), []);
}

#[test]
fn a_file_that_nobody_has_run_for_ten_minutes_is_let_go() {
    let mut world = World::new(FilePolicy::default());
    let [a, b] = ["a", "b"].map(|name| world.runtime(name));
    world.find(&a).unwrap();
    let named = world.libraries.add_named(&b).unwrap();
    let start = Instant::now();
    let mut look = |seconds, everybody, mapped| {
        let now = start + Duration::from_secs(seconds);
        world.libraries.sweep(now, everybody, |_| mapped);
        world.libraries.attached()
    };
    assert_eq!(look(0, true, false), 2);
    assert_eq!(look(590, true, false), 2);
    // It is run once more, for a moment.
    assert_eq!(look(595, true, true), 2);
    assert_eq!(look(610, true, false), 2);
    assert_eq!(look(1_209, true, false), 2);
    assert_eq!(look(1_210, false, false), 2, "who may not be looked into may run it");
    assert_eq!(look(1_210, true, false), 1);
    assert!(world.libraries.attached.contains_key(&named), "a person's word counts");
    assert_eq!(world.libraries.coverage().len(), 1);
    assert!(world.find(&a).is_some(), "it is attached anew when it is run again");
}

#[test]
fn a_file_that_does_not_answer_is_not_asked_again() {
    let mut world = World::new(FilePolicy::default());
    let path = world.runtime("a");
    let id = world.find(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // As if its device had not answered at an earlier look.
    world.libraries.attached.get_mut(&id).unwrap().silent = true;
    let start = Instant::now();
    world.libraries.sweep(start, true, |_| false);
    assert_eq!(world.libraries.attached(), 1);
    world.libraries.sweep(start + IDLE_FOR, true, |_| false);
    assert_eq!(world.libraries.attached(), 0);
}
