//! Devices and contexts: which one a thread is in, which one an allocation is bound to, and what
//! is gone with it.
//!
//! A context is a small number: 0 for the primary context of a device, else one that was given
//! to the context when the program made it. Where a device is not known, whatever happens to any
//! device happens to it: what was closed too early is an `unknown_free` later, what was closed too
//! late would look kept.

use core::ffi::{c_long, c_void};

use aya_ebpf::helpers::bpf_probe_read_user;
use memtrace_common::{CallLive, CallLiveKey, DeviceRule, Family, FreeReason, PointerClass};

use crate::{
    atomic,
    call_books::{allocated_uncounted, gone},
    flush::{CONTINUE, STOP, for_each, map_pointer},
    inflight::{BELOW, Frame, Inflight},
    live::remove_call,
    maps::{CALL_LIVE, FUNCTIONS, control},
};

/// In a thread's place: the program said which it is. Below it are a device (its number and 1) and
/// a context, both 0 where they are not known.
const SAID: u32 = 1 << 31;
const CONTEXT_SHIFT: u32 = 8;
/// Devices that have a number in an entry.
const MOST_DEVICES: u64 = CallLive::DEVICE_MASK as u64 - 1;
/// Contexts that have a number of their own; then numbers are given again.
const MOST_CONTEXTS: u64 = u16::MAX as u64;

/// A device's number and 1, of an argument that is an `int`.
#[inline(always)]
fn device_of(argument: u64) -> u32 {
    let number = u64::from(argument as u32);
    if number < MOST_DEVICES { number as u32 + 1 } else { 0 }
}

/// The place of a thread. A thread that never said where it is is on device 0.
#[inline(always)]
unsafe fn current(inflight: *mut Inflight) -> u32 {
    // SAFETY: the caller passes checked task storage.
    unsafe {
        let place = (*inflight).place;
        if place == 0 && (*inflight).whole != 0 { 1 } else { place }
    }
}

/// Says in an entry which device and context it is bound to.
#[inline(always)]
pub unsafe fn place(inflight: *mut Inflight, frame: *mut Frame, rule: u8, entry: &mut CallLive) {
    // SAFETY: the caller passes checked task storage.
    unsafe {
        let current = current(inflight);
        let mut device = current & CallLive::DEVICE_MASK;
        entry.context = (current >> CONTEXT_SHIFT) as u16;
        if rule == DeviceRule::Ordinal as u8 {
            device = device_of((*frame).device);
            entry.context = 0;
        } else if rule == DeviceRule::Properties as u8 {
            device = named((*frame).device, device);
        }
        entry.state |= device << CallLive::DEVICE_SHIFT;
    }
}

/// The device of `CUmemAllocationProp` (cuda.h): behind two words there are the kind of place,
/// of which a device is 1, and its number.
#[inline(always)]
fn named(properties: u64, otherwise: u32) -> u32 {
    const DEVICE: u32 = 1;
    // SAFETY: the helper checks the address.
    match unsafe { bpf_probe_read_user(properties.wrapping_add(8) as *const [u32; 2]) } {
        Ok([DEVICE, number]) => device_of(u64::from(number)),
        // The host's memory, or whatever comes after it.
        Ok(_) => 0,
        Err(_) => otherwise,
    }
}

/// The place that a context is.
#[inline(always)]
fn place_of(space: u32, context: u64) -> u32 {
    let key = CallLiveKey { space, class: PointerClass::Context as u32, pointer: context };
    match CALL_LIVE.get_ptr(&key) {
        // SAFETY: a checked map value.
        Some(entry) => unsafe {
            SAID | (*entry).device() | u32::from((*entry).context) << CONTEXT_SHIFT
        },
        None => SAID,
    }
}

#[inline(always)]
unsafe fn push(inflight: *mut Inflight, place: u32) {
    // SAFETY: the caller passes checked task storage.
    unsafe {
        let [first, second, _] = (*inflight).below;
        (*inflight).below = [(*inflight).place, first, second];
        (*inflight).place = place;
    }
}

#[inline(always)]
unsafe fn pop(inflight: *mut Inflight) {
    // SAFETY: the caller passes checked task storage.
    unsafe {
        let [first, second, third] = (*inflight).below;
        (*inflight).place = first;
        (*inflight).below = [second, third, SAID];
    }
}

const _: () = assert!(BELOW == 3);

/// Notes where a thread goes.
#[inline(always)]
pub unsafe fn select(inflight: *mut Inflight, frame: *mut Frame, rule: u8, space: u32) {
    // SAFETY: the caller passes checked task storage.
    unsafe {
        let argument = (*frame).device;
        if rule == DeviceRule::Ordinal as u8 {
            (*inflight).place = SAID | device_of(argument);
        } else if rule == DeviceRule::Pop as u8 || argument == 0 {
            pop(inflight);
        } else if rule == DeviceRule::Push as u8 {
            push(inflight, place_of(space, argument));
        } else {
            (*inflight).place = place_of(space, argument);
        }
    }
}

