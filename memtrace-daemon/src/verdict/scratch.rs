//! Memory that is used again from one evaluation to the next.

/// Buffers for [`super::trend`] and [`super::stats`].
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Floors, or their lower envelope.
    pub(super) envelope: Vec<f64>,
    /// Points that pairs are formed of.
    pub(super) points: Vec<f64>,
    /// Slopes of pairs.
    pub(super) pairs: Vec<f64>,
    /// Whatever a median is taken of.
    pub(super) middle: Vec<f64>,
}
