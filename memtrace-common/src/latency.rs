//! How long calls of a library function take, from entry to return.

use bytemuck::{Pod, Zeroable};

use crate::assert_size;

/// Calls that took less than 2^this ns are in the first bucket.
pub const LATENCY_SHIFT: u32 = 10;
/// Each bucket ends at twice as much as the one before; the last one has no end.
pub const LATENCY_BUCKETS: usize = 23;

/// A function's calls by how long they took.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Latency {
    /// All of it, ns.
    pub sum_ns: u64,
    /// Calls: bucket n has those below 2^(10 + n) ns that the one before has not.
    pub buckets: [u64; LATENCY_BUCKETS],
}
assert_size!(Latency, 192);

impl Latency {
    /// The bucket of a call that took so long.
    #[must_use]
    pub const fn bucket(ns: u64) -> usize {
        let bits = u64::BITS - ns.leading_zeros();
        let bucket = bits.saturating_sub(LATENCY_SHIFT) as usize;
        if bucket < LATENCY_BUCKETS { bucket } else { LATENCY_BUCKETS - 1 }
    }

    /// Where a bucket ends, ns; `None` for the last one.
    #[must_use]
    pub const fn end_ns(bucket: usize) -> Option<u64> {
        if bucket + 1 < LATENCY_BUCKETS {
            Some(1 << (LATENCY_SHIFT as usize + bucket))
        } else {
            None
        }
    }

    /// All calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, calls| sum.saturating_add(*calls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_where_the_next_one_begins() {
        assert_eq!((Latency::bucket(0), Latency::bucket(1_023)), (0, 0));
        for bucket in 0..LATENCY_BUCKETS - 1 {
            let end = Latency::end_ns(bucket).unwrap();
            assert_eq!((Latency::bucket(end - 1), Latency::bucket(end)), (bucket, bucket + 1));
        }
        assert_eq!(Latency::end_ns(LATENCY_BUCKETS - 1), None);
        assert_eq!(Latency::bucket(u64::MAX), LATENCY_BUCKETS - 1);
    }
}
