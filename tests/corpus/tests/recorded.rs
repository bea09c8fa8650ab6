//! What is said of real programs that were recorded is what they are.

use memtrace_corpus::recorded::{Recorded, directory, replay_all};

#[test]
fn recorded_programs_are_what_their_labels_say() {
    let mut things = 0;
    for Recorded { name, labels, right, wrong } in replay_all(&directory()).unwrap() {
        assert!(wrong.is_empty(), "{name}: {}", wrong.join("\n"));
        assert_eq!(right, labels, "{name}");
        things += labels;
    }
    assert!(things >= 25, "{things} things with a label");
}
