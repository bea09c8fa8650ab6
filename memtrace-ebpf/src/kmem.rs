//! The kernel's slab allocator: kmalloc and kfree, named caches where asked for.
//!
//! Prototypes (include/trace/events/kmem.h), argument positions by the running kernel's BTF:
//! `kmalloc(call_site, ptr, bytes_req, bytes_alloc, gfp_flags, node)`,
//! `kmem_cache_alloc(call_site, ptr, s, gfp_flags, node)`, `kfree(call_site, ptr)`,
//! `kmem_cache_free(call_site, ptr, s)`; `kvfree_call_rcu(head, ptr)` (mm/slab_common.c).

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext,
    helpers::generated::bpf_get_current_pid_tgid,
    macros::{btf_tracepoint, fentry},
    programs::{BtfTracePointContext, FEntryContext},
};
use memtrace_common::{
    Account, AccountKey, Context, FunctionId, KMALLOC, KMEM_CACHE_ALLOC, KernelSampleRecord,
    RecordKind,
};

use crate::{
    account::{account_of, add_one, freed, freed_unseen},
    arch::{on_stack, tracepoint_argument},
    emit::emit,
    flush::copy_account,
    globals,
    live::{Inserted, KernelLive, insert_kernel, now, remove_kernel},
    maps::{LAST_FREE, PROMOTED, control},
    process, stack,
    task::{Task, read_at},
};

/// The highest address that stands for no memory: `ZERO_SIZE_PTR`, include/linux/slab.h.
const ZERO_SIZE_PTR: u64 = 16;

/// An allocation that the kernel has just made.
struct Allocation {
    function: FunctionId,
    /// Which scratch memory the program may use.
    program: u32,
    call_site: u64,
    pointer: u64,
    bytes: u64,
}

#[btf_tracepoint(function = "kmalloc")]
pub fn mt_kmalloc(ctx: BtfTracePointContext) -> i32 {
    let context = ctx.as_ptr();
    allocated(
        context,
        &Allocation {
            function: KMALLOC,
            program: 0,
            call_site: tracepoint_argument(context, globals::arg_kmalloc_site()),
            pointer: tracepoint_argument(context, globals::arg_kmalloc_ptr()),
            bytes: tracepoint_argument(context, globals::arg_kmalloc_bytes()),
        },
    );
    0
}

#[btf_tracepoint(function = "kmem_cache_alloc")]
pub fn mt_cache_alloc(ctx: BtfTracePointContext) -> i32 {
    let context = ctx.as_ptr();
    let cache = tracepoint_argument(context, globals::arg_cache_alloc_cache());
    let bytes = if cache == 0 {
        // A kernel whose tracepoint says the bytes instead of the cache.
        tracepoint_argument(context, globals::arg_cache_alloc_bytes())
    } else {
        u64::from(read_at::<u32>(cache + globals::cache_object_size()))
    };
    allocated(
        context,
        &Allocation {
            function: KMEM_CACHE_ALLOC,
            program: 1,
            call_site: tracepoint_argument(context, globals::arg_cache_alloc_site()),
            pointer: tracepoint_argument(context, globals::arg_cache_alloc_ptr()),
            bytes,
        },
    );
    0
}

#[btf_tracepoint(function = "kfree")]
pub fn mt_kfree(ctx: BtfTracePointContext) -> i32 {
    let pointer = tracepoint_argument(ctx.as_ptr(), globals::arg_kfree_ptr());
    if pointer > ZERO_SIZE_PTR {
        remember_free(pointer);
        free(pointer);
    }
    0
}

/// The same once more: it still runs where the first is skipped because it interrupted itself.
#[btf_tracepoint(function = "kfree")]
pub fn mt_kfree_again(ctx: BtfTracePointContext) -> i32 {
    let pointer = tracepoint_argument(ctx.as_ptr(), globals::arg_kfree_ptr());
    if pointer > ZERO_SIZE_PTR && !was_freed_just_now(pointer) {
        free(pointer);
    }
    0
}

/// Says to the second program on this CPU that the first one runs for this pointer. First of
/// all, so that whatever interrupts it finds this pointer and not an older one.
#[inline(always)]
fn remember_free(pointer: u64) {
    if let Some(last) = LAST_FREE.get_ptr_mut(0) {
        // SAFETY: a checked map value.
        unsafe { core::ptr::write_volatile(last, pointer) };
    }
}

/// Whether the first program ran for this pointer; true once.
#[inline(always)]
fn was_freed_just_now(pointer: u64) -> bool {
    let Some(last) = LAST_FREE.get_ptr_mut(0) else { return false };
    // SAFETY: a checked map value.
    unsafe {
        let same = core::ptr::read_volatile(last) == pointer;
        core::ptr::write_volatile(last, 0);
        same
    }
}

