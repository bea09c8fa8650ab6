//! How old what was freed had become: frees by age, in classes that double from a window on, and
//! how far into its class the oldest of each was.
//!
//! Never how old what is live is: that is what cohorts tell.

use memtrace_common::AGE_CLASSES;

/// Parts of a class that are told apart.
const PARTS: u8 = 8;

/// Frees by age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreedAges {
    /// Class 0 is below a window, class n below 2^n windows, the last one is open.
    pub frees: [u64; AGE_CLASSES],
    /// By how many eighths of its class the oldest was older than where the class begins, rounded
    /// up: 8 where that is not known.
    reaches: [u8; AGE_CLASSES],
}

impl FreedAges {
    /// Where it is known how many were freed in each class, and no more.
    #[must_use]
    pub const fn of(frees: [u64; AGE_CLASSES]) -> Self {
        Self { frees, reaches: [PARTS; AGE_CLASSES] }
    }

    /// Windows at which a class begins.
    #[must_use]
    pub const fn begins(class: usize) -> u32 {
        if class == 0 { 0 } else { 1 << (class - 1) }
    }

    /// Something that was so old was freed.
    pub(super) fn freed(&mut self, age_ns: u64, window_ns: u64) {
        let window_ns = window_ns.max(1);
        let windows = age_ns / window_ns;
        let class = usize::try_from(u64::BITS - windows.leading_zeros()).unwrap_or(0);
        let class = class.min(AGE_CLASSES - 1);
        let begins_ns = u64::from(Self::begins(class)).saturating_mul(window_ns);
        let width_ns = u64::from(width(class)).saturating_mul(window_ns);
        let parts = age_ns.saturating_sub(begins_ns).saturating_mul(PARTS.into()) / width_ns + 1;
        if let (Some(frees), Some(reach)) = (self.frees.get_mut(class), self.reaches.get_mut(class))
        {
            *frees += 1;
            *reach = (*reach).max(u8::try_from(parts).map_or(PARTS, |parts| parts.min(PARTS)));
        }
    }

    /// Takes in those of another site.
    pub fn add(&mut self, more: &Self) {
        for (frees, more) in self.frees.iter_mut().zip(more.frees) {
            *frees += more;
        }
        for (reach, more) in self.reaches.iter_mut().zip(more.reaches) {
            *reach = (*reach).max(more);
        }
    }

    /// Windows after which all was freed that was freed in a class.
    #[must_use]
    pub fn until(&self, class: usize) -> u32 {
        let reach = self.reaches.get(class).copied().unwrap_or(PARTS);
        let part = (width(class) * u32::from(reach)).div_ceil(PARTS.into());
        (Self::begins(class) + part).max(1)
    }
}

/// Windows in a class; of the last one as many as in another that begins there.
const fn width(class: usize) -> u32 {
    if class == 0 { 1 } else { FreedAges::begins(class) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_a_class_is_known_to_an_eighth_of_it() {
        let mut ages = FreedAges::default();
        for (age, class, until) in [
            (0, 0, 1),
            (9, 0, 1),
            (10, 1, 2),
            (160, 5, 18),
            (190, 5, 20),
            (170, 5, 20),
            (319, 5, 32),
        ] {
            let before = ages.frees[class];
            ages.freed(age, 10);
            assert_eq!((ages.frees[class], ages.until(class)), (before + 1, until), "{age}");
        }
        ages.freed(u64::MAX, 10);
        assert_eq!((ages.frees[7], ages.until(7)), (1, 128));
        assert_eq!(FreedAges::of([1; AGE_CLASSES]).until(5), 32);
    }

    #[test]
    fn of_two_sites_the_older_one_counts() {
        let (mut one, mut other) = (FreedAges::default(), FreedAges::default());
        one.freed(170, 10);
        other.freed(250, 10);
        one.add(&other);
        assert_eq!((one.frees[5], one.until(5)), (2, 26));
    }
}
