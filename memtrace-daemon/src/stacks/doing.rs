//! What a thread is at that can block for ever, so that the thread that replaces it does not
//! walk into the same. Blocks nobody itself.

use std::sync::{Arc, Mutex};

use rustc_hash::FxHashSet;

use super::files::FileKey;
use crate::expendable::lock;

/// What the working thread is at, and what is not tried again because a thread got stuck in it.
#[derive(Debug, Default)]
pub struct Doing {
    now: Mutex<Now>,
    shunned: Mutex<FxHashSet<Thing>>,
}

#[derive(Debug, Default)]
struct Now {
    /// Which thread works; one that was given up may come back and must not speak for it.
    thread: u64,
    thing: Option<Thing>,
}

/// Something that can block for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Thing {
    /// /proc of the process with this address space.
    Maps(u32),
    /// The perf map of the process with this address space.
    PerfMap(u32),
    /// Opening the file with this device and inode number.
    Open(u64, u64),
    /// Reading debug information and symbols of this file.
    Lines(FileKey),
    /// Reading only the symbols of this file.
    Symbols(FileKey),
}

/// One thread's say in a [`Doing`].
#[derive(Debug)]
pub struct At {
    doing: Arc<Doing>,
    thread: u64,
}

impl Doing {
    /// The thread that works from now on.
    #[must_use]
    pub fn thread(self: &Arc<Self>) -> At {
        let mut now = lock(&self.now);
        now.thread += 1;
        now.thing = None;
        At { doing: Arc::clone(self), thread: now.thread }
    }

    /// The thread was given up in what it was at: never again. False where it was at nothing.
    pub fn shun(&self) -> bool {
        let thing = lock(&self.now).thing.take();
        let mut shunned = lock(&self.shunned);
        // Bounded by the threads that may hang, but not for panics: start over then.
        if shunned.len() >= 1_024 {
            shunned.clear();
        }
        thing.is_some_and(|thing| shunned.insert(thing))
    }
}

impl At {
    /// Does something, unless a thread got stuck in it before.
    ///
    /// # Errors
    /// A sentence, where it is not tried again.
    pub fn during<T>(&self, thing: Thing, act: impl FnOnce() -> T) -> Result<T, String> {
        if lock(&self.doing.shunned).contains(&thing) {
            return Err("not tried again: it blocked for seconds before".into());
        }
        self.set(Some(thing));
        let result = act();
        self.set(None);
        Ok(result)
    }

    fn set(&self, thing: Option<Thing>) {
        let mut now = lock(&self.doing.now);
        if now.thread == self.thread {
            now.thing = thing;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_got_stuck_in_is_not_tried_again() {
        let doing = Arc::new(Doing::default());
        let first = doing.thread();
        assert!(!doing.shun());
        first.set(Some(Thing::Maps(1)));
        assert!(doing.shun());
        let second = doing.thread();
        let why = second.during(Thing::Maps(1), || 7).unwrap_err();
        assert!(why.contains("not tried again"), "{why}");
        assert_eq!(second.during(Thing::Maps(2), || 7), Ok(7));
        // The stuck thread comes back, and must not speak for the one that works now.
        second.set(Some(Thing::Maps(3)));
        first.set(None);
        assert!(doing.shun());
        assert!(second.during(Thing::Maps(3), || 7).is_err());
    }
}