/// Gives a context that was made its number, and notes that its thread is in it.
#[inline(always)]
pub unsafe fn made(inflight: *mut Inflight, entry: &mut CallLive) {
    let Some(control) = control() else { return };
    // SAFETY: a checked map value, and checked task storage by the caller.
    unsafe {
        let number = atomic::fetch_add(&raw mut (*control).contexts, 1);
        entry.context = (number % MOST_CONTEXTS) as u16 + 1;
        push(inflight, SAID | entry.device() | u32::from(entry.context) << CONTEXT_SHIFT);
    }
}

/// Notes by what handle a primary context goes, which argument 0 points to.
#[inline(always)]
pub unsafe fn retained(space: u32, frame: *mut Frame, entry: &CallLive) {
    // SAFETY: the caller passes checked task storage; the helper checks the user address.
    unsafe {
        let Ok(handle) = bpf_probe_read_user((*frame).size_a as *const u64) else { return };
        let key = CallLiveKey { space, class: PointerClass::Context as u32, pointer: handle };
        allocated_uncounted(&key, &CallLive { id: 0, ..*entry });
    }
}

/// A context that the program made is gone, and what is bound to it.
#[inline(always)]
pub unsafe fn destroyed(inflight: *mut Inflight, space: u32, entry: &CallLive) {
    // SAFETY: the caller passes checked task storage.
    unsafe {
        let place = (*inflight).place;
        if entry.context != 0
            && place >> CONTEXT_SHIFT & u32::from(u16::MAX) == u32::from(entry.context)
        {
            pop(inflight);
        }
    }
    if entry.context != 0 {
        mt_close(u64::from(space), u64::from(entry.device()), u64::from(entry.context), 0);
    }
}

/// The last reference to a primary context is gone that the program is known to have had. The
/// runtime library has one of its own, which nobody sees: while anything is there that it gave,
/// so is the context.
#[inline(always)]
pub fn released(space: u32, device: u64) {
    mt_close(u64::from(space), device, 0, 1);
}

/// A device was reset.
#[inline(always)]
pub unsafe fn reset(inflight: *mut Inflight, frame: *mut Frame, rule: u8, space: u32) {
    // SAFETY: the caller passes checked task storage.
    let device = unsafe {
        if rule == DeviceRule::Ordinal as u8 {
            device_of((*frame).device)
        } else {
            current(inflight) & CallLive::DEVICE_MASK
        }
    };
    mt_close(u64::from(space), u64::from(device), 0, 0);
}

/// What is to be closed.
#[repr(C)]
struct Scope {
    space: u32,
    /// Its number and 1; 0 for all.
    device: u32,
    context: u32,
    /// Whether anything was found that the runtime library gave.
    found: u32,
}

/// Closes what is bound to a context, unless `but_for_runtime` is set and the runtime library has
/// given any of it. A walk over the live map, in the time of who resets.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mt_close(space: u64, device: u64, context: u64, but_for_runtime: u64) -> u64 {
    let mut scope =
        Scope { space: space as u32, device: device as u32, context: context as u32, found: 0 };
    let argument = (&raw mut scope).cast::<c_void>();
    if but_for_runtime != 0 {
        for_each(map_pointer!(CALL_LIVE), look_for_runtime, argument);
        // The walk has changed it, which the compiler does not see.
        // SAFETY: as above.
        if unsafe { core::ptr::read_volatile(&raw const scope.found) } != 0 {
            return 0;
        }
    }
    for_each(map_pointer!(CALL_LIVE), close_one, argument);
    1
}

/// Whether an entry is bound to the context.
#[inline(always)]
unsafe fn bound(scope: *const Scope, key: &CallLiveKey, entry: *const CallLive) -> bool {
    // SAFETY: the caller passes the argument of the walk and a value of the map.
    unsafe {
        let device = (*entry).device();
        let wanted = (*scope).device;
        key.space == (*scope).space
            && (*entry).id != 0
            && (*entry).state & CallLive::PENDING == 0
            && u32::from((*entry).context) == (*scope).context
            && (device == 0 || wanted == 0 || device == wanted)
    }
}

unsafe extern "C" fn close_one(
    _map: *mut c_void,
    key: *const c_void,
    value: *mut c_void,
    argument: *mut c_void,
) -> c_long {
    // SAFETY: the kernel passes a key and a value of the map and the argument of the walk.
    unsafe {
        let key = *key.cast::<CallLiveKey>();
        let entry = value.cast::<CallLive>();
        if bound(argument.cast(), &key, entry)
            && let Some(spec) = FUNCTIONS.get(u32::from((*entry).function))
            && spec.bound != 0
            && let Some(entry) = remove_call(&key)
        {
            gone(&key, &entry, FreeReason::Closed);
        }
    }
    CONTINUE
}

unsafe extern "C" fn look_for_runtime(
    _map: *mut c_void,
    key: *const c_void,
    value: *mut c_void,
    argument: *mut c_void,
) -> c_long {
    // SAFETY: the kernel passes a key and a value of the map and the argument of the walk.
    unsafe {
        let scope = argument.cast::<Scope>();
        let key = *key.cast::<CallLiveKey>();
        let entry = value.cast::<CallLive>();
        if bound(scope, &key, entry)
            && let Some(spec) = FUNCTIONS.get(u32::from((*entry).function))
            && spec.bound != 0
            && spec.family & (Family::CudaRuntime as u8 | Family::Hip as u8) != 0
        {
            (*scope).found = 1;
            return STOP;
        }
    }
    CONTINUE
}
