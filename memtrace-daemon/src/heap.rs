//! Memory that the allocator holds and nobody uses. Never called where it would be noticed: it walks
//! all that is free.

/// Gives free memory back to the system.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: always allowed.
    unsafe {
        libc::malloc_trim(0);
    }
}
