//! Kernel accounts: finding the slot of an account, and moving its counters.

use memtrace_common::{AGE_CLASSES, Account, AccountKey, Amount, LossCause, UNATTRIBUTED_SLOT};

use crate::{
    atomic, globals,
    live::{KernelLive, now},
    loss::lost,
    maps::{ACCOUNTS, FREE_SLOTS, INDEX, control},
};

const BPF_NOEXIST: u64 = 1;

/// The slot of an account, made if there is none. Where there is no room, the slot of what
/// cannot be attributed, counted: the books stay exact, only the site is unknown.
#[inline(always)]
pub fn slot_of(key: &AccountKey, bytes: u64) -> u32 {
    if let Some(slot) = INDEX.get_ptr(key) {
        // SAFETY: a checked map value.
        return unsafe { *slot };
    }
    make(key, bytes)
}

#[inline(never)]
fn make(key: &AccountKey, bytes: u64) -> u32 {
    let Some(slot) = free_slot() else {
        lost(LossCause::AccountMapFull, bytes);
        return UNATTRIBUTED_SLOT;
    };
    let Some(account) = ACCOUNTS.get_ptr_mut(slot) else { return UNATTRIBUTED_SLOT };
    // SAFETY: a checked map value, which nobody else has until the index names it.
    unsafe {
        (*account).key = *key;
        (*account).slot = slot;
        (*account).first_ns = now();
    }
    if INDEX.insert(key, slot, BPF_NOEXIST).is_ok() {
        return slot;
    }
    // Another CPU was first, or there is no room.
    let _ = FREE_SLOTS.push(slot, 0);
    if let Some(slot) = INDEX.get_ptr(key) {
        // SAFETY: a checked map value.
        return unsafe { *slot };
    }
    lost(LossCause::AccountMapFull, bytes);
    UNATTRIBUTED_SLOT
}

#[inline(always)]
fn free_slot() -> Option<u32> {
    if let Ok(Some(slot)) = FREE_SLOTS.pop() {
        return Some(slot);
    }
    let control = control()?;
    // SAFETY: a checked map value. User space starts the counter behind the reserved slot.
    let next = unsafe { &raw mut (*control).next_slot };
    // SAFETY: as above.
    if unsafe { core::ptr::read_volatile(next) } >= globals::account_limit() {
        return None;
    }
    let slot = atomic::fetch_add(next, 1);
    (slot < globals::account_limit()).then_some(slot as u32)
}

/// The account in a slot.
#[inline(always)]
pub fn account(slot: u32) -> Option<*mut Account> {
    ACCOUNTS.get_ptr_mut(slot)
}

/// Adds one object of `bytes` bytes to a counter. The count comes last: a flush that looks
/// between the two sends an old count with new bytes, sees the count move, and sends again.
#[inline(always)]
pub fn add_one(amount: *mut Amount, bytes: u64) {
    // SAFETY: callers pass counters of checked map values.
    unsafe {
        atomic::add(&raw mut (*amount).bytes, bytes);
        atomic::add(&raw mut (*amount).count, 1);
    }
}

/// Books a free that was seen.
#[inline(always)]
pub fn freed(entry: &KernelLive) {
    let Some(account) = account(entry.slot) else { return };
    let class = age_class(now().saturating_sub(entry.time_ns));
    // SAFETY: a checked map value; the class is below the length of the array.
    unsafe {
        add_one(&raw mut (*account).freed, u64::from(entry.bytes));
        atomic::add((&raw mut (*account).ages).cast::<u64>().add(class), 1);
    }
}

/// Books an allocation whose address was handed out again without a free that was seen.
#[inline(always)]
pub fn freed_unseen(entry: &KernelLive) {
    let Some(account) = account(entry.slot) else { return };
    // SAFETY: a checked map value.
    add_one(unsafe { &raw mut (*account).freed_unseen }, u64::from(entry.bytes));
}

/// floor(log2(age)) − shift + 1, between 0 and the last class. BPF has no instruction for it.
#[inline(always)]
fn age_class(age_ns: u64) -> usize {
    let mut rest = age_ns >> globals::age_shift();
    let mut class = 0;
    while class < AGE_CLASSES - 1 {
        if rest == 0 {
            break;
        }
        rest >>= 1;
        class += 1;
    }
    class & (AGE_CLASSES - 1)
}
