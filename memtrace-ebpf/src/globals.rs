//! Values that user space sets before the programs are loaded: where the running kernel keeps
//! things (read from its BTF) and the tunables. The verifier sees them as constants.

macro_rules! globals {
    ($($(#[$doc:meta])* $name:ident = $function:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            static $name: u64 = 0;

            $(#[$doc])*
            #[inline(always)]
            pub fn $function() -> u64 {
                // SAFETY: a valid static. Volatile, so that the value at load is used rather
                // than the one that the compiler saw.
                unsafe { core::ptr::read_volatile(&raw const $name) }
            }
        )*
    };
}

globals! {
    /// Offsets in `task_struct`.
    OFF_TASK_FLAGS = task_flags;
    OFF_TASK_STACK = task_stack;
    OFF_TASK_GROUP_LEADER = task_group_leader;
    OFF_TASK_TGID = task_tgid;
    OFF_TASK_PID = task_pid;
    OFF_TASK_START_BOOTTIME = task_start_boottime;
    OFF_TASK_MM = task_mm;
    OFF_TASK_COMM = task_comm;
    OFF_TASK_SIGNAL = task_signal;
    OFF_TASK_CRED = task_cred;
    /// Offset of `uid` in `cred`.
    OFF_CRED_UID = cred_uid;
    /// Offset of `live` in `signal_struct`.
    OFF_SIGNAL_LIVE = signal_live;
    /// Offsets on the way from `mm_struct` to the trampoline of return probes.
    OFF_MM_UPROBES_STATE = mm_uprobes_state;
    OFF_UPROBES_STATE_XOL_AREA = uprobes_state_xol_area;
    OFF_XOL_AREA_VADDR = xol_area_vaddr;
    /// Offset of `thread.fsbase` in `task_struct`.
    OFF_TASK_FSBASE = task_fsbase;
    /// Offsets in `mm_struct`.
    OFF_MM_START_STACK = mm_start_stack;
    OFF_MM_EXEC_VM = mm_exec_vm;
    /// Offset of `object_size` in `kmem_cache`.
    OFF_CACHE_OBJECT_SIZE = cache_object_size;

    /// Positions of tracepoint arguments.
    ARG_KMALLOC_SITE = arg_kmalloc_site;
    ARG_KMALLOC_PTR = arg_kmalloc_ptr;
    ARG_KMALLOC_BYTES = arg_kmalloc_bytes;
    ARG_KFREE_PTR = arg_kfree_ptr;
    ARG_CACHE_ALLOC_SITE = arg_cache_alloc_site;
    ARG_CACHE_ALLOC_PTR = arg_cache_alloc_ptr;
    ARG_CACHE_ALLOC_CACHE = arg_cache_alloc_cache;
    ARG_CACHE_ALLOC_BYTES = arg_cache_alloc_bytes;
    ARG_CACHE_FREE_PTR = arg_cache_free_ptr;
    /// Whether `sched_process_exit` says `group_dead`.
    HAS_GROUP_DEAD = has_group_dead;

    /// Thread group id of the daemon, which is never booked.
    SELF_TGID = self_tgid;
    /// Whether only processes marked as traced are booked.
    ONLY_TRACED = only_traced;
    /// Whether every kernel allocation is booked by its whole stack.
    EXACT = exact;
    /// Whether any policy map has entries that count.
    POLICY_ACTIVE = policy_active;
    /// Whether a process that no policy map names is left out.
    POLICY_DEFAULT_EXCLUDE = policy_default_exclude;
    /// Growth of live bytes at which a stack is taken.
    SAMPLE_QUANTUM = sample_quantum;
    /// log2 of the end of age class 0, ns.
    AGE_SHIFT = age_shift;
    /// Entries beyond which nothing is inserted.
    KERNEL_LIVE_LIMIT = kernel_live_limit;
    CALL_LIVE_LIMIT = call_live_limit;
    /// Slots of the array of accounts.
    ACCOUNT_LIMIT = account_limit;
    /// What a copied KiB of stack costs of the budget, in ns of waiting.
    COPY_KIB_NS = copy_kib_ns;
    /// How much of it may be spent at once, ns.
    COPY_BURST_NS = copy_burst_ns;
    /// Bytes in the ring buffer beyond which calls wake user space.
    RING_WAKEUP_BYTES = ring_wakeup_bytes;
    /// Bytes in the ring buffer beyond which no stack is copied into it.
    RING_COPY_BYTES = ring_copy_bytes;
    /// Changes that one CPU saves up before it adds them to the common count of live entries.
    LIVE_BATCH = live_batch;
}
