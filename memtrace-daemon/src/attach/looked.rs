//! Whose mappings are known: of processes that were looked into, and of those that hang since.
//!
//! Must never count a process as known that could have mapped something unheard.

use std::collections::HashSet;

/// Processes whose mappings are known.
#[derive(Debug, Default)]
pub(super) struct Looked {
    known: HashSet<u32>,
}

impl Looked {
    /// Takes in a look at all processes but `hanging`. What these had mapped before is still known
    /// if the kernel has `told` of all that was mapped since the last look. Whether that is so of
    /// each of them.
    pub(super) fn take(&mut self, looked: &HashSet<u32>, hanging: &[u32], told: bool) -> bool {
        let before = std::mem::replace(&mut self.known, looked.clone());
        let still = hanging.iter().copied().filter(|pid| told && before.contains(pid));
        self.known.extend(still);
        hanging.iter().all(|pid| self.known.contains(pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hangs_after_a_look_is_known_as_long_as_the_kernel_tells() {
        let mut looked = Looked::default();
        let all = HashSet::from([1, 2, 3]);
        let others = HashSet::from([1, 2]);
        assert!(looked.take(&all, &[], false), "nobody hangs");
        assert!(looked.take(&others, &[3], true));
        assert!(looked.take(&others, &[3], true));
        assert!(!looked.take(&others, &[3], false), "it may have mapped anything");
        assert!(!looked.take(&others, &[3], true), "and still has it");
        assert!(looked.take(&all, &[], true));
        assert!(looked.take(&others, &[3], true));
    }

    #[test]
    fn who_was_never_looked_into_is_not_known() {
        let mut looked = Looked::default();
        assert!(!looked.take(&HashSet::from([1]), &[2], true));
        assert!(!looked.take(&HashSet::from([1]), &[2], true));
        // One that no look has reached meanwhile for another reason.
        assert!(looked.take(&HashSet::from([1, 2]), &[], true));
        assert!(looked.take(&HashSet::from([1]), &[], true));
        assert!(!looked.take(&HashSet::from([1]), &[2], true));
    }
}
