//! Memory that has no address until it is mapped: each mapping is a reference to it, so that it
//! leaves the books when it was released and is mapped nowhere any more, in whichever order.
//!
//! A mapping is an entry in the live map beside those of memory, but is in no counter. Its id is 0,
//! which no memory has, and what it maps stands in the place of its time.
//!
//! Mappings are settled at return. An address that another thread maps anew before the call that
//! unmapped it has returned is taken for the old one: programs that hand out addresses do it under
//! a lock.

use memtrace_common::{CallLive, CallLiveKey, LossCause, PointerClass, cookie_function};

use crate::{
    atomic,
    call_books::closed,
    inflight::Frame,
    live::{Inserted, insert_call, remove_call},
    loss::lost,
    maps::CALL_LIVE,
};

/// Mappings that one call takes away, at most.
const MOST: u64 = 1_024;
/// The least that can be mapped on any device: how far to go on behind a mapping that is not on
/// the books.
const GRANULE: u64 = 2 << 20;

/// Books a mapping: of `size_b` at `pointer`, so long as `size_a`. What is not on the books
/// (made before the probes were there) is left alone.
#[inline(never)]
pub fn map(space: u32, frame: *mut Frame) {
    // SAFETY: checked task storage.
    let (at, bytes, handle, cookie) =
        unsafe { ((*frame).pointer, (*frame).size_a, (*frame).size_b, (*frame).cookie) };
    let memory = CallLiveKey { space, class: PointerClass::Physical as u32, pointer: handle };
    let Some(live) = CALL_LIVE.get_ptr_mut(&memory) else { return };
    // SAFETY: a checked map value.
    atomic::fetch_add_32(unsafe { &raw mut (*live).state }, CallLive::REFERENCE);
    let key = CallLiveKey { space, class: PointerClass::Mapping as u32, pointer: at };
    let function = cookie_function(cookie);
    let entry = CallLive { bytes, time_ns: handle, function, ..CallLive::NONE };
    match insert_call(&key, &entry) {
        Inserted::New => {}
        // Nobody saw it go.
        Inserted::Replaced(old) => drop_reference(space, old.time_ns),
        Inserted::Full => {
            drop_reference(space, handle);
            lost(LossCause::LiveMapFull, 0);
        }
    }
}

/// Takes all mappings in a range away.
#[inline(always)]
pub fn unmap(space: u32, at: u64, bytes: u64) {
    let mut behind = 0;
    let mut count = 0;
    while count < MOST {
        if behind >= bytes {
            return;
        }
        let mapped = mt_unmap_one(u64::from(space), at.wrapping_add(behind));
        behind += if mapped == 0 { GRANULE } else { mapped };
        count += 1;
    }
    lost(LossCause::UnreadablePointer, 0);
}

/// Takes the mapping at an address away; its bytes, 0 where none is on the books.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mt_unmap_one(space: u64, at: u64) -> u64 {
    let space = space as u32;
    let key = CallLiveKey { space, class: PointerClass::Mapping as u32, pointer: at };
    let Some(mapping) = remove_call(&key) else { return 0 };
    drop_reference(space, mapping.time_ns);
    mapping.bytes
}

#[inline(never)]
fn drop_reference(space: u32, handle: u64) {
    closed(&CallLiveKey { space, class: PointerClass::Physical as u32, pointer: handle });
}
