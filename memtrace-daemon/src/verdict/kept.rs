//! What a leak keeps: memory that is older than what is freed. Unlike a floor it follows no load:
//! what is in flight comes and goes, and takes nothing of this along.

/// Old memory of a subject that is called a leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Windows from which on memory counts, as when the leak was called.
    pub(super) age: u32,
    /// Bytes that were old before it began; the most since; those of now, where they are known.
    before: u64,
    most: u64,
    now: Option<u64>,
    /// The active window in which there were more than ever before.
    rose: u32,
}

impl Kept {
    /// When a leak is called: `old` bytes are old now, and it has grown by `growth` bytes.
    pub(super) fn new(age: u32, old: u64, growth: u64, active: u32) -> Self {
        Self { age, before: old.saturating_sub(growth), most: old, now: Some(old), rose: active }
    }

    /// Takes in how many bytes are old in an active window; `None` where nobody knows.
    pub(super) fn see(&mut self, old: Option<u64>, active: u32) {
        self.now = old;
        if let Some(old) = old.filter(|old| *old > self.most) {
            self.most = old;
            self.rose = active;
        }
    }

    /// Whether half of it was freed.
    pub(super) fn is_freed(&self) -> bool {
        let grown = self.most - self.before;
        self.now.is_some_and(|now| now.saturating_sub(self.before) < grown / 2)
    }

    /// Active windows since there was more than ever before.
    pub(super) const fn rests_for(&self, active: u32) -> u32 {
        active.saturating_sub(self.rose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leak_is_over_when_half_of_it_is_freed_and_not_before() {
        // 100 of the 150 old bytes grew.
        let mut kept = Kept::new(4, 150, 100, 20);
        kept.see(Some(101), 21);
        assert!(!kept.is_freed());
        kept.see(Some(250), 30);
        assert_eq!(kept.rests_for(35), 5);
        kept.see(None, 36);
        assert!(!kept.is_freed(), "nobody knows");
        // 200 more than before at most: 100 of them are left, then fewer.
        kept.see(Some(150), 40);
        assert!(!kept.is_freed());
        kept.see(Some(149), 41);
        assert!(kept.is_freed());
        assert_eq!(kept.rests_for(41), 11);
    }
}
