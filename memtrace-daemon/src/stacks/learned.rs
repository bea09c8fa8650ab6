//! Steps of unwinding that the kernel side has been told, by address space.
//!
//! A step is true for as long as the code at its address is the same. The kernel side follows
//! steps only while the space has as many pages of executable mappings as when they were
//! learned; and whatever is mapped over a learned address takes the steps of its space away.

use std::time::Instant;

use memtrace_common::{Learned as Told, Step, StepKey, tunables::STEPS};
use rustc_hash::{FxHashMap, FxHashSet};

/// Most steps that are told: a nearly full hash map makes every insert slow.
const MAX_STEPS: usize = STEPS as usize / 10 * 9;

/// Processes of which is remembered when they last mapped something.
const MAX_MAPPED: usize = 4_096;

/// What steps were learned from.
#[derive(Clone, Copy, Debug)]
pub struct From {
    /// The process that was copied.
    pub tgid: u32,
    /// Its address space.
    pub space: u32,
    /// Its pages of executable mappings then.
    pub exec_pages: u64,
    /// When its copy came.
    pub asked: Instant,
}

/// Where steps are told.
pub trait StepSink: Send {
    /// Tells a step; false where there is no room for it.
    fn put(&mut self, key: StepKey, step: Step) -> bool;
    /// Takes a step back.
    fn remove(&mut self, key: StepKey);
}

/// What has been told.
pub struct Learned {
    sink: Box<dyn StepSink>,
    spaces: FxHashMap<u32, Space>,
    steps: usize,
    clock: u64,
    turn: u32,
    /// When something was last mapped in a process.
    mapped: FxHashMap<u32, Instant>,
    /// What was copied before this moment is not learned from, whoever's it is.
    not_before: Option<Instant>,
}

struct Space {
    tgid: u32,
    exec_pages: u64,
    addresses: FxHashSet<u64>,
    used: u64,
    /// Whether the kernel side follows them.
    followed: bool,
}

impl Learned {
    /// Nothing, to be told there.
    #[must_use]
    pub fn new(sink: Box<dyn StepSink>) -> Self {
        Self {
            sink,
            spaces: FxHashMap::default(),
            steps: 0,
            clock: 0,
            turn: 0,
            mapped: FxHashMap::default(),
            not_before: None,
        }
    }

    /// Tells what was learned from a stack that was copied when its process, `tgid`, had so many
    /// pages of executable mappings. `asked` is when the copy came: what was learned from older
    /// mappings than there are now is not told.
    pub fn learn(&mut self, from: &From, steps: &[(u64, Step)]) {
        let From { tgid, space, exec_pages, asked } = *from;
        let since = self.mapped.get(&tgid).copied().max(self.not_before);
        if steps.is_empty() || since.is_some_and(|since| since >= asked) {
            return;
        }
        if self.spaces.get(&space).is_some_and(|known| known.exec_pages != exec_pages) {
            self.forget(space);
        }
        self.clock += 1;
        let known = self.spaces.get(&space).map(|known| &known.addresses);
        let new = |(address, _): &&(u64, Step)| {
            *address != 0 && known.is_none_or(|known| !known.contains(address))
        };
        let new: Vec<(u64, Step)> = steps.iter().filter(new).copied().collect();
        if known.is_none() || !new.is_empty() {
            self.make_room(space, new.len());
        }
        let first = !self.spaces.contains_key(&space);
        let Self { sink, spaces, steps: told, clock, turn, .. } = self;
        let fresh = || Space {
            tgid,
            exec_pages,
            addresses: FxHashSet::default(),
            used: 0,
            followed: false,
        };
        let known = spaces.entry(space).or_insert_with(fresh);
        known.used = *clock;
        // Of processes that share their memory, the one that called last.
        known.tgid = tgid;
        for (address, step) in new {
            if sink.put(StepKey { address, space, reserved: 0 }, step)
                && known.addresses.insert(address)
            {
                *told += 1;
            }
        }
        if first {
            // Last: from here on the kernel side follows them.
            *turn = turn.wrapping_add(1);
            let since = Told::new(*turn, exec_pages);
            known.followed = sink.put(StepKey { address: 0, space, reserved: 0 }, Step(since.0));
            if !known.followed {
                self.forget(space);
            }
        }
    }

    /// Something was mapped over `start..end` of a process.
    pub fn mapped(&mut self, tgid: u32, start: u64, end: u64) {
        let now = Instant::now();
        if self.mapped.len() >= MAX_MAPPED {
            self.mapped.clear();
            self.not_before = Some(now);
        }
        self.mapped.insert(tgid, now);
        let over = |space: &Space| {
            space.tgid == tgid && space.addresses.iter().any(|at| (start..end).contains(at))
        };
        let gone: Vec<u32> =
            self.spaces.iter().filter(|(_, space)| over(space)).map(|(id, _)| *id).collect();
        for id in gone {
            self.forget(id);
        }
    }

