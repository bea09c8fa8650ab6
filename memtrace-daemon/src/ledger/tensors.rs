//! How much tensors of one address space took of PyTorch's pool at most, whatever came and went
//! between two looks: without it a pool that holds what a request needed would look fragmented.

use memtrace_common::{Amount, FIRST_DECLARED_FUNCTION, FIRST_STATIC_PROBE};

/// What the pool rounds sizes up to: a tensor takes less than this more than its size.
const ROUND: i64 = 512;

/// Whether a function is a static probe, which tells of parts of a pool.
pub(super) fn is_part(function: u32) -> bool {
    let range = u32::from(FIRST_STATIC_PROBE)..u32::from(FIRST_DECLARED_FUNCTION);
    range.contains(&function)
}

/// Tensors of one address space. Signed: a free may be heard before its allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tensors {
    count: i64,
    bytes: i64,
    most: i64,
}

impl Tensors {
    pub(super) fn given(&mut self, bytes: u64) {
        self.count = self.count.saturating_add(1);
        self.bytes = self.bytes.saturating_add_unsigned(bytes);
        self.look();
    }

    pub(super) fn taken(&mut self, bytes: u64) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub_unsigned(bytes);
    }

    /// Totals are the authority: what was lost on the way counts from here on.
    pub(super) fn told(&mut self, live: Amount) {
        self.count = i64::try_from(live.count).unwrap_or(i64::MAX);
        self.bytes = i64::try_from(live.bytes).unwrap_or(i64::MAX);
        self.look();
    }

    fn look(&mut self) {
        self.most = self.most.max(self.taken_now());
    }

    fn taken_now(&self) -> i64 {
        self.bytes.saturating_add(self.count.saturating_mul(ROUND))
    }

    /// Live tensors.
    #[must_use]
    pub fn live(&self) -> Amount {
        let whole = |number: i64| u64::try_from(number).unwrap_or(0);
        Amount { count: whole(self.count), bytes: whole(self.bytes) }
    }

    /// What live tensors take of the pool at most, bytes: their sizes, rounded up.
    #[must_use]
    pub fn rounded_bytes(&self) -> u64 {
        u64::try_from(self.taken_now()).unwrap_or(0)
    }

    /// The most that this ever was, bytes.
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        u64::try_from(self.most).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_is_what_was_live_at_one_time() {
        let mut tensors = Tensors::default();
        for bytes in [1_000, 2_000] {
            tensors.given(bytes);
        }
        tensors.taken(2_000);
        tensors.given(500);
        assert_eq!(tensors.live(), Amount { count: 2, bytes: 1_500 });
        assert_eq!((tensors.rounded_bytes(), tensors.most_bytes()), (2_524, 4_024));
    }

    #[test]
    fn a_free_that_is_heard_first_and_lost_records_leave_no_trace() {
        let mut tensors = Tensors::default();
        tensors.taken(1 << 30);
        assert_eq!(tensors.live(), Amount::default());
        tensors.given(1 << 30);
        assert_eq!(tensors.most_bytes(), 0, "it was never live beside anything");
        tensors.told(Amount { count: 3, bytes: 3_000 });
        tensors.taken(3_000);
        assert_eq!(tensors.most_bytes(), 3_000 + 3 * 512);
        tensors.told(Amount::default());
        assert_eq!(tensors.rounded_bytes(), 0);
    }
}
