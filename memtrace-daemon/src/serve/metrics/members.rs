//! Which of many have a series of their own: the largest, but sticky, so that two of equal
//! size do not change places at every scrape.

use std::collections::BTreeMap;

/// A newcomer replaces the smallest member only when it is larger by this factor.
const HYSTERESIS: u64 = 2;

/// At most `limit` members.
#[derive(Clone, Debug)]
pub struct Members<K> {
    limit: usize,
    /// With the size that each had at the last update.
    members: BTreeMap<K, u64>,
}

impl<K: Ord + Clone> Members<K> {
    /// Nobody yet.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self { limit, members: BTreeMap::new() }
    }

    /// Whether this one has a series of its own.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        self.members.contains_key(key)
    }

    /// Takes the sizes of now: who is gone leaves, free places go to the largest, and who is
    /// much larger than the smallest member takes its place.
    pub fn update(&mut self, sizes: &BTreeMap<K, u64>) {
        self.members.retain(|key, _| sizes.contains_key(key));
        for (key, size) in &mut self.members {
            *size = sizes.get(key).copied().unwrap_or_default();
        }
        let mut outside: Vec<(&K, u64)> = sizes
            .iter()
            .filter(|(key, _)| !self.members.contains_key(key))
            .map(|(key, size)| (key, *size))
            .collect();
        outside.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
        let mut outside = outside.into_iter();
        let free = self.limit.saturating_sub(self.members.len());
        self.members.extend(outside.by_ref().take(free).map(|(key, size)| (key.clone(), size)));
        for (key, size) in outside {
            let smallest = self.members.iter().min_by_key(|(_, size)| **size);
            let Some((loser, least)) = smallest.map(|(key, size)| (key.clone(), *size)) else {
                break;
            };
            if size <= least.saturating_mul(HYSTERESIS) {
                break;
            }
            self.members.remove(&loser);
            self.members.insert(key.clone(), size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(members: &mut Members<u32>, sizes: &[(u32, u64)]) -> Vec<u32> {
        members.update(&sizes.iter().copied().collect());
        members.members.keys().copied().collect()
    }

    #[test]
    fn the_largest_are_in_and_stay_until_somebody_is_much_larger() {
        let mut members = Members::new(2);
        assert_eq!(update(&mut members, &[(1, 10), (2, 30), (3, 20)]), [2, 3]);
        assert_eq!(update(&mut members, &[(1, 39), (2, 30), (3, 20)]), [2, 3]);
        assert_eq!(update(&mut members, &[(1, 41), (2, 30), (3, 20)]), [1, 2]);
        assert_eq!(update(&mut members, &[(1, 41), (3, 20)]), [1, 3]);
        assert_eq!(update(&mut members, &[(4, 0), (5, 0), (6, 1)]), [4, 6]);
        assert_eq!(update(&mut members, &[(4, 0), (5, 1), (6, 1)]), [5, 6]);
    }
}