    /// Something may have been mapped that was not heard of: nothing that was learned is certain.
    pub fn lost(&mut self) {
        self.not_before = Some(Instant::now());
        for id in self.spaces.keys().copied().collect::<Vec<_>>() {
            self.forget(id);
        }
    }

    /// Takes all steps of a space back.
    pub fn forget(&mut self, space: u32) {
        let Some(known) = self.spaces.remove(&space) else { return };
        self.steps -= known.addresses.len();
        // First: from here on the kernel side follows none of them.
        if known.followed {
            self.sink.remove(StepKey { address: 0, space, reserved: 0 });
        }
        for address in known.addresses {
            self.sink.remove(StepKey { address, space, reserved: 0 });
        }
    }

    /// Steps told now.
    #[cfg(test)]
    const fn len(&self) -> usize {
        self.steps
    }

    /// Forgets the spaces that were used longest ago until so many steps find room.
    fn make_room(&mut self, keep: u32, wanted: usize) {
        while self.steps + wanted + self.spaces.len() >= MAX_STEPS {
            let others = self.spaces.iter().filter(|(id, _)| **id != keep);
            let oldest = others.min_by_key(|(_, space)| space.used).map(|(id, _)| *id);
            match oldest {
                Some(oldest) => self.forget(oldest),
                None => return self.forget(keep),
            }
            if self.spaces.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::expendable::lock;

    #[derive(Clone, Default)]
    struct Map(Arc<Mutex<FxHashMap<StepKey, Step>>>);

    impl StepSink for Map {
        fn put(&mut self, key: StepKey, step: Step) -> bool {
            let mut map = lock(&self.0);
            map.len() < STEPS as usize && map.insert(key, step).is_none_or(|old| old == step)
        }

        fn remove(&mut self, key: StepKey) {
            assert!(lock(&self.0).remove(&key).is_some(), "{key:?} was never told");
        }
    }

    fn from(tgid: u32, space: u32, exec_pages: u64) -> From {
        From { tgid, space, exec_pages, asked: Instant::now() }
    }

    fn step(offset: u64) -> Step {
        Step::new(false, offset, None).unwrap()
    }

    #[test]
    fn steps_are_told_once_and_taken_back_when_code_comes_or_goes() {
        let map = Map::default();
        let mut learned = Learned::new(Box::new(map.clone()));
        let get =
            |space, address| lock(&map.0).get(&StepKey { address, space, reserved: 0 }).copied();
        learned.learn(&from(9, 1, 50), &[(0x1000, step(16)), (0x2000, Step::END)]);
        learned.learn(&from(9, 1, 50), &[(0x1000, step(16)), (0x3000, step(32))]);
        assert_eq!((learned.len(), get(1, 0)), (3, Some(Step(1 << 32 | 50))));
        assert_eq!(get(1, 0x3000), Some(step(32)));
        // More code: everything from before may be false.
        learned.learn(&from(9, 1, 51), &[(0x1000, step(48))]);
        assert_eq!(
            (get(1, 0), get(1, 0x1000), get(1, 0x3000)),
            (Some(Step(2 << 32 | 51)), Some(step(48)), None)
        );
        learned.mapped(8, 0, u64::MAX);
        learned.mapped(9, 0x1001, 0x2000);
        assert_eq!(learned.len(), 1);
        learned.mapped(9, 0x1000, 0x1001);
        assert_eq!((learned.len(), lock(&map.0).len()), (0, 0));
    }

    #[test]
    fn what_was_copied_before_a_change_teaches_nothing() {
        let map = Map::default();
        let mut learned = Learned::new(Box::new(map.clone()));
        let early = from(9, 1, 50);
        learned.mapped(9, 0x7000, 0x8000);
        learned.learn(&early, &[(0x1000, step(16))]);
        assert_eq!(learned.len(), 0);
        learned.learn(&from(9, 1, 50), &[(0x1000, step(16))]);
        assert_eq!(learned.len(), 1);
        let other = from(8, 2, 50);
        learned.lost();
        learned.learn(&other, &[(0x1000, step(16))]);
        assert_eq!((learned.len(), lock(&map.0).len()), (0, 0));
    }

    #[test]
    fn the_space_used_longest_ago_makes_room() {
        let map = Map::default();
        let mut learned = Learned::new(Box::new(map.clone()));
        for space in 1..=40 {
            let steps: Vec<_> = (1..=1_000).map(|at| (at, step(8))).collect();
            learned.learn(&from(space, space, 1), &steps);
            assert!(learned.len() < MAX_STEPS);
        }
        assert!(learned.spaces.contains_key(&40) && !learned.spaces.contains_key(&1));
        assert_eq!(lock(&map.0).len(), learned.len() + learned.spaces.len());
        let huge: Vec<_> = (1..=40_000).map(|at| (at, step(8))).collect();
        learned.learn(&from(77, 77, 1), &huge);
        assert!(lock(&map.0).len() <= STEPS as usize);
    }
}
