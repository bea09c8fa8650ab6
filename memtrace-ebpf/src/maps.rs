//! All maps. Sizes are defaults: user space sets them before loading. Everything is
//! preallocated and bounded.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    macros::map,
    maps::{Array, HashMap, PerCpuArray, Queue, RingBuf},
};
use memtrace_common::{
    Account, AccountKey, AgeRow, CallLive, CallLiveKey, Control, FunctionSpec, Latency, LossCause,
    LossCounter, MAX_KERNEL_FRAMES, ProcessEntry, ProcessKey, Step, StepKey, Totals, TotalsKey,
    UsdtPoint, tunables,
};

use crate::{copy::CopySlot, inflight::Inflight, live::KernelLive, process::Identity};

#[map(name = "mt_events")]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(tunables::RING_BYTES, 0);

/// Live kernel memory by address.
#[map(name = "mt_klive")]
pub static KERNEL_LIVE: HashMap<u64, KernelLive> =
    HashMap::with_max_entries(tunables::KERNEL_LIVE_ENTRIES, 0);

/// Live memory of library functions by address space, class and address.
#[map(name = "mt_clive")]
pub static CALL_LIVE: HashMap<CallLiveKey, CallLive> =
    HashMap::with_max_entries(tunables::CALL_LIVE_ENTRIES, 0);

/// Kernel accounts; `INDEX` says which slot an account has.
#[map(name = "mt_accounts")]
pub static ACCOUNTS: Array<Account> = Array::with_max_entries(tunables::ACCOUNTS, 0);

#[map(name = "mt_index")]
pub static INDEX: HashMap<AccountKey, u32> = HashMap::with_max_entries(tunables::ACCOUNTS, 0);

/// The slots that keys were found in last, by a hash of the key.
#[map(name = "mt_hints")]
pub static HINTS: Array<u32> = Array::with_max_entries(tunables::ACCOUNT_HINTS, 0);

/// Live bytes by age, one row an account that holds much; handed out anew at each scan.
#[map(name = "mt_age_rows")]
pub static AGE_ROWS: Array<AgeRow> = Array::with_max_entries(tunables::AGE_ROWS, 0);

/// What the first kfree program of a CPU ran for, until the second has.
#[map(name = "mt_last_free")]
pub static LAST_FREE: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Slots that user space has emptied and given back.
#[map(name = "mt_slots")]
pub static FREE_SLOTS: Queue<u32> = Queue::with_max_entries(tunables::ACCOUNTS, 0);

#[map(name = "mt_totals")]
pub static TOTALS: HashMap<TotalsKey, Totals> = HashMap::with_max_entries(tunables::TOTALS, 0);

#[map(name = "mt_processes")]
pub static PROCESSES: HashMap<ProcessKey, ProcessEntry> =
    HashMap::with_max_entries(tunables::PROCESSES, 0);

#[map(name = "mt_functions")]
pub static FUNCTIONS: Array<FunctionSpec> = Array::with_max_entries(tunables::FUNCTIONS, 0);

/// Where static probes have their arguments, by attach cookie.
#[map(name = "mt_usdt_points")]
pub static USDT_POINTS: HashMap<u64, UsdtPoint> =
    HashMap::with_max_entries(tunables::USDT_POINTS, 0);

/// How long calls take, by function.
#[map(name = "mt_latency")]
pub static LATENCY: Array<Latency> = Array::with_max_entries(tunables::FUNCTIONS, 0);

/// Call sites followed exactly although `--exact` is off.
#[map(name = "mt_promoted")]
pub static PROMOTED: HashMap<u64, u32> = HashMap::with_max_entries(tunables::PROMOTED, 0);

/// Thread groups that `run` and `attach` follow.
#[map(name = "mt_traced")]
pub static TRACED: HashMap<u32, u32> = HashMap::with_max_entries(tunables::POLICY_ENTRIES, 0);

#[map(name = "mt_policy_comm")]
pub static POLICY_COMM: HashMap<[u8; 16], u32> =
    HashMap::with_max_entries(tunables::POLICY_ENTRIES, 0);

#[map(name = "mt_policy_uid")]
pub static POLICY_UID: HashMap<u32, u32> = HashMap::with_max_entries(tunables::POLICY_ENTRIES, 0);

/// Processes that user space has decided about, by the name of their cgroup, and their children.
#[map(name = "mt_policy_proc")]
pub static POLICY_PROCESS: HashMap<ProcessKey, u32> =
    HashMap::with_max_entries(tunables::PROCESSES, 0);

/// One [`LossCounter`] a cause.
#[map(name = "mt_loss")]
pub static LOSS: Array<LossCounter> = Array::with_max_entries(LossCause::ALL.len() as u32, 0);

#[map(name = "mt_control")]
pub static CONTROL: Array<Control> = Array::with_max_entries(1, 0);

/// Changes of `Control::kernel_live` that a CPU has saved up.
#[map(name = "mt_live_delta")]
pub static LIVE_DELTA: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Where a kernel stack is hashed, one entry a program, which never interrupts itself.
#[map(name = "mt_scratch")]
pub static SCRATCH: PerCpuArray<[u64; MAX_KERNEL_FRAMES]> = PerCpuArray::with_max_entries(2, 0);

/// Where stacks are copied to before they are sent.
#[map(name = "mt_copies")]
pub static COPIES: Array<CopySlot> = Array::with_max_entries(tunables::COPY_SLOTS, 0);

/// Learned steps of unwinding; the step of address 0 is the space's number of executable pages
/// when they were learned.
#[map(name = "mt_steps")]
pub static STEPS: HashMap<StepKey, Step> = HashMap::with_max_entries(tunables::STEPS, 0);

/// Until when, in ns, the budget of copies is spent.
#[map(name = "mt_budget")]
pub static BUDGET: Array<u64> = Array::with_max_entries(1, 0);

/// Who a thread is, by thread id.
#[map(name = "mt_identity")]
pub static IDENTITY: HashMap<u32, Identity> = HashMap::with_max_entries(tunables::THREADS, 0);

/// Probed calls that a thread is inside of.
#[unsafe(link_section = ".maps")]
#[unsafe(export_name = "mt_inflight")]
pub static INFLIGHT: TaskStorage<Inflight> = TaskStorage::new();

const BPF_MAP_TYPE_TASK_STORAGE: usize = 29;

/// `BPF_MAP_TYPE_TASK_STORAGE`, declared as BTF wants it: aya-ebpf 0.2 has no type for it.
#[repr(C)]
pub struct TaskStorage<T> {
    r#type: *const [i32; BPF_MAP_TYPE_TASK_STORAGE],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; BPF_F_NO_PREALLOC as usize],
}

// SAFETY: never read or written as memory; only its address names the map.
unsafe impl<T> Sync for TaskStorage<T> {}

impl<T> TaskStorage<T> {
    const fn new() -> Self {
        Self {
            r#type: core::ptr::null(),
            key: core::ptr::null(),
            value: core::ptr::null(),
            max_entries: core::ptr::null(),
            map_flags: core::ptr::null(),
        }
    }

    /// What a helper takes for the map.
    #[inline(always)]
    pub fn as_ptr(&'static self) -> *mut c_void {
        core::ptr::from_ref(self).cast_mut().cast()
    }
}

/// The control block.
#[inline(always)]
pub fn control() -> Option<*mut Control> {
    CONTROL.get_ptr_mut(0)
}
