//! How the allocator holds memory that nobody uses, and gives it back.

/// Blocks from this size on, bytes, are the system's again as soon as they are freed.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 1 << 20;

/// Has all threads use one heap, and large blocks none. With a heap a thread, what one frees the
/// others cannot use: after some 10,000 short processes the daemon held twice as much. And what a
/// picture of 50,000 sites leaves in a heap when it is gone, smaller blocks keep from being given
/// back; glibc by itself counts a block as large from the size on that was freed last.
///
/// To be called before there is another thread.
pub fn set_up() {
    #[cfg(target_env = "gnu")]
    // SAFETY: there is no other thread.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Gives free memory back to the system. It walks all that is free: not to be called where that
/// would be noticed.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: always allowed.
    unsafe {
        libc::malloc_trim(0);
    }
}
