//! x
pub mod metrics;
