//! Kernel accounts: finding the slot of an account, and moving its counters.

use memtrace_common::{
    AGE_CLASSES, Account, AccountKey, Amount, LossCause, UNATTRIBUTED_SLOT, tunables,
};

use crate::{
    atomic, globals,
    live::{KernelLive, now},
    loss::lost,
    maps::{ACCOUNTS, FREE_SLOTS, HINTS, INDEX, control},
};

const BPF_NOEXIST: u64 = 1;

/// An account and its slot, made if there is none. Where there is no room, the one of what
/// cannot be attributed, counted: the books stay exact, only the site is unknown.
///
/// Which slot a key was found in last is remembered in a plain array, where a look-up costs
/// a fifth of one in the index; the key in the account says whether it is still true.
#[inline(always)]
pub fn account_of(key: &AccountKey, bytes: u64) -> Option<(u32, *mut Account)> {
    let hint = HINTS.get_ptr_mut(hint_of(key))?;
    // SAFETY: a checked map value.
    let slot = unsafe { core::ptr::read_volatile(hint) };
    let hinted = account(slot)?;
    // SAFETY: a checked map value.
    if slot != UNATTRIBUTED_SLOT && unsafe { same(&raw const (*hinted).key, key) } {
        return Some((slot, hinted));
    }
    let slot = match INDEX.get_ptr(key) {
        // SAFETY: a checked map value.
        Some(slot) => unsafe { *slot },
        None => make(key, bytes),
    };
    // SAFETY: a checked map value.
    unsafe { core::ptr::write_volatile(hint, slot) };
    Some((slot, account(slot)?))
}

/// Where the hint for a key is: Fibonacci hashing of its parts.
#[inline(always)]
fn hint_of(key: &AccountKey) -> u32 {
    let parts = key.call_site
        ^ key.detail
        ^ (u64::from(key.serial) << 32 | u64::from(key.context_and_function)).rotate_left(7);
    let hash = parts.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    hash as u32 & (tunables::ACCOUNT_HINTS - 1)
}

const _: () = assert!(tunables::ACCOUNT_HINTS.is_power_of_two());

/// Whether an account has this key. Field by field: there is no `memcmp` here.
#[inline(always)]
unsafe fn same(own: *const AccountKey, key: &AccountKey) -> bool {
    // SAFETY: the caller passes the key of a checked map value.
    unsafe {
        (*own).call_site == key.call_site
            && (*own).detail == key.detail
            && (*own).serial == key.serial
            && (*own).context_and_function == key.context_and_function
    }
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
    // Another CPU was first, or there is no room. No hint may find the key in a slot that
    // nobody has.
    // SAFETY: as above.
    unsafe {
        (*account).key = AccountKey { call_site: 0, detail: 0, serial: 0, context_and_function: 0 }
    };
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
pub fn age_class(age_ns: u64) -> usize {
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
