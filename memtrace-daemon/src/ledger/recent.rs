//! A small memory of what happened lately. It forgets the oldest first and never grows.

use std::collections::VecDeque;
use std::hash::Hash;

use rustc_hash::FxHashMap;

/// A map that keeps the last `limit` keys put into it.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    map: FxHashMap<K, V>,
    order: VecDeque<K>,
    limit: usize,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    pub(super) fn new(limit: usize) -> Self {
        Self { map: FxHashMap::default(), order: VecDeque::new(), limit }
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        if self.map.insert(key, value).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > self.limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.map.remove(&oldest);
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.map.get(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_a_repeat_takes_no_room() {
        let mut recent = Recent::new(2);
        recent.insert(1, 'a');
        recent.insert(2, 'b');
        recent.insert(2, 'c');
        assert_eq!((recent.get(&1), recent.get(&2)), (Some(&'a'), Some(&'c')));
        recent.insert(3, 'd');
        assert_eq!(
            (recent.get(&1), recent.get(&2), recent.get(&3)),
            (None, Some(&'c'), Some(&'d'))
        );
    }
}
