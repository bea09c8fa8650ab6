//! Plain data on its way through aya's typed maps.

use bytemuck::Pod;

/// Wraps a shared type so that aya takes it as a key or value: aya's `Pod` and the shared
/// types both come from elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Plain<T>(pub T);

// SAFETY: `bytemuck::Pod` promises more than aya asks: any bytes are a value, no padding.
unsafe impl<T: Pod> aya::Pod for Plain<T> {}
