//! Reading `task_struct`, at offsets that come from the running kernel's BTF.

use core::ffi::c_void;

use aya_ebpf::helpers::{bpf_probe_read_kernel, generated};
use memtrace_common::ProcessKey;

use crate::globals;

/// `PF_KTHREAD`, include/linux/sched.h.
const PF_KTHREAD: u32 = 0x0020_0000;

/// A task that the verifier trusts.
#[derive(Clone, Copy)]
pub struct Task(pub *const u8);

impl Task {
    /// The running task.
    #[inline(always)]
    pub fn current() -> Self {
        // SAFETY: no arguments.
        Self(unsafe { generated::bpf_get_current_task_btf() }.cast_const().cast())
    }

    #[inline(always)]
    fn read<T: Copy>(self, offset: u64) -> T {
        // SAFETY: a trusted task at a constant offset: the verifier checks it as a load through BTF.
        unsafe { core::ptr::read_volatile(self.0.add(offset as usize).cast()) }
    }

    /// For helpers.
    #[inline(always)]
    pub fn as_ptr(self) -> *mut c_void {
        self.0.cast_mut().cast()
    }

    /// Thread group id, initial pid namespace.
    #[inline(always)]
    pub fn tgid(self) -> u32 {
        self.read(globals::task_tgid())
    }

    /// Thread id, initial pid namespace.
    #[inline(always)]
    pub fn pid(self) -> u32 {
        self.read(globals::task_pid())
    }

    /// Start of the thread, ns since boot.
    #[inline(always)]
    pub fn start_ns(self) -> u64 {
        self.read(globals::task_start_boottime())
    }

    /// Whether it is a kernel thread.
    #[inline(always)]
    pub fn is_kernel_thread(self) -> bool {
        self.read::<u32>(globals::task_flags()) & PF_KTHREAD != 0
    }

    /// Where its kernel stack begins.
    #[inline(always)]
    pub fn kernel_stack(self) -> u64 {
        self.read(globals::task_stack())
    }

    /// Address of its `mm_struct`; 0 for a kernel thread.
    #[inline(always)]
    pub fn mm(self) -> u64 {
        self.read(globals::task_mm())
    }

    /// Its group leader.
    #[inline(always)]
    fn leader(self) -> u64 {
        self.read(globals::task_group_leader())
    }

    /// What makes its process unique.
    #[inline(always)]
    pub fn process_key(self) -> ProcessKey {
        ProcessKey {
            start_ns: read_at(self.leader() + globals::task_start_boottime()),
            tgid: self.tgid(),
            reserved: 0,
        }
    }

    /// The name of its group leader.
    #[inline(always)]
    pub fn leader_comm(self) -> [u8; 16] {
        read_at(self.leader() + globals::task_comm())
    }

    /// Its user id, initial user namespace.
    #[inline(always)]
    pub fn uid(self) -> u32 {
        let cred: u64 = self.read(globals::task_cred());
        read_at(cred + globals::cred_uid())
    }

    /// Threads of its group that have not ended (`signal->live`).
    #[inline(always)]
    pub fn group_live(self) -> i32 {
        let signal: u64 = self.read(globals::task_signal());
        read_at(signal + globals::signal_live())
    }

    /// Base of its thread-local storage. glibc puts it on top of a second thread's stack.
    #[inline(always)]
    pub fn fsbase(self) -> u64 {
        self.read(globals::task_fsbase())
    }

    /// Where the stack of the first thread of its address space begins.
    #[inline(always)]
    pub fn start_stack(self) -> u64 {
        self.read_of_mm(globals::mm_start_stack())
    }

    /// Pages of executable mappings in its address space.
    #[inline(always)]
    pub fn exec_pages(self) -> u64 {
        self.read_of_mm(globals::mm_exec_vm())
    }

    /// A word of its `mm_struct`: a load through BTF, which needs no helper. 0 where there is none.
    #[inline(always)]
    fn read_of_mm(self, offset: u64) -> u64 {
        let mm: *const u8 = self.read(globals::task_mm());
        if mm.is_null() {
            return 0;
        }
        // SAFETY: a pointer that the verifier knows, at a constant offset.
        unsafe { core::ptr::read_volatile(mm.add(offset as usize).cast()) }
    }

    /// Where the kernel has put the trampoline of return probes in its address space; 0 if nowhere.
    #[inline(always)]
    pub fn uprobe_trampoline(self) -> u64 {
        let area: u64 =
            read_at(self.mm() + globals::mm_uprobes_state() + globals::uprobes_state_xol_area());
        if area == 0 {
            return 0;
        }
        read_at(area + globals::xol_area_vaddr())
    }
}

/// Reads kernel memory; zeroes where it cannot be read.
#[inline(always)]
pub fn read_at<T: zeroed::Zeroed>(address: u64) -> T {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(address as *const T) }.unwrap_or(T::ZERO)
}

/// The few types that `read_at` reads, and their zero.
mod zeroed {
    /// A type with a zero.
    pub trait Zeroed: Copy {
        /// All bits zero.
        const ZERO: Self;
    }
    impl Zeroed for u32 {
        const ZERO: Self = 0;
    }
    impl Zeroed for i32 {
        const ZERO: Self = 0;
    }
    impl Zeroed for u64 {
        const ZERO: Self = 0;
    }
    impl Zeroed for [u8; 16] {
        const ZERO: Self = [0; 16];
    }
}