#[btf_tracepoint(function = "kmem_cache_free")]
pub fn mt_cache_free(ctx: BtfTracePointContext) -> i32 {
    free(tracepoint_argument(ctx.as_ptr(), globals::arg_cache_free_ptr()));
    0
}

/// kfree_rcu has no kfree event: the free is seen where it is asked for.
#[fentry(function = "kvfree_call_rcu")]
pub fn mt_rcu_free(ctx: FEntryContext) -> i32 {
    free(ctx.arg::<u64>(1));
    0
}

#[inline(always)]
fn free(pointer: u64) {
    if pointer <= ZERO_SIZE_PTR {
        return;
    }
    if let Some(entry) = remove_kernel(pointer) {
        freed(&entry);
    }
}

#[inline(always)]
fn allocated(context: *mut c_void, allocation: &Allocation) {
    if allocation.pointer <= ZERO_SIZE_PTR {
        return;
    }
    let task = Task::current();
    let Some((serial, who)) = on_behalf_of(context, task) else { return };
    let key = AccountKey {
        call_site: allocation.call_site,
        detail: detail(context, allocation),
        serial,
        context_and_function: AccountKey::pack(who, allocation.function),
    };
    let bytes = allocation.bytes;
    let Some((slot, account)) = account_of(&key, bytes) else { return };
    // SAFETY: `account` is a checked map value.
    unsafe {
        add_one(&raw mut (*account).seen, bytes);
        let time_ns = now();
        let entry = KernelLive { bytes: bytes as u32, slot, time_ns };
        match insert_kernel(allocation.pointer, &entry) {
            Inserted::New => {}
            Inserted::Replaced(old) => freed_unseen(&old),
            Inserted::Full => {
                add_one(&raw mut (*account).dropped, bytes);
                return;
            }
        }
        add_one(&raw mut (*account).allocated, bytes);
        (*account).last_ns = time_ns;
        let live = (*account)
            .allocated
            .bytes
            .wrapping_sub((*account).freed.bytes)
            .wrapping_sub((*account).freed_unseen.bytes);
        let level = (*account).sampled_level;
        let tipped = key.detail == 0 && live >= level.wrapping_add(globals::sample_quantum());
        if tipped || (*account).sampled == 0 {
            sample(context, account, live.saturating_sub(level), who);
            (*account).sampled_level = live;
        }
    }
}

/// Serial and context that an allocation is booked for; `None` where it is not booked.
#[inline(always)]
fn on_behalf_of(context: *mut c_void, task: Task) -> Option<(u32, Context)> {
    if !on_stack(context, task.kernel_stack()) {
        return nobody_is_booked().then_some((0, Context::Interrupt));
    }
    let who = if task.is_kernel_thread() { Context::Worker } else { Context::Process };
    match process::current(task) {
        Some(identity) => identity.booked().then_some((identity.serial, who)),
        None => nobody_is_booked().then_some((0, who)),
    }
}

/// Whether memory is booked that belongs to no process: not where only some processes are.
#[inline(always)]
fn nobody_is_booked() -> bool {
    globals::only_traced() == 0
        && (globals::policy_active() == 0 || globals::policy_default_exclude() == 0)
}

/// 0, or the hash of the kernel stack where the call site is followed exactly.
#[inline(always)]
fn detail(context: *mut c_void, allocation: &Allocation) -> u64 {
    if globals::exact() == 0 {
        let Some(control) = control() else { return 0 };
        // SAFETY: a checked map value.
        if unsafe { (*control).promoted } == 0 || PROMOTED.get_ptr(allocation.call_site).is_none() {
            return 0;
        }
    }
    stack::kernel_hash(context, allocation.program)
}

/// Sends the account with the stack that reached it.
#[inline(never)]
fn sample(context: *mut c_void, account: *mut Account, weight: u64, who: Context) {
    let accepted = emit(RecordKind::KernelSample, |record: *mut KernelSampleRecord| {
        // SAFETY: reserved memory of the record's size, and a checked map value.
        unsafe {
            copy_account(account, &raw mut (*record).account);
            (*record).weight = weight;
            let id = bpf_get_current_pid_tgid();
            (*record).tgid = (id >> 32) as u32;
            (*record).tid = id as u32;
            (*record).kernel_frames = stack::kernel(context, &raw mut (*record).kernel);
            (*record).user_frames = 0;
            if matches!(who, Context::Process) {
                (*record).user_frames = stack::user(context, &raw mut (*record).user);
            } else {
                (*record).user = [0; memtrace_common::MAX_USER_FRAMES];
            }
        }
    });
    if accepted {
        // SAFETY: a checked map value.
        unsafe { (*account).sampled = 1 };
    }
}
