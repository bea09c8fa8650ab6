//! What is known of mappings: what replaces what, what is inherited, and the bounds.

use memtrace_common::ProcessKey;

use super::*;

fn row(start: u64, end: u64, path: &str) -> Row {
    Row { start, end, offset: 0, device: 1, inode: 2, path: path.as_bytes().into() }
}

fn entry(tgid: u32, serial: u32, space: u32, parent_tgid: u32) -> ProcessEntry {
    let key = ProcessKey { start_ns: 7, tgid, reserved: 0 };
    ProcessEntry { key, serial, space, parent_tgid, ..ProcessEntry::default() }
}

fn path(spaces: &mut Spaces, tgid: u32, space: u32, address: u64) -> Option<String> {
    let row = spaces.find(tgid, space, address)?;
    Some(String::from_utf8(row.path.to_vec()).unwrap())
}

#[test]
fn reading_again_keeps_what_was_unmapped_and_replaces_what_was_mapped_over() {
    let mut spaces = Spaces::default();
    spaces.read(5, vec![row(10, 20, "/a"), row(30, 40, "/b"), row(50, 60, "/c")]);
    spaces.read(5, vec![row(10, 20, "/a"), row(35, 55, "/d")]);
    assert_eq!(path(&mut spaces, 1, 5, 15), Some("/a".into()));
    assert_eq!(path(&mut spaces, 1, 5, 36), Some("/d".into()));
    assert_eq!(path(&mut spaces, 1, 5, 31), None);
    spaces.read(5, vec![row(70, 80, "/e")]);
    assert_eq!(path(&mut spaces, 1, 5, 36), Some("/d".into()));
    assert_eq!(path(&mut spaces, 1, 5, 79), Some("/e".into()));
    assert_eq!(path(&mut spaces, 1, 5, 80), None);
}

#[test]
fn events_name_a_process_that_was_never_read() {
    let mut spaces = Spaces::default();
    let mapping = Mapping {
        tgid: 9,
        start: 0x1000,
        length: 0x1000,
        page_offset: 0x3000,
        device: (8, 1),
        inode: 4,
        path: b"/lib/x".to_vec(),
    };
    spaces.mapping(&mapping, 8);
    let row = spaces.find(9, 1, 0x1010).unwrap();
    assert_eq!((row.file_offset(0x1010), row.device), (0x3010, rustix::fs::makedev(8, 1)));
    assert!(spaces.knows(9, 1) && !spaces.knows(8, 1));
    spaces.process(&entry(9, 3, 1, 1));
    assert!(spaces.find(9, 1, 0x1010).is_some());
    // Another process with this id, started after the event.
    spaces.mapping(&mapping, 6);
    spaces.process(&entry(9, 4, 2, 1));
    assert_eq!(spaces.find(9, 2, 0x1010), None);
}

#[test]
fn a_file_that_is_mapped_over_another_hides_it() {
    let mut spaces = Spaces::default();
    let mapping = |start, inode| Mapping {
        tgid: 9,
        start,
        length: 0x1000,
        page_offset: 0,
        device: (8, 1),
        inode,
        path: format!("/lib/{inode}").into_bytes(),
    };
    spaces.process(&entry(9, 3, 1, 1));
    let old = Row { inode: 4, ..row(0x1000, 0x2000, "/lib/4") };
    let other = Row { inode: 4, offset: 0x1000, ..row(0x5000, 0x6000, "/lib/4") };
    spaces.read(1, vec![old, other]);
    // The same that was read, and what is in free space, change nothing.
    spaces.mapping(&mapping(0x1000, 4), 8);
    spaces.mapping(&mapping(0x8000, 4), 8);
    assert!(!spaces.outdated(1));
    // Another file in its place: the event is believed until /proc was asked again.
    spaces.mapping(&mapping(0x1800, 5), 8);
    assert!(spaces.outdated(1));
    assert_eq!(path(&mut spaces, 9, 1, 0x1810), Some("/lib/5".into()));
    assert_eq!(path(&mut spaces, 9, 1, 0x1010), None);
    assert_eq!(path(&mut spaces, 9, 1, 0x5010), Some("/lib/4".into()));
    let now = Row { inode: 6, ..row(0x1800, 0x2800, "/lib/6") };
    spaces.read(1, vec![now]);
    assert!(!spaces.outdated(1));
    assert_eq!(path(&mut spaces, 9, 1, 0x1810), Some("/lib/6".into()));
    // The same file, but another part of it.
    spaces.mapping(&Mapping { page_offset: 0x3000, ..mapping(0x1800, 6) }, 9);
    assert!(spaces.outdated(1) && !spaces.outdated(2));
}

#[test]
fn a_forked_child_is_named_by_its_parents_mappings_until_it_executes() {
    let mut spaces = Spaces::default();
    spaces.process(&entry(1, 1, 10, 0));
    spaces.read(10, vec![row(10, 20, "/parent")]);
    spaces.process(&entry(2, 2, 11, 1));
    assert_eq!(path(&mut spaces, 2, 11, 15), Some("/parent".into()));
    assert_eq!(spaces.source(2, 11, Instant::now()), Source::Read { start_ns: Some(7) });
    spaces.process(&entry(2, 2, 12, 1));
    assert_eq!(path(&mut spaces, 2, 12, 15), None);
    assert_eq!(path(&mut spaces, 2, 11, 15), Some("/parent".into()));
    // What /proc shows now is the new program's, so the old space must not be read from it.
    assert_eq!(spaces.source(2, 11, Instant::now()), Source::Gone);
    spaces.process(&ProcessEntry { ended_ns: 8, ..entry(2, 2, 12, 1) });
    assert_eq!(spaces.source(2, 12, Instant::now()), Source::Gone);
}

#[test]
fn a_space_is_read_again_for_later_stacks_but_not_for_ever() {
    let mut spaces = Spaces::default();
    let before = Instant::now();
    assert_eq!(spaces.source(1, 1, before), Source::Read { start_ns: None });
    spaces.read(1, Vec::new());
    assert_eq!(spaces.source(1, 1, before), Source::NotAgain);
    let reads = std::iter::repeat_with(|| {
        let source = spaces.source(1, 1, Instant::now());
        spaces.read(1, Vec::new());
        source
    });
    let reads = reads.take_while(|source| *source != Source::NotAgain).take(10_000).count();
    assert!((AT_ONCE as usize - 1..10_000).contains(&reads), "{reads}");
}

#[test]
fn tables_are_bounded_and_the_used_ones_stay() {
    let mut spaces = Spaces::default();
    for space in 0..5_000 {
        spaces.read(space, vec![row(10, 20, &format!("/{space}"))]);
        assert!(spaces.find(1, 0, 15).is_some(), "{space}");
    }
    assert!(spaces.sizes().0 <= MAX_SPACES);
    assert!(spaces.find(1, 4_999, 15).is_some() && spaces.find(1, 1, 15).is_none());
}
