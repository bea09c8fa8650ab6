//! How much memory a thread holds more after something than before: what symbols take is the
//! library's own affair, and resident memory does not tell (what was freed is used again before
//! it grows). A counter in front of the system's allocator, a nanosecond a call.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counted by thread.
struct Metered;

#[global_allocator]
static METERED: Metered = Metered;

thread_local! {
    // A plain word without a destructor: safe to touch whenever memory is asked for.
    static HELD: Cell<i64> = const { Cell::new(0) };
}

/// Bytes that this thread has asked for less those that it has given back. Only differences
/// mean anything: memory goes from thread to thread.
#[must_use]
pub fn held() -> i64 {
    HELD.get()
}

fn count(added: usize, taken: usize) {
    let by = i64::try_from(added).unwrap_or(0) - i64::try_from(taken).unwrap_or(0);
    HELD.set(HELD.get().wrapping_add(by));
}

// SAFETY: every call is passed on to the system's allocator as it is; counting asks for none.
unsafe impl GlobalAlloc for Metered {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_counted_by_thread() {
        let before = held();
        let mut kept: Vec<u8> = Vec::with_capacity(1_000);
        assert_eq!(held() - before, 1_000);
        kept.reserve_exact(5_000);
        assert_eq!(held() - before, 5_000);
        let zeros = vec![0_u8; 300];
        assert_eq!(held() - before, 5_300);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let before = held();
                let of_another = vec![1_u8; 700];
                assert_eq!(held() - before, 700);
                drop(of_another);
            });
        });
        let during = held();
        drop((kept, zeros));
        assert_eq!(during - held(), 5_300);
    }
}
