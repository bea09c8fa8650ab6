//! The live maps: every allocation that is followed, by address. A nearly full hash map makes
//! every insert slow, so inserting stops before.

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use memtrace_common::{CallLive, CallLiveKey, LossCause};

use crate::{
    atomic, globals,
    loss::lost,
    maps::{CALL_LIVE, KERNEL_LIVE, LIVE_DELTA, control},
};

const BPF_NOEXIST: u64 = 1;

/// A live kernel allocation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelLive {
    /// Bytes; the kernel's allocators stay far below 4 GiB.
    pub bytes: u32,
    /// Slot of its account.
    pub slot: u32,
    /// When it was made, monotonic ns.
    pub time_ns: u64,
}

/// What became of an insert.
pub enum Inserted<T> {
    /// Entered.
    New,
    /// Entered in the place of this entry, which must have been freed unseen.
    Replaced(T),
    /// No room.
    Full,
}

/// Now, monotonic ns. (The coarse clock is not for tracing programs.)
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: no arguments.
    unsafe { bpf_ktime_get_ns() }
}

/// Copies an entry word by word: for more than a word the compiler calls functions that go by the
/// byte, which each call of each library function would pay for.
#[inline(always)]
pub unsafe fn copy_call(from: *const CallLive, to: *mut CallLive) {
    const WORDS: usize = size_of::<CallLive>() / size_of::<u64>();
    let mut at = 0;
    while at < WORDS {
        // SAFETY: the caller passes entries, which are whole words.
        unsafe { to.cast::<u64>().add(at).write_volatile(from.cast::<u64>().add(at).read()) };
        at += 1;
    }
}

/// Enters a kernel allocation. That there was no room is counted.
#[inline(always)]
pub fn insert_kernel(pointer: u64, entry: &KernelLive) -> Inserted<KernelLive> {
    let Some(control) = control() else { return full(u64::from(entry.bytes)) };
    // SAFETY: a checked map value.
    let room = below(unsafe { &raw const (*control).kernel_live }, globals::kernel_live_limit());
    if room && KERNEL_LIVE.insert(pointer, entry, BPF_NOEXIST).is_ok() {
        count_kernel(1);
        return Inserted::New;
    }
    if let Some(found) = KERNEL_LIVE.get_ptr_mut(pointer) {
        // SAFETY: a checked map value. The allocator has just given this address to us, so
        // nobody else allocates or frees it now.
        unsafe {
            let old = *found;
            *found = *entry;
            return Inserted::Replaced(old);
        }
    }
    full(u64::from(entry.bytes))
}

/// Takes a kernel allocation out, if it is there. Of two that try, one gets it.
#[inline(always)]
pub fn remove_kernel(pointer: u64) -> Option<KernelLive> {
    let found = KERNEL_LIVE.get_ptr(pointer)?;
    // SAFETY: a checked map value.
    let entry = unsafe { *found };
    if let Err(error) = KERNEL_LIVE.remove(pointer) {
        return not_removed(error, u64::from(entry.bytes));
    }
    count_kernel(1_u64.wrapping_neg());
    Some(entry)
}

/// Saves changes of the count up, so that CPUs do not fight for one cache line.
#[inline(always)]
fn count_kernel(change: u64) {
    let Some(delta) = LIVE_DELTA.get_ptr_mut(0) else { return };
    let saved = atomic::fetch_add(delta, change).wrapping_add(change) as i64;
    let batch = globals::live_batch() as i64;
    if saved >= batch || saved <= -batch {
        atomic::sub(delta, saved as u64);
        if let Some(control) = control() {
            // SAFETY: a checked map value.
            atomic::add(unsafe { &raw mut (*control).kernel_live }, saved as u64);
        }
    }
}

/// Enters a library function's allocation. That there was no room is for the caller to count: of
/// a call inside a call it counts once.
#[inline(always)]
pub fn insert_call(key: &CallLiveKey, entry: &CallLive) -> Inserted<CallLive> {
    let Some(control) = control() else { return Inserted::Full };
    // SAFETY: a checked map value.
    let count = unsafe { &raw mut (*control).call_live };
    if below(count, globals::call_live_limit()) && CALL_LIVE.insert(key, entry, BPF_NOEXIST).is_ok()
    {
        atomic::add(count, 1);
        return Inserted::New;
    }
    // What is in the map already needs no room: an inner allocation gets its outer name.
    if let Some(found) = CALL_LIVE.get_ptr_mut(key) {
        // SAFETY: a checked map value. The library has just given this address to us.
        unsafe {
            let old = *found;
            *found = *entry;
            return Inserted::Replaced(old);
        }
    }
    Inserted::Full
}

/// Puts an allocation back whose free failed; false if its address has a new entry by now.
#[inline(always)]
pub fn put_back(key: &CallLiveKey, entry: &CallLive) -> bool {
    if CALL_LIVE.insert(key, entry, BPF_NOEXIST).is_err() {
        return false;
    }
    if let Some(control) = control() {
        // SAFETY: a checked map value.
        atomic::add(unsafe { &raw mut (*control).call_live }, 1);
    }
    true
}

/// Takes a library function's allocation out, if it is there. Of two that try, one gets it.
#[inline(always)]
pub fn remove_call(key: &CallLiveKey) -> Option<CallLive> {
    let found = CALL_LIVE.get_ptr(key)?;
    // SAFETY: a checked map value.
    let entry = unsafe { *found };
    if let Err(error) = CALL_LIVE.remove(key) {
        return not_removed(error, entry.bytes);
    }
    if let Some(control) = control() {
        // SAFETY: a checked map value.
        atomic::sub(unsafe { &raw mut (*control).call_live }, 1);
    }
    Some(entry)
}

/// Whether a count of entries is below its limit. Signed: what CPUs have saved up can make the
/// common count negative for a while.
#[inline(always)]
fn below(count: *const u64, limit: u64) -> bool {
    // SAFETY: callers pass a counter of a checked map value; others add to it meanwhile.
    (unsafe { core::ptr::read_volatile(count) } as i64) < limit as i64
}

/// An entry that could not be taken out: gone already (somebody else was first), or the map was
/// busy because we interrupted ourselves in it, which is a loss.
#[inline(always)]
fn not_removed<T>(error: i32, bytes: u64) -> Option<T> {
    const ENOENT: i32 = 2;
    if error != -ENOENT {
        lost(LossCause::Recursion, bytes);
    }
    None
}

#[inline(always)]
fn full<T>(bytes: u64) -> Inserted<T> {
    lost(LossCause::LiveMapFull, bytes);
    Inserted::Full
}
